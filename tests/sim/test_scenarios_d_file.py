"""Group D in the lowest tier: what is between the host slots and the swap file is verified, bounded
and never waited for in vain."""

from itertools import pairwise
from typing import Any

import pytest

from tokenix.drivers.sim import CostModel, Fault, FaultPlan
from tokenix.drivers.sim.faults import Kind
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import Kill, Signal, Vmstat
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pid
from tokenix.swap.sink import STORE_TRIES
from tokenix.swap.tier import PlaceState, Tier
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.deep import (
    PROMPT,
    WORTH_LOADING,
    answer,
    deep_machine,
    moved,
    on_lane,
    signal,
    sink,
    speak,
    stop,
    sunk,
    swapon,
    take_all,
    until,
)
from tokenix.tests.sim.machine import SimMachine


def tiers(machine: SimMachine) -> tuple[Tier, Tier]:
    copies = machine.kernel.memory.copies
    return copies.host, copies.disk


def stopped(machine: SimMachine, first: int) -> Pid:
    """A process that has said two of twelve tokens, and rests."""
    pid = machine.spawn(tuple(range(first, first + 9)), 12)
    speak(machine, pid, 2)
    stop(machine, pid)
    return pid


def booted(cache: bool, *faults: Fault, **options: Any) -> SimMachine:
    params = {"prefix_cache": cache, **options.pop("params", {})}
    return deep_machine(*faults, params=params, **options)


def test_d1_stores_wait_for_the_copy_that_writes(cache: bool) -> None:
    """D1: nothing is stored from a slot before the copy into it has passed its fence."""
    machine = booted(cache, Fault("delay_out", delay_s=1.5))
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    signal(machine, pid, Signal.STOP)
    process = machine.process(pid)
    late = False
    while process.space.pages[0].block is None:
        leaving = [page for page in process.space.pages if page.leaving is not None]
        storing = [item.page for copy in on_lane(machine, Lane.STORE) for item in copy.items]
        assert not set(leaving) & set(storing)
        late |= bool(leaving)
        assert machine.advance()
    assert late
    signal(machine, pid, Signal.CONT)
    machine.finish()


@pytest.mark.parametrize("kind", ["delay_store", "delay_fetch"])
def test_d2_no_place_is_reused_while_it_is_read(kind: Kind) -> None:
    """D2: killed while its pages are stored or fetched: what is read is free when that is done."""
    machine = booted(False, Fault(kind, nth=0, delay_s=1.0), slots=6)
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    if kind == "delay_store":
        stop(machine, pid, rest_s=0.5)
        lane, tier = Lane.STORE, tiers(machine)[0]
    else:
        sink(machine, pid)
        signal(machine, pid, Signal.CONT)
        until(machine, pid, State.FETCHING)
        lane, tier = Lane.FETCH, tiers(machine)[1]
    items = [item for copy in on_lane(machine, lane) for item in copy.items]
    read = [item.slot if lane is Lane.STORE else item.block for item in items]
    signal(machine, pid, Signal.KILL)
    doomed = [place for place in read if tier.state(place) is PlaceState.DOOMED]
    assert doomed == read
    others = [machine.spawn(tuple(range(n, n + 9)), 8) for n in (100, 120)]
    for other in others:
        stop(machine, other, rest_s=0.1)
    assert [tier.state(place) for place in doomed] == [PlaceState.DOOMED] * len(doomed)
    machine.run(until_s=machine.now_s + 2.0)
    assert not tier.count(PlaceState.DOOMED), "its end frees them"
    for other in others:
        signal(machine, other, Signal.CONT)
    machine.finish()


