"""Group B on the whole kernel: pausing for priority, with real pages and copies; tenants that must
not see each other. tests/sched/test_scenarios_b.py has the scheduler's part."""

import pytest

from tokenix.drivers.sim import CostModel
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import Kill, Principal, Signal, Spawn
from tokenix.kernel.event import Event
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader
from tokenix.swap.tier import PlaceState
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(60, 77))
SLOW_READER = Reader(tokens_per_s=1.0)


def full_machine(cache: bool) -> tuple[SimMachine, list[Pid]]:
    """Streams that are far ahead of their readers and hold 11 of 16 frames."""
    machine = SimMachine(16, 64, "progress", Params(poison=True, prefix_cache=cache))
    pids = []
    for number in range(2):
        pids.append(machine.spawn(tuple(range(number, number + 12)), 40, reader=SLOW_READER))
        machine.run(until_s=machine.now_s + 0.03)
    while sum(machine.process(pid).space.mapped for pid in pids) < 11:
        machine.advance()
    assert machine.kernel.counters.preemptions == 0
    return machine, pids


def test_b1_b3_the_first_pause_for_priority_is_in_order(cache: bool) -> None:
    """B1, B3: an urgent request gets its first token at once; whoever made room for it loses
    nothing and comes back."""
    machine, streams = full_machine(cache)
    start_s = machine.now_s
    urgent = machine.spawn(PROMPT, 8, qos=Qos.INTERACTIVE)
    while not machine.output[urgent]:
        machine.advance()
    assert machine.now_s - start_s < 0.03, "a step in flight, its own, and a copy"
    assert machine.reasons() == [f"newcomer {urgent}"]
    machine.finish()
    assert all(len(machine.output[pid]) == 40 for pid in streams)


def test_b2_thirty_idle_requests_do_not_slow_an_urgent_one(cache: bool) -> None:
    """B2: it is through in less than twice the time it takes alone."""

    def took_s(low: int) -> float:
        machine = SimMachine(24, 64, "progress", Params(poison=True, prefix_cache=cache))
        for number in range(low):
            machine.spawn(tuple(range(number, number + 6)), 4, qos=Qos.IDLE)
        machine.run(until_s=0.02)
        start_s = machine.now_s
        pid = machine.spawn(PROMPT[:6], 8, qos=Qos.INTERACTIVE)
        while pid not in machine.ended:
            machine.advance()
        took = machine.now_s - start_s
        machine.finish()
        return took

    assert took_s(30) < 2 * took_s(0)


def test_b7_an_urgent_call_in_the_inbox_of_a_completion_is_in_its_plan(cache: bool) -> None:
    """B7: calls are handled before the plan that follows them, not after it."""
    machine, _ = full_machine(cache)
    next_s = machine.device.next_completion_s()
    assert next_s is not None
    machine.now_s = next_s
    call = machine.make_call(Spawn(PROMPT, max_tokens=2, qos=Qos.INTERACTIVE))
    inbox: list[Event] = [*machine.device.poll(next_s), call]
    machine.step(inbox)
    urgent = machine.replies[call.call_id].value
    assert isinstance(urgent, int)
    assert machine.process(Pid(urgent)).state is not State.NEW
    machine.follow(Pid(urgent))
    machine.finish()


@pytest.mark.parametrize("slots", [0, 64])
def test_b8_a_victim_that_ends_in_the_same_step_is_nobodys_victim(cache: bool, slots: int) -> None:
    """B8: the pass in which the best victim ends and an urgent request come together: its frames
    are given back once, and nobody is paused who has ended."""
    machine = SimMachine(10, slots, "progress", Params(poison=True, prefix_cache=cache))
    victim = machine.spawn(tuple(range(8)), 12, reader=SLOW_READER)
    machine.spawn(tuple(range(30, 38)), 20)
    while machine.process(victim).output_tokens < 11:
        machine.advance()
    while machine.kernel.in_flight is None:
        machine.advance()
    next_s = machine.device.next_completion_s()
    assert next_s is not None and victim not in machine.ended
    machine.now_s = next_s
    call = machine.make_call(Spawn(PROMPT, max_tokens=4, qos=Qos.INTERACTIVE))
    machine.step([call, *machine.device.poll(next_s)])
    assert machine.ended[victim].reason is ExitReason.LENGTH
    events = machine.kernel.trace.since(0, 1 << 30, victim)
    kinds = [event.kind for event in events if event.kind in ("pause", "exit")]
    assert kinds.count("exit") == 1 and kinds[-1] == "exit"
    urgent = machine.replies[call.call_id].value
    assert isinstance(urgent, int)
    machine.follow(Pid(urgent))
    machine.finish()


@pytest.mark.parametrize("stored", [False, True])
def test_b17_nobody_learns_from_the_clock_what_another_tenant_asked(stored: bool) -> None:
    """B17: a prompt that another tenant has in memory, or paused in the host tier, costs as much
    as one that nobody has; one's own is found."""
    red, blue = Principal("red"), Principal("blue")

    def cold_and_cached(first: Principal | None, who: Principal) -> tuple[float, int]:
        machine = SimMachine(24, 32, cost=CostModel(prefill_token_s=1e-3))
        if first is not None:
            earlier = machine.call(Spawn(PROMPT, max_tokens=8, keep_open=stored), first)
            machine.run(until_s=2.0)
            if stored:
                machine.call(Kill(earlier, Signal.STOP))
                machine.run(until_s=3.0)
                assert machine.kernel.memory.copies.host.count(PlaceState.VALID)
        machine.run(until_s=4.0)
        pid = machine.call(Spawn(PROMPT, max_tokens=1), who)
        start_s = machine.now_s
        while machine.process(pid).exit_reason is None:
            machine.advance()
        return machine.now_s - start_s, machine.process(pid).usage.cached_tokens

    nobody = cold_and_cached(None, blue)
    assert cold_and_cached(red, blue) == pytest.approx(nobody)
    assert cold_and_cached(blue, blue)[1] > 0


def test_b17_without_the_cache_nothing_is_ever_found(policy: str) -> None:
    """B17: opting out of the prefix cache is not being in it: not while a prompt runs, not paused
    in the host tier, not after its end."""
    machine = SimMachine(10, 32, policy, Params(poison=True, prefix_cache=False))
    for number in range(4):
        machine.spawn(PROMPT[:9], 16, reader=SLOW_READER)
        machine.run(until_s=machine.now_s + 0.02 * number)
        assert machine.kernel.memory.index.count() == 0
    while machine.advance():
        assert machine.kernel.memory.index.count() == 0
    assert all(zombie.usage.cached_tokens == 0 for zombie in machine.kernel.zombies.values())
    machine.finish()
