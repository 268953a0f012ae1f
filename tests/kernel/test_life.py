"""Forks, turns, segments, waits, usage: what processes and their callers may rely on."""

import errno

import pytest

from tokenix.drivers.sampling import SamplingParams
from tokenix.drivers.sim import Fault, FaultPlan, expected_tokens
from tokenix.kernel import audit
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import (
    Fork,
    Kill,
    Nice,
    Principal,
    Ps,
    Read,
    SetRlimit,
    ShmOpen,
    ShmUnlink,
    Signal,
    Spawn,
    Stat,
    Vmstat,
    Wait,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.kernel.state import ALLOWED, RESIDENT, State
from tokenix.kernel.trace import TraceRing
from tokenix.mm.ids import Pid
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(40, 53))


def machine_with(**options: object) -> SimMachine:
    return SimMachine(32, 64, **options)


# ---- fork ----


def test_greedy_children_repeat_their_parent() -> None:
    machine = machine_with()
    pid = machine.spawn(PROMPT, 20)
    machine.run(until_s=0.04)
    made = len(machine.output[pid])
    children = machine.call(Fork(pid, 3))
    for child in children:
        machine.follow(child)
    machine.finish()
    assert 0 < made < 20
    for child in children:
        assert machine.output[child] == machine.output[pid][made:]
    assert machine.kernel.counters.recomputed_tokens == 0, "full pages are shared, the tail copied"


@pytest.mark.parametrize("seeds", [(), (5, 6)])
def test_seeded_children_differ_and_are_right(seeds: tuple[int, ...]) -> None:
    machine = machine_with()
    sampling = SamplingParams(temperature=1.0, seed=3, presence_penalty=0.3)
    pid = machine.spawn(PROMPT, 20, sampling=sampling)
    machine.run(until_s=0.04)
    children = machine.call(Fork(pid, 2, seeds))
    begun = list(machine.process(children[0]).tokens)
    used = [machine.process(child).sampling for child in children]
    for child in children:
        machine.follow(child)
    machine.finish()
    outputs = [machine.output[child] for child in children]
    assert outputs[0] != outputs[1]
    assert not seeds or [sampling.seed for sampling in used] == list(seeds)
    for output, params in zip(outputs, used, strict=True):
        assert output == expected_tokens(begun, len(output), params, prompt_tokens=len(PROMPT))
        assert len(begun) + len(output) == len(PROMPT) + 20


@pytest.mark.parametrize("after_s", [0.0, 0.04, 1.0])
def test_children_afresh_draw_their_own_first_token(after_s: float) -> None:
    """They share what is computed of the prompt, even if its own turn is over."""
    machine = machine_with()
    sampling = SamplingParams(temperature=1.0, seed=3, presence_penalty=0.3)
    pid = machine.spawn(PROMPT, 12, sampling=sampling, keep_open=True)
    machine.run(until_s=after_s)
    computed = machine.process(pid).space.computed
    children = machine.call(Fork(pid, 3, (5, 6, 7), afresh=True))
    for child in children:
        machine.follow(child)
        begun = machine.process(child)
        assert begun.tokens == list(PROMPT)
        assert begun.space.computed == min(computed, len(PROMPT) - 1)
        assert begun.usage.cached_tokens == begun.space.computed
    for one in (pid, *children):
        machine.call(Write(one, eof=True))
    machine.finish()
    firsts = set()
    for child, seed in zip(children, (5, 6, 7), strict=True):
        params = SamplingParams(temperature=1.0, seed=seed, presence_penalty=0.3)
        assert machine.output[child] == expected_tokens(PROMPT, 12, params)
        firsts.add(machine.output[child][0])
    assert len(firsts) == 3
    if after_s:
        assert machine.kernel.counters.recomputed_tokens == 0


def test_children_have_empty_pipes_and_their_own_limits() -> None:
    machine = machine_with()
    pid = machine.call(Spawn(PROMPT, max_tokens=10))
    machine.run(until_s=0.04)
    (child,) = machine.call(Fork(pid))
    assert machine.process(pid).unread and not machine.process(child).unread
    machine.call(SetRlimit(child, max_tokens=20))
    assert machine.process(pid).max_tokens == 10
    assert machine.call(Stat(child)).parent == pid


# ---- turns ----


