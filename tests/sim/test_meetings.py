"""Who meets whom on the way between three tiers: forks, signals, sharers and rivals."""

from typing import Any

import pytest

from tokenix.drivers.sim import CostModel, Fault
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import Fork, Kill, Signal
from tokenix.kernel.state import State
from tokenix.mm.reclaim import reclaim
from tokenix.sched.plan import Plan
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.deep import (
    PROMPT,
    deep_machine,
    moved,
    on_lane,
    signal,
    sink,
    speak,
    stop,
    sunk,
    take_all,
    until,
)
from tokenix.tests.sim.machine import SimMachine


def booted(cache: bool, *faults: Fault, **options: Any) -> SimMachine:
    return deep_machine(*faults, params={"prefix_cache": cache}, **options)


def test_a_fork_joins_the_fetch_of_its_parent(cache: bool) -> None:
    """Forked while its parent's pages rise: they rise once, for both."""
    machine = booted(cache, cost=CostModel(prefill_token_s=1.0, fetch_page_s=0.05))
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    sink(machine, pid)
    signal(machine, pid, Signal.CONT)
    until(machine, pid, State.FETCHING)
    sent = moved(machine, Lane.FETCH)
    (child,) = machine.call(Fork(pid))
    machine.asked[child] = machine.asked[pid]
    machine.output[child] = machine.process(pid).tokens[len(PROMPT) :]
    machine.follow(child)
    until(machine, child, State.FETCHING)
    machine.finish()
    assert moved(machine, Lane.FETCH) == sent


def test_a_fork_for_whose_tail_no_frame_is_left() -> None:
    """It computes again what the parent has on a page that is not full."""
    machine = SimMachine(frames=3, host_slots=0)
    pid = machine.spawn((1,), 7)
    speak(machine, pid, 2)
    for computed in (2, 0):
        (child,) = machine.call(Fork(pid))
        assert machine.process(child).space.computed == computed
        machine.asked[child] = machine.asked[pid]
        machine.output[child] = machine.process(pid).tokens[1:]
        machine.follow(child)
    machine.finish()


@pytest.mark.parametrize("last", [Signal.STOP, Signal.KILL])
def test_signals_while_it_rises(cache: bool, last: Signal) -> None:
    """Stopped, continued, stopped or killed while its pages rise: each takes effect at once."""
    machine = booted(cache, cost=CostModel(prefill_token_s=1.0, fetch_page_s=0.05))
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    process = sink(machine, pid)
    signal(machine, pid, Signal.CONT)
    until(machine, pid, State.FETCHING)
    for which in (Signal.STOP, Signal.CONT, last):
        signal(machine, pid, which)
    machine.run(until_s=machine.now_s + 10.0)
    if last is Signal.STOP:
        assert process.state is State.SWAPPED
        signal(machine, pid, Signal.CONT)
    machine.finish()


def test_resumed_while_it_is_stored_it_writes_on(cache: bool) -> None:
    """The last page is not full, and is being stored when its process goes on and writes to it:
    what the store brings is stale, and its block is free again."""
    machine = booted(cache, Fault("delay_store", delay_s=1.0))
    pid = machine.spawn(PROMPT[:6], 12)
    speak(machine, pid, 3)
    signal(machine, pid, Signal.STOP)
    process = until(machine, pid, State.SWAPPED)
    while not on_lane(machine, Lane.STORE):
        assert machine.advance()
    assert process.space.computed % 4 and process.space.pages[-1].storing is not None
    signal(machine, pid, Signal.CONT)
    speak(machine, pid, 5)
    assert process.state is not State.SWAPPED, "it did not wait for the store"
    machine.run(until_s=machine.now_s + 1.5)
    machine.finish()