@pytest.mark.parametrize("kind", ["delay_fetch", "hang_fetch"])
def test_d3_what_has_not_risen_is_not_there(cache: bool, kind: Kind) -> None:
    """D3: a page on its way up is found by nobody, loaded by nobody and stored again by nobody."""
    machine = booted(cache, Fault(kind, nth=0, delay_s=1.0))
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    process = sink(machine, pid)
    signal(machine, pid, Signal.CONT)
    until(machine, pid, State.FETCHING)
    signal(machine, pid, Signal.STOP)
    rising = [page for page in process.space.pages if page.rising is not None]
    assert rising
    other = machine.spawn(PROMPT, 4)
    machine.run(until_s=machine.now_s + 0.9)
    assert machine.ended[other].reason is ExitReason.LENGTH, "it did not wait"
    assert machine.process(other).usage.cached_tokens == 0
    assert all(page.slot is None and page.pfn is None for page in rising)
    sent = on_lane(machine, Lane.IN, Lane.STORE)
    assert not [item for copy in sent for item in copy.items if item.page in rising]
    machine.run(until_s=machine.now_s + 5.0)
    signal(machine, pid, Signal.CONT)
    machine.run()
    machine.check_output(pid)
    assert (process.usage.recomputed_tokens > 0) == (kind == "hang_fetch")


def test_d5_identity_under_load(cache: bool, seed: int) -> None:
    """D5: many streams go through all tiers, every lane fails, and every output is right."""
    rates: dict[Kind, float] = {
        "fail_in": 0.05, "fail_out": 0.05, "corrupt_slot": 0.05, "lose_slot": 0.05,
        "fail_store": 0.1, "fail_fetch": 0.1, "corrupt_block": 0.1, "lose_block": 0.1,
        "delay_fetch": 0.05, "delay_store": 0.05,
    }  # fmt: skip
    sinks = {"sink_held_s": 0.0, "sink_low_share": 0.5, "sink_high_share": 0.5}
    machine = SimMachine(
        16, 10, "progress", Params(poison=True, prefix_cache=cache, **sinks),  # type: ignore[arg-type]
        faults=FaultPlan(seed, rates, delay_s=4.0), cost=WORTH_LOADING,
    )  # fmt: skip
    answer(machine, swapon(machine, 40))
    pids = [machine.spawn(tuple(range(n, n + 9)), 30) for n in range(6)]
    for turn in range(120):
        pid = pids[turn % 6]
        if pid in machine.kernel.processes:
            machine.call(Kill(pid, Signal.STOP))
            machine.run(until_s=machine.now_s + 0.05)
            take_all(machine)
        if turn >= 6 and pids[(turn + 1) % 6] in machine.kernel.processes:
            machine.call(Kill(pids[(turn + 1) % 6], Signal.CONT))
    for pid in pids:
        if pid in machine.kernel.processes:
            machine.call(Kill(pid, Signal.CONT))
    machine.finish()
    assert moved(machine, Lane.STORE) > 20 and moved(machine, Lane.FETCH) > 20


@pytest.mark.parametrize("kind", ["fail_fetch", "corrupt_block", "lose_block", "fail_store"])
@pytest.mark.parametrize("pages", [None, (0,), (1, 2)])
def test_d7_d14_what_the_file_lost_is_computed_again(
    cache: bool, kind: Kind, pages: tuple[int, ...] | None
) -> None:
    """D3, D7, D14: a failed, corrupt or vanished page of the file is recomputed, never served."""
    machine = booted(cache, Fault(kind, nth=0, pages=pages))
    pid = machine.spawn(PROMPT, 20)
    speak(machine, pid, 3)
    if kind == "fail_store":
        process = stop(machine, pid)
        assert all(page.block is not None for page in process.space.pages), "tried again"
        take_all(machine)
    else:
        process = sink(machine, pid)
    signal(machine, pid, Signal.CONT)
    machine.finish()
    assert machine.kernel.counters.copies_failed == 1, "stale records are not tried again"
    assert bool(machine.kernel.memory.pages_lost) == (kind != "fail_store")
    assert bool(process.usage.recomputed_tokens) == (kind != "fail_store")