def test_turns_go_on_where_the_last_one_ended() -> None:
    machine = machine_with()
    pid = machine.spawn(PROMPT, 4, keep_open=True)
    machine.run(until_s=1.0)
    first = expected_tokens(PROMPT, 4)
    assert machine.output[pid] == first and pid not in machine.ended
    assert machine.process(pid).state is State.STOPPED, "nobody wants its frames"
    assert machine.call(Write(pid, (1, 2))) == 0
    machine.run(until_s=2.0)
    second = expected_tokens([*PROMPT, *first, 1, 2], 4)
    assert machine.output[pid] == first + second
    assert machine.kernel.counters.recomputed_tokens == 0, "its KV was kept"
    machine.call(Write(pid, eof=True))
    assert machine.ended[pid].reason is ExitReason.LENGTH


def test_input_in_a_turn_waits_for_the_next() -> None:
    machine = machine_with()
    pid = machine.spawn(PROMPT, 4, keep_open=True)
    assert machine.call(Write(pid, (1,))) == 1
    assert machine.call(Write(pid, (2,), eof=True)) == 2
    machine.run()
    first = expected_tokens(PROMPT, 4)
    assert machine.output[pid] == first + expected_tokens([*PROMPT, *first, 1, 2], 4)


@pytest.mark.parametrize("stopped", [True, False])
def test_separators_go_between_turns(stopped: bool) -> None:
    """Not after a stop token, and once however many writes a turn has."""
    machine = machine_with(eos_token=0)
    forced = SamplingParams(logit_bias=((0, 100.0),)) if stopped else SamplingParams()
    pid = machine.spawn(PROMPT, 3, keep_open=True, sampling=forced, ignore_eos=not stopped)
    machine.run(until_s=1.0)
    machine.call(Kill(pid, Signal.STOP))
    before = machine.process(pid).length
    machine.call(Write(pid, (7,), (9, 9)))
    added = machine.process(pid).tokens[before:]
    assert added == ([7] if stopped else [9, 9, 7])


def test_a_limit_cannot_be_put_below_what_was_made() -> None:
    machine = machine_with()
    pid = machine.spawn(PROMPT, 30)
    machine.run(until_s=0.04)
    made = machine.process(pid).output_tokens
    with pytest.raises(OSError, match="at least"):
        machine.call(SetRlimit(pid, max_tokens=made))
    machine.call(SetRlimit(pid, max_tokens=made + 1))
    machine.run()
    assert len(machine.output[pid]) == made + 1
    assert machine.ended[pid].reason is ExitReason.LENGTH


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_pages": 4}, ExitReason.PAGES),
        ({"deadline_s": 0.02}, ExitReason.DEADLINE),
        ({"max_tokens": 3}, ExitReason.LENGTH),
    ],
)
def test_limits_end_a_process_with_their_reason(
    limits: dict[str, float], reason: ExitReason
) -> None:
    for at_once in (True, False):
        machine = machine_with()
        if at_once:
            options = {"max_tokens": 20, **limits}
            pid = machine.spawn(PROMPT, **options)
        else:
            pid = machine.spawn(PROMPT, 20)
            machine.call(SetRlimit(pid, **limits))
        machine.run()
        assert machine.ended[pid].reason is reason
        if reason is not ExitReason.LENGTH:
            machine.check_output(pid, complete=False)


def test_the_context_is_a_limit() -> None:
    machine = machine_with(max_context_tokens=20)
    pid = machine.call(Spawn(PROMPT))
    machine.follow(pid)
    machine.run()
    assert len(machine.output[pid]) == 7 and machine.ended[pid].reason is ExitReason.LENGTH


# ---- waits ----


def test_wait_any_takes_who_ends_first() -> None:
    machine = machine_with()
    long, short = (machine.call(Spawn(PROMPT, max_tokens=n)) for n in (20, 3))
    calls = [machine.start(Wait()) for _ in range(2)]
    machine.run()
    assert [machine.replies[call].value.pid for call in calls] == [short, long]
    audit.check_idle(machine.kernel)


def test_no_wait_is_left_behind() -> None:
    """All who wait for a process hear of its end, and one who waits for any. A second such one has
    nobody left to wait for, and who comes later is too late."""
    machine = machine_with()
    red = Principal("red")
    pid = machine.call(Spawn(PROMPT, max_tokens=3), red)
    calls = [machine.start(Wait(), red), machine.start(Wait(pid)), machine.start(Wait(), red)]
    calls += [machine.start(Wait(pid), red) for _ in range(2)]
    machine.run()
    replies = [machine.replies[call] for call in calls]
    nobody = replies.pop(2)
    assert [reply.value for reply in replies] == [replies[0].value] * 4
    assert replies[0].value.pid == pid and replies[0].value.reason is ExitReason.LENGTH
    assert nobody.error.errno == errno.ECHILD
    late = machine.replies[machine.start(Wait(pid))]
    assert late.error is not None and late.error.errno == errno.ECHILD
    audit.check_idle(machine.kernel)