def test_shared_pages_sink_when_the_last_who_runs_stops(cache: bool) -> None:
    """A page that one process needs stays where it is, whatever becomes of others that map it."""
    machine = booted(cache)
    pid = machine.spawn(PROMPT, 16)
    speak(machine, pid, 3)
    signal(machine, pid, Signal.STOP)
    (child,) = machine.call(Fork(pid))
    machine.asked[child] = machine.asked[pid]
    machine.output[child] = machine.process(pid).tokens[len(PROMPT) :]
    machine.follow(child)
    signal(machine, pid, Signal.CONT)
    speak(machine, pid, 6)
    take_all(machine)
    shared = [page for page in machine.process(child).space.pages if page.mapped == 2]
    assert shared and all(page.pfn is not None and page.block is None for page in shared)
    sink(machine, pid)
    assert all(page.deep for page in shared)
    for one in (child, pid):
        signal(machine, one, Signal.CONT)
    machine.finish()


def test_own_pages_that_lose_their_slots_rise_with_the_others(cache: bool) -> None:
    """Half of its pages are in a full host tier and in the file: their slots are the ones that the
    other half takes. What cannot come up is computed again; nothing goes round in circles."""
    machine = booted(cache, slots=3)
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    process = stop(machine, pid)
    memory = machine.kernel.memory
    take_all(machine)
    signal(machine, pid, Signal.CONT)
    machine.run(until_s=machine.now_s + 5.0)
    assert machine.ended[pid].reason is ExitReason.LENGTH
    assert moved(machine, Lane.FETCH) <= memory.copies.host.total
    assert process.usage.preemptions == 1
    machine.finish()


@pytest.mark.parametrize("policy", ["progress", "mlfq"])
def test_a_resume_finds_its_pages_sunk(cache: bool, policy: str) -> None:
    """One plan fetches one process and resumes another, whose slots the fetch takes: that one has
    to rise as well."""
    machine = booted(cache, slots=6, policy=policy)
    first = sunk(machine, 0)
    second = machine.spawn(tuple(range(20, 33)), 12)
    speak(machine, second, 2)
    process = stop(machine, second)
    memory = machine.kernel.memory
    reclaim(memory.frames, memory.index, memory.frames.total, memory.latest_first())
    assert process.space.missing == process.space.mapped and not process.space.deep
    assert memory.copies.host.free_places < machine.process(first).space.deep
    machine.step([machine.make_call(Kill(pid, Signal.CONT)) for pid in (first, second)])
    assert process.space.deep and process.state is State.FETCHING
    machine.finish()


def test_a_resume_whose_pages_sank_and_have_no_way_back() -> None:
    """All slots were taken after the plan was made: it is computed again, and nobody forgets to
    plan for that."""
    machine = deep_machine(slots=4)
    pid = sunk(machine, 0)
    process = machine.process(pid)
    memory, plan = machine.kernel.memory, machine.kernel.scheduler.plan
    taken = [memory.copies.host.take(process.space.pages[0]) for _ in range(4)]

    def resume(*about: Any) -> Plan:
        machine.kernel.scheduler.plan = plan  # type: ignore[method-assign]
        return Plan(resume=(pid,))

    machine.kernel.scheduler.plan = resume  # type: ignore[method-assign]
    machine.audit_every_step = False
    signal(machine, pid, Signal.CONT)
    assert process.space.mapped == 0 or process.state is not State.SWAPPED
    for place in taken:
        assert place is not None
        memory.copies.host.free(place[0])
    machine.audit_every_step = True
    machine.finish()


def test_a_plan_that_promises_too_much(cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode for which there is no page after all is planned again, and is in no pass."""
    machine = booted(cache)
    pid = machine.spawn(PROMPT, 12)
    speak(machine, pid, 2)
    memory, misses = machine.kernel.memory, machine.kernel.counters.plan_misses
    grow = memory.grow
    monkeypatch.setattr(memory, "grow", lambda process, tokens: False)
    while machine.kernel.counters.plan_misses == misses:
        assert machine.advance()
    assert machine.kernel.in_flight is None
    monkeypatch.setattr(memory, "grow", grow)
    machine.finish()