@pytest.mark.parametrize("kind", ["hang_fetch", "delay_fetch"])
def test_d8_a_fetch_has_a_deadline(cache: bool, kind: Kind) -> None:
    """D8: after it, the pages are computed again; no frame was held, and slots and blocks are free
    when it ends. Behind a fetch that hangs nobody else waits for the file."""
    machine = booted(cache, Fault(kind, nth=0, delay_s=20.0))
    pids = [sunk(machine, first) for first in (0, 20)]
    begun_s = machine.now_s
    for pid in pids:
        signal(machine, pid, Signal.CONT)
        machine.run(until_s=begun_s + 3.0)
    assert not machine.kernel.memory.frames.count(FrameState.IN_TRANSFER)
    machine.run(until_s=begun_s + 6.0)
    assert all(machine.ended[pid].reason is ExitReason.LENGTH for pid in pids)
    assert [copy.abandoned for copy in on_lane(machine, Lane.FETCH)] == [True]
    host, disk = tiers(machine)
    assert host.count(PlaceState.WRITING) == disk.count(PlaceState.DOOMED) > 0
    for pid in pids:
        machine.check_output(pid)
    if kind == "delay_fetch":
        machine.run(until_s=begun_s + 60.0)
        machine.finish()
        assert not host.count(PlaceState.WRITING) and not disk.count(PlaceState.DOOMED)


@pytest.mark.parametrize("kind", ["hang_store", "delay_store"])
def test_d8_a_store_has_a_deadline(cache: bool, kind: Kind) -> None:
    """D8: its pages go on without it. Nothing is stored behind one that hangs, so a dead disk costs
    the host tier no more than one batch of slots; when it ends, all come back."""
    machine = booted(cache, Fault(kind, nth=0, delay_s=20.0))
    pids = [stopped(machine, first) for first in (0, 20, 40)]
    assert [copy.abandoned for copy in on_lane(machine, Lane.STORE)] == [True]
    stored = moved(machine, Lane.STORE)
    for pid in pids:
        signal(machine, pid, Signal.CONT)
        machine.run(until_s=machine.now_s + 1.0)
        assert machine.ended[pid].reason is ExitReason.LENGTH
    assert moved(machine, Lane.STORE) == stored <= 4
    host, disk = tiers(machine)
    assert disk.count(PlaceState.WRITING) == stored
    assert host.total - host.free_places - host.count(PlaceState.VALID) <= stored
    for pid in pids:
        machine.check_output(pid)
    if kind == "delay_store":
        machine.run(until_s=60.0)
        answer(machine, machine.start(Vmstat()))
        machine.finish()
        assert not disk.count(PlaceState.WRITING)


def test_d9_d18_the_file_is_not_asked_if_computing_is_quicker(cache: bool) -> None:
    """D9, D18: where a fetch takes longer than the prefill, a process that comes back is computed,
    and so is a newcomer whose prompt is in the file."""
    machine = booted(cache, cost=CostModel(fetch_page_s=40.0))
    pid = machine.spawn(PROMPT, 20)
    speak(machine, pid, 3)
    process = sink(machine, pid)
    signal(machine, pid, Signal.CONT)
    machine.run(until_s=machine.now_s + 1.0)
    assert machine.ended[pid].reason is ExitReason.LENGTH
    assert process.usage.recomputed_tokens > 0
    take_all(machine)
    other = machine.spawn(PROMPT, 4)
    machine.run(until_s=machine.now_s + 1.0)
    assert machine.ended[other].reason is ExitReason.LENGTH
    assert moved(machine, Lane.FETCH) == 0
    machine.finish()


def with_sunk_prompt(machine: SimMachine) -> Pid:
    """Somebody has ended whose prompt is in the file only, found by content."""
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 4)
    sink(machine, pid)
    signal(machine, pid, Signal.KILL)
    keys = machine.kernel.memory.index
    assert len(keys.idle_blocks) and not len(keys.idle_slots) and not len(keys.idle_frames)
    return pid