def test_who_waits_for_any_takes_another_if_the_first_is_taken() -> None:
    machine = machine_with()
    long, short = (machine.call(Spawn(PROMPT, max_tokens=n)) for n in (20, 3))
    calls = [machine.start(Wait(short)), machine.start(Wait()), machine.start(Wait())]
    machine.run()
    assert [machine.replies[call].value.pid for call in calls] == [short, short, long]
    audit.check_idle(machine.kernel)


def test_who_only_looks_takes_nothing() -> None:
    """Before and after its end, the process stays for its owner, with what is unread."""
    machine = machine_with()
    pid = machine.call(Spawn(PROMPT, max_tokens=3))
    calls = [machine.start(Wait(pid, keep=True)), machine.start(Wait(keep=True))]
    machine.run()
    looks = [machine.replies[call].value for call in calls]
    looks.append(machine.call(Wait(pid, keep=True)))
    assert len(machine.call(Read(pid)).outputs) == 3
    assert looks == [machine.call(Wait(pid))] * 3
    audit.check_idle(machine.kernel)


def test_a_tenant_waits_for_its_own() -> None:
    machine = machine_with()
    red, blue = Principal("red"), Principal("blue")
    machine.call(Spawn(PROMPT, max_tokens=2), blue)
    mine = machine.call(Spawn(PROMPT, max_tokens=9), red)
    call = machine.start(Wait(), red)
    machine.run()
    assert machine.replies[call].value.pid == mine


def test_old_zombies_make_room() -> None:
    machine = machine_with(params=Params(max_zombies=2))
    pids = [machine.spawn(PROMPT[:n], 2) for n in (3, 4, 5, 6)]
    machine.run()
    assert list(machine.kernel.zombies) == pids[2:]


def test_a_reaped_process_tells_its_readers() -> None:
    machine = machine_with(params=Params(pipe_tokens=1))
    pid = machine.call(Spawn(PROMPT, max_tokens=5))
    machine.run(until_s=1.0)
    machine.call(Kill(pid, Signal.KILL))
    machine.call(Wait(pid))
    with pytest.raises(OSError, match="no process"):
        machine.call(Read(pid))


# ---- segments ----


def test_segments_are_pinned_and_hit() -> None:
    machine = machine_with()
    call = machine.start(ShmOpen("system", PROMPT))
    machine.run()
    assert machine.replies[call].value == 12, "full pages only"
    for number in range(12):  # would push any cached page out
        machine.spawn(tuple(range(number * 20, number * 20 + 19)), 4)
        machine.run()
    pid = machine.spawn((*PROMPT, 1), 4)
    machine.run()
    assert machine.process(pid).usage.cached_tokens == 12
    assert not [stat for stat in machine.call(Ps()).processes if stat.pid == Pid(1)], (
        "it shows in no list"
    )
    machine.call(ShmUnlink("system"))
    machine.finish()


def test_a_segment_that_is_unlinked_early_fails() -> None:
    machine = machine_with()
    call = machine.start(ShmOpen("system", PROMPT))
    machine.call(ShmUnlink("system"))
    machine.run()
    reply = machine.replies[call]
    assert reply.error is not None and reply.error.errno == errno.EIO
    audit.check_idle(machine.kernel)


def test_a_segment_whose_device_fails_fails() -> None:
    machine = machine_with(faults=FaultPlan(0, {}, (Fault("row", nth=0),)))
    call = machine.start(ShmOpen("system", PROMPT))
    machine.run()
    reply = machine.replies[call]
    assert reply.error is not None and reply.error.errno == errno.EIO
    audit.check_idle(machine.kernel)


def test_segments_leave_room_for_who_was_promised_it() -> None:
    machine = SimMachine(16, 16)
    pid = machine.spawn(PROMPT, 10, keep_open=True)
    machine.call(Write(pid, (1,) * 16))
    with pytest.raises(OSError, match="limit"):
        reply = machine.replies[machine.start(ShmOpen("system", tuple(range(16))))]
        raise reply.error or AssertionError("granted")
    machine.call(Write(pid, eof=True))
    machine.run()
    assert len(machine.output[pid]) == 20


