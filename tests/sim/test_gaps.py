"""A head is computed while the tail loads: whatever happens in between, the output is the same.

pages      [ there ][ computed again ][ loading ...... ]
"""

import pytest

from tokenix.drivers.sim import CostModel, Fault, FaultPlan
from tokenix.kernel.calls import Fork, Signal, Sysctl
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import State
from tokenix.mm.ids import Pid
from tokenix.sched.tunables import Tunables
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.deep import moved, on_lane, signal, speak, stop, take_all, until
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(100, 134))
PAGES = 10
"""When it has said three tokens."""

EVEN = CostModel(prefill_token_s=0.0125, in_page_s=0.05, out_page_s=0.001)
"""A page is computed in the time in which it is loaded."""


SMALL_CHUNKS = Tunables(step_tokens=6, step_min_prefill_tokens=6, max_running=6)
"""So that a head takes several passes."""


def machine_with(*faults: Fault, cache: bool = True) -> SimMachine:
    return SimMachine(
        40, 64, "progress", Params(poison=True, prefix_cache=cache), SMALL_CHUNKS,
        faults=FaultPlan(0, {}, faults), cost=EVEN,
    )  # fmt: skip


def restore(machine: SimMachine, way: str) -> None:
    """From now on all come back so."""
    machine.call(Sysctl("swap.restore", way))


def swapped(machine: SimMachine, tokens: int = 12) -> Process:
    """Somebody has said three tokens, and its pages are in the host tier only."""
    pid = machine.spawn(PROMPT, tokens)
    speak(machine, pid, 3)
    process = stop(machine, pid)
    take_all(machine)
    assert process.space.missing == process.space.mapped == PAGES
    return process


def split(machine: SimMachine) -> Process:
    """It comes back; now it computes the first half while the second loads."""
    process = swapped(machine)
    signal(machine, process.pid, Signal.CONT)
    until(machine, process.pid, State.RUNNING)
    assert 0 < process.space.gap < 8 and on_lane(machine, Lane.IN)
    return process


def adopt(machine: SimMachine, parent: Process) -> Pid:
    """A fork, followed."""
    (child,) = machine.call(Fork(parent.pid))
    machine.asked[child] = machine.asked[parent.pid]
    machine.output[child] = parent.tokens[parent.prompt_tokens :]
    machine.follow(child)
    return child


def test_half_is_computed_and_half_is_loaded(cache: bool) -> None:
    machine = machine_with(cache=cache)
    process = split(machine)
    gap = process.space.gap
    machine.finish()
    assert moved(machine, Lane.IN) == PAGES - gap
    assert process.usage.recomputed_tokens == 4 * gap


@pytest.mark.parametrize("first", [Signal.STOP, Signal.KILL])
def test_signals_in_a_gap(cache: bool, first: Signal) -> None:
    """What was computed of the head is kept; the tail behind the gap is not."""
    machine = machine_with(cache=cache)
    process = split(machine)
    signal(machine, process.pid, first)
    machine.run(until_s=machine.now_s + 5.0)
    if first is Signal.STOP:
        assert process.state is State.SWAPPED and process.space.gap == 0
        signal(machine, process.pid, Signal.CONT)
    machine.finish()


def test_forked_in_a_gap(cache: bool) -> None:
    """The child has what is computed before the gap, and nothing of what loads behind it."""
    machine = machine_with(cache=cache)
    process = split(machine)
    child = adopt(machine, process)
    assert machine.process(child).space.mapped <= process.space.gap
    machine.finish()


@pytest.mark.parametrize("kind", ["fail_in", "hang_in"])
@pytest.mark.parametrize("page", [0, 2, -1])
def test_tail_lost_behind_a_gap(cache: bool, kind: str, page: int) -> None:
    """A page behind the gap does not come: it and all behind it are computed as well."""
    tail = PAGES - split(machine_with(cache=cache)).space.gap
    pages = (page % tail,) if kind == "fail_in" else None
    machine = machine_with(Fault(kind, nth=0, pages=pages), cache=cache)  # type: ignore[arg-type]
    process = split(machine)
    machine.run(until_s=machine.now_s + 10.0)
    assert process.pid in machine.ended
    machine.check_output(process.pid)
    assert machine.kernel.memory.pages_lost


def test_no_gap_behind_what_loads_for_somebody_else(cache: bool) -> None:
    """The beginning that two share is on its way for one of them: the other cannot compute behind
    it yet."""
    machine = machine_with(cache=cache)
    pid = machine.spawn(PROMPT[:14], 40)
    speak(machine, pid, 3)
    signal(machine, pid, Signal.STOP)
    parent = until(machine, pid, State.SWAPPED)
    child = adopt(machine, parent)
    signal(machine, pid, Signal.CONT)
    speak(machine, pid, 24)
    stop(machine, pid)
    take_all(machine)
    assert machine.process(child).space.missing == machine.process(child).space.mapped
    restore(machine, "swap-in")
    signal(machine, child, Signal.CONT)
    until(machine, child, State.SWAPPING_IN)
    restore(machine, "split")
    signal(machine, pid, Signal.CONT)
    machine.finish()


def test_a_page_is_lost_while_a_gap_waits_for_its_tail() -> None:
    """The last page of a fork is still being copied out when it comes back by halves, and one of
    the pages that load is lost: it starts over without a gap."""
    machine = machine_with(Fault("fail_in", nth=0, pages=(3,)))
    pid = machine.spawn(PROMPT, 30)
    speak(machine, pid, 3)
    machine.run(until_s=machine.now_s + 0.05)
    parent = machine.process(pid)
    while parent.space.computed % 4 != 2 or any(p.slot is None for p in parent.space.pages[:8]):
        assert machine.advance()
    machine.device._faults.named += (Fault("delay_out", delay_s=1.5),)
    child = machine.process(adopt(machine, parent))
    for one in (child.pid, pid):
        signal(machine, one, Signal.STOP)
    while child.space.pages[-1].leaving is None:
        assert machine.advance()
    machine.device._faults.named = machine.device._faults.named[:1]
    take_all(machine)
    assert child.space.missing >= 8 and child.space.pages[-1].leaving is not None
    restore(machine, "split")
    signal(machine, child.pid, Signal.CONT)
    until(machine, child.pid, State.SWAPPING_IN)
    assert child.space.gap
    signal(machine, child.pid, Signal.STOP)
    lost = machine.kernel.memory.pages_lost
    while machine.kernel.memory.pages_lost == lost:
        assert child.state is State.SWAPPING_IN and machine.advance()
    assert child.state is State.SWAPPED and not child.space.gap
    machine.run(until_s=machine.now_s + 5.0)
    take_all(machine)
    for one in (child.pid, pid):
        signal(machine, one, Signal.CONT)
    machine.finish()