def test_a_prompt_in_the_file_is_there_when_its_turn_comes() -> None:
    """D9's other side: for a newcomer that has to wait, its prompt rises."""
    machine = deep_machine()
    with_sunk_prompt(machine)
    first = machine.spawn(tuple(range(100, 135)), 6)
    machine.advance()
    other = machine.spawn(PROMPT, 4)
    process = machine.process(other)
    machine.finish()
    assert moved(machine, Lane.FETCH) > 0
    usage = process.usage
    assert usage.cached_tokens == usage.cached_file_tokens == len(PROMPT) - 1
    assert {first, other} <= set(machine.ended)


@pytest.mark.parametrize("kind", ["fail_fetch", "hang_fetch", "delay_fetch"])
def test_d19_d21_looking_costs_nothing_and_keeps_nothing(kind: Kind) -> None:
    """D19, D21: nobody waits for what is looked up in the file: the newcomer has its first token as
    if there were none. What it has asked for is pinned until it has come, and not longer."""
    machine = deep_machine(Fault(kind, nth=0, delay_s=5.0))
    with_sunk_prompt(machine)
    begun_s = machine.now_s
    other = machine.spawn(PROMPT, 4)
    assert [copy.lane for copy in on_lane(machine, Lane.FETCH)] == [Lane.FETCH]
    machine.run(until_s=begun_s + 1.0)
    assert machine.ended[other].reason is ExitReason.LENGTH
    assert machine.process(other).usage.ttft_s == pytest.approx(0.13, abs=0.05)
    machine.check_output(other)
    machine.run(until_s=begun_s + 30.0)
    if kind != "hang_fetch":
        machine.finish()
        host, disk = tiers(machine)
        assert not any(disk.pins(block) for block in range(disk.total))
        assert not host.count(PlaceState.WRITING)


def test_d10_what_goes_down_comes_up_or_is_dropped(cache: bool) -> None:
    """D10: each tier's counters in vmstat account for each page at every moment."""
    machine = booted(cache, Fault("fail_fetch", nth=1), Fault("corrupt_block", nth=2))
    last = {"host.written": 0.0, "disk.written": 0.0}
    for turn in range(12):
        pid = sunk(machine, 20 * turn % 60)
        signal(machine, pid, Signal.CONT if turn % 4 else Signal.KILL)
        machine.run(until_s=machine.now_s + 0.05)
        stats = machine.call(Vmstat())
        for tier in ("host", "disk"):
            count = {name[5:]: number for name, number in stats.items() if name.startswith(tier)}
            places = (count[state.name.lower()] for state in PlaceState)
            assert sum(places) == count["total"]
            assert count["written"] == count["returned"] + count["dropped"] + count["valid"]
            assert count["written"] >= last[f"{tier}.written"]
            last[f"{tier}.written"] = count["written"]
    machine.finish()
    stats = machine.call(Vmstat())
    assert stats["disk.written"] > stats["disk.returned"] > 0 and stats["disk.dropped"] > 0


def test_d11_published_at_once_and_whole(cache: bool) -> None:
    """D11: a page has a block when its store has ended, a slot when its fetch has; not before."""
    slow = CostModel(prefill_token_s=1.0, store_page_s=0.1, fetch_page_s=0.1)
    machine = booted(cache, cost=slow)
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 2)
    signal(machine, pid, Signal.STOP)
    process = machine.process(pid)
    while not on_lane(machine, Lane.STORE):
        assert machine.advance()
    (store,) = on_lane(machine, Lane.STORE)
    machine.run(until_s=machine.now_s + 0.05)
    assert all(item.page.block is None for item in store.items)
    while on_lane(machine, Lane.STORE):
        assert machine.advance()
    assert all(item.page.block is not None for item in store.items)
    take_all(machine)
    signal(machine, pid, Signal.CONT)
    until(machine, pid, State.FETCHING)
    (fetch,) = on_lane(machine, Lane.FETCH)
    machine.run(until_s=machine.now_s + 0.05)
    assert all(item.page.slot is None for item in fetch.items)
    until(machine, pid, State.SWAPPING_IN)
    assert all(page.block is None for page in process.space.pages), "it has moved"
    machine.finish()