# ---- faults of the device ----


def test_a_row_fault_is_one_process_end() -> None:
    machine = machine_with(faults=FaultPlan(0, {}, (Fault("row", pid=2),)))
    good, bad = machine.spawn(PROMPT, 9), machine.spawn(PROMPT[:5], 9)
    machine.finish()
    assert machine.ended[bad].reason is ExitReason.ERROR
    assert machine.ended[good].reason is ExitReason.LENGTH


def test_a_faulty_device_is_tried_again() -> None:
    machine = machine_with(
        faults=FaultPlan(0, {}, (Fault("device", nth=0), Fault("device", nth=4)))
    )
    for number in range(3):
        machine.spawn(PROMPT[: 4 + number], 9)
    machine.finish()
    assert {end.reason for end in machine.ended.values()} == {ExitReason.LENGTH}
    assert machine.kernel.counters.device_faults == 2


def test_a_dead_device_ends_processes_not_the_kernel() -> None:
    machine = machine_with(faults=FaultPlan(0, {}, (Fault("device"),)))
    for number in range(3):
        machine.spawn(PROMPT[: 4 + number], 9)
    machine.finish()
    assert {end.reason for end in machine.ended.values()} == {ExitReason.ERROR}


# ---- what can be seen ----


def test_usage_adds_up() -> None:
    machine = SimMachine(12, 64)
    pids = [machine.spawn(tuple(range(n, n + 9)), 24) for n in range(4)]
    machine.run(until_s=0.05)
    machine.call(Kill(pids[0], Signal.STOP))
    machine.run(until_s=2.0)
    machine.call(Kill(pids[0], Signal.CONT))
    machine.run()
    for pid in pids:
        usage = machine.call(Wait(pid)).rusage
        busy = usage.queue_s + usage.prefill_s + usage.decode_s + usage.paused_s
        assert 0 < busy <= usage.total_s + 1e-9
        assert usage.ttft_s is not None and 0 < usage.ttft_s <= usage.total_s
        assert usage.output_tokens == 24 and usage.prompt_tokens == 9
        assert usage.page_seconds > 0
    audit.check_idle(machine.kernel)


def test_vmstat_counts_what_there_is() -> None:
    machine = machine_with()
    pid = machine.spawn(PROMPT, 9)
    machine.run(until_s=0.02)
    stats = machine.call(Vmstat())
    kinds = ("free", "held", "cached", "in_transfer")
    assert sum(stats[f"frames.{kind}"] for kind in kinds) == stats["frames.total"] == 32
    assert stats["processes.running"] == 1 and stats["spawned"] == 1
    assert machine.call(Nice(pid, 5)) == 0
    assert machine.call(Stat(pid)).nice == 5
    machine.finish()
    assert machine.call(Vmstat())["exits.length"] == 1


def test_the_trace_ring_forgets_but_its_digest_does_not() -> None:
    rings = [TraceRing(4), TraceRing(100)]
    for ring in rings:
        for number in range(10):
            ring.add(number / 10, Pid(number % 2), "tick", number=number)
    assert rings[0].digest() == rings[1].digest()
    assert [event.seq for event in rings[0].since(0, 100)] == [7, 8, 9, 10]
    assert [event.seq for event in rings[0].since(8, 1)] == [9]
    assert [event.seq for event in rings[1].since(0, 100, Pid(1))] == [2, 4, 6, 8, 10]
    rings[1].add(1.0, None, "tock")
    assert rings[0].digest() != rings[1].digest()


def test_states_are_closed_under_their_table() -> None:
    """Every state can end, only the dead cannot move, and the dead hold nothing."""
    assert set(ALLOWED) == set(State)
    for state, following in ALLOWED.items():
        assert state not in following
        assert (State.ZOMBIE in following) == (state is not State.ZOMBIE)
    assert not ALLOWED[State.ZOMBIE] and State.ZOMBIE not in RESIDENT


def test_processes_that_never_ran_leave_nothing_to_tell_the_device() -> None:
    machine = machine_with()
    machine.kernel.memory.bring_in = lambda *_: False  # type: ignore[method-assign]
    for _ in range(50):
        machine.call(Kill(machine.spawn(PROMPT, 4), Signal.KILL))
    assert not machine.kernel.dropped
