"""Group C on the whole kernel: what stands in each forward while a long prompt is computed.
tests/sched/test_scenarios_c.py has the times."""

import pytest

from tokenix.drivers.ops import Forward
from tokenix.drivers.sim import CostModel
from tokenix.kernel.params import Params
from tokenix.sched.entity import Qos, Reader
from tokenix.sched.tunables import Tunables
from tokenix.tests.sim.machine import SimMachine

LONG = tuple((7 * i) % 251 for i in range(150))


def watched(
    cost: CostModel, tunables: Tunables, policy: str = "progress"
) -> tuple[SimMachine, list[Forward]]:
    """A machine, and the forwards it is going to submit."""
    machine = SimMachine(64, 64, policy, Params(poison=True), tunables, cost=cost)
    forwards: list[Forward] = []
    submit = machine.device.submit

    def note(command: object, now_s: float) -> None:
        if isinstance(command, Forward):
            forwards.append(command)
        submit(command, now_s)  # type: ignore[arg-type]

    machine.device.submit = note  # type: ignore[method-assign]
    return machine, forwards


@pytest.mark.parametrize("policy", ["progress", "fcfs"])
def test_c4_c7_streams_are_in_every_step_of_a_long_prefill(policy: str) -> None:
    """C4, C7: while a prompt is computed chunk by chunk, each stream gets a token in each step."""
    machine, forwards = watched(
        CostModel(), Tunables(step_tokens=20, step_min_prefill_tokens=4, max_running=8), policy
    )
    streams = [machine.spawn((n, n + 1, n + 2), 30) for n in range(3)]
    machine.run(until_s=0.02)
    big = machine.spawn(LONG, 4)
    while not machine.output[big]:
        machine.advance()
    chunks = [forward for forward in forwards if any(row.pid == big for row in forward.all_rows())]
    assert len(chunks) >= 8, "it takes many steps"
    for forward in chunks:
        assert {row.pid for row in forward.all_rows()} == {big, *streams}
    machine.finish()


def test_c6_no_stream_waits_longer_than_its_lead_for_a_chunk() -> None:
    """C6: on a slow device, no step lasts longer than the tightest lead in it, or the floor."""
    cost = CostModel(base_s=1e-3, prefill_token_s=5e-3)
    machine, forwards = watched(cost, Tunables(step_min_prefill_tokens=1))
    stream = machine.spawn((1, 2, 3), 60, reader=Reader(tokens_per_s=5.0))
    machine.run(until_s=0.1)
    big = machine.spawn(LONG, 2, qos=Qos.BATCH)
    while not machine.output[big]:
        lead_s = machine.kernel.scheduler.lead_s(machine.process(stream), machine.now_s)
        count = len(forwards)
        machine.advance()
        for forward in forwards[count:]:
            tokens = sum(len(row.tokens) for row in forward.rows)
            assert tokens * cost.prefill_token_s <= max(0.1, lead_s, 0.0) + 0.02
    assert machine.process(stream).entity.stalls == 0
    machine.finish()


def test_c1_c3_a_short_request_does_not_wait_for_the_long_prefill_to_end() -> None:
    """C1, C3: it comes while the long prompt is being computed, and is through long before it."""
    machine, _ = watched(
        CostModel(prefill_token_s=1e-3),
        Tunables(step_tokens=20, step_min_prefill_tokens=4, max_running=8),
    )
    big = machine.spawn(LONG, 2)
    machine.run(until_s=0.03)
    short = machine.spawn((1, 2, 3, 4), 2)
    start_s = machine.now_s
    while not machine.output[short]:
        machine.advance()
    assert machine.now_s - start_s < 0.06, "the step in flight and one more"
    assert not machine.output[big]
    machine.finish()


@pytest.mark.parametrize("count", [2, 3])
def test_c8_prefills_at_once_do_not_delay_the_first(count: int) -> None:
    """C8: the first token of the first is not later because others are prefilled too."""

    def first_token_s(prompts: int) -> float:
        tunables = Tunables(step_tokens=20, step_min_prefill_tokens=4, max_running=8)
        machine, _ = watched(CostModel(prefill_token_s=1e-3), tunables)
        pids = [machine.spawn(LONG[n : 60 + n], 2) for n in range(prompts)]
        while not machine.output[pids[0]]:
            machine.advance()
        first_s = machine.now_s
        machine.finish()
        return first_s

    assert first_token_s(count) < 1.1 * first_token_s(1)