def test_d12_all_is_full_and_the_kernel_sleeps(cache: bool) -> None:
    """D12, D16: frames, slots and blocks are taken by stopped processes: no step is made until
    something happens, nothing grows, and whoever goes on is right."""
    machine = booted(cache, frames=8, slots=2, blocks=2)
    pids = [stopped(machine, first) for first in (0, 20, 40)]
    host, disk = tiers(machine)
    assert (host.count(PlaceState.VALID), disk.count(PlaceState.VALID)) == (2, 2)
    steps = machine.steps
    machine.run(until_s=machine.now_s + 600.0)
    assert machine.steps - steps <= 4, "it waits for nothing"
    for pid in pids:
        signal(machine, pid, Signal.CONT)
    machine.finish()


def test_d12_d14_what_cannot_be_stored_is_left_alone(cache: bool) -> None:
    """D12, D14: a disk that fails every store, or a slot that has lost its page, is not tried over
    and over; it is neither asked without a pause nor for ever."""
    machine = booted(cache, Fault("fail_store"))
    pid = machine.spawn(PROMPT, 8)
    speak(machine, pid, 3)
    process = stop(machine, pid, rest_s=60.0)
    pages = process.space.mapped
    assert moved(machine, Lane.STORE) == STORE_TRIES * pages
    failed = [
        event for event in machine.kernel.trace.since(0, 1 << 30) if event.kind == "copy-failed"
    ]
    gaps = [b.time_s - a.time_s for a, b in pairwise(failed)]
    assert min(gaps) >= machine.kernel.params.copy_retry_s
    signal(machine, pid, Signal.CONT)
    machine.finish()


def test_d16_the_smallest_tiers_there_are(cache: bool) -> None:
    """D16: one slot and one block. Nobody gets more, and nobody waits for it."""
    machine = booted(cache, slots=1, blocks=1)
    pids = [stopped(machine, first) for first in (0, 20, 40)]
    for said in (4, 6, 8):
        for pid in pids:
            take_all(machine)
            signal(machine, pid, Signal.CONT)
            speak(machine, pid, said)
            stop(machine, pid, rest_s=0.5)
    for pid in pids:
        signal(machine, pid, Signal.CONT)
    machine.finish()
    last = sunk(machine, 60)
    signal(machine, last, Signal.CONT)
    machine.finish()
    assert moved(machine, Lane.STORE) > 1 and moved(machine, Lane.FETCH) == 1


def test_d17_fetches_wait_for_no_store(cache: bool) -> None:
    """D17: while a store takes its time, a process comes back from the file."""
    machine = booted(cache, Fault("delay_store", nth=1, delay_s=1.9))
    pids = [sunk(machine, 0), machine.spawn(tuple(range(20, 29)), 12)]
    speak(machine, pids[1], 2)
    signal(machine, pids[1], Signal.STOP)
    while not on_lane(machine, Lane.STORE):
        assert machine.advance()
    begun_s = machine.now_s
    signal(machine, pids[0], Signal.CONT)
    machine.run(until_s=begun_s + 1.0)
    assert machine.ended[pids[0]].reason is ExitReason.LENGTH
    assert on_lane(machine, Lane.STORE), "it is still under way"
    signal(machine, pids[1], Signal.CONT)
    machine.finish()


def test_d17_nothing_sinks_without_need(cache: bool) -> None:
    """D17: a paused stream keeps its slots while enough are free."""
    machine = booted(cache, slots=64, params={"sink_held_s": 1e6})
    pids = [stopped(machine, first) for first in (0, 20, 40)]
    assert moved(machine, Lane.OUT) > 0 and moved(machine, Lane.STORE) == 0
    for pid in pids:
        signal(machine, pid, Signal.CONT)
    machine.finish()
