"""Group D: copies. What is not verified is never served, what does not come is not waited for."""

import pytest

from tokenix.drivers.sim import CostModel, Fault, FaultPlan
from tokenix.drivers.sim.faults import Kind
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import Fork, Kill, Signal
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(50, 63))


def machine_with(*faults: Fault, cache: bool = True, **options: object) -> SimMachine:
    costs = options.pop("cost", CostModel())
    return SimMachine(
        12, 32, "progress", Params(poison=True, prefix_cache=cache),
        faults=FaultPlan(0, {}, faults), cost=costs, **options,
    )  # fmt: skip


def stop(machine: SimMachine, pid: Pid) -> None:
    """Stop it, and let the link come to rest."""
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=machine.now_s + 30.0)
    assert machine.process(pid).state is State.SWAPPED


def evict(machine: SimMachine, prompt_tokens: int = 30) -> Pid:
    """Somebody needs (nearly) all frames: what is paused must leave them."""
    pid = machine.spawn(tuple(range(100, 100 + prompt_tokens)), 10)
    machine.run(until_s=machine.now_s + 5.0)
    return pid


def test_d1_copies_wait_for_the_writer(cache: bool) -> None:
    """D1: nothing is copied out while the forward that writes it runs, however long it takes."""
    machine = machine_with(cache=cache, cost=CostModel(base_s=0.3))
    pid = machine.spawn(PROMPT, 12)
    machine.run(until_s=1.0)
    for _ in range(3):
        machine.call(Kill(pid, Signal.STOP))
        flight = machine.kernel.in_flight
        assert flight is not None and machine.process(pid).state is State.RUNNING
        for transfer in machine.kernel.memory.copies.transfers.peek_all():
            tail = machine.process(pid).space.computed // 4
            written = machine.process(pid).space.pages[tail:]
            assert not [item for item in transfer.items if item.page in written]
        machine.run(until_s=machine.now_s + 2.0)
        machine.call(Kill(pid, Signal.CONT))
        machine.run(until_s=machine.now_s + 0.4)
    machine.finish()


def test_d2_a_frame_is_not_reused_while_it_is_stored(cache: bool) -> None:
    """D2: killed while its pages leave: their frames are free only when the copy is done."""
    machine = machine_with(cache=cache, cost=CostModel(out_page_s=0.5))
    pid = machine.spawn(PROMPT, 12)
    machine.run(until_s=0.03)
    machine.call(Kill(pid, Signal.STOP))
    while machine.process(pid).state is not State.SWAPPING_OUT:
        machine.advance()
    machine.call(Kill(pid, Signal.KILL))
    frames = machine.kernel.memory.frames
    leaving = [
        item.pfn
        for transfer in machine.kernel.memory.copies.transfers.peek_all()
        for item in transfer.items
    ]
    assert leaving and all(frames.state(pfn) is FrameState.IN_TRANSFER for pfn in leaving)
    machine.spawn(tuple(range(100, 130)), 10)
    machine.run(until_s=machine.now_s + 0.2)
    machine.finish()


def test_d3_half_loaded_pages_are_not_stored(cache: bool) -> None:
    """D3: stopped again while it loads: what has not arrived is not copied out as truth."""
    machine = machine_with(cache=cache, cost=CostModel(in_page_s=0.01, prefill_token_s=0.1))
    pid = machine.spawn(PROMPT, 12)
    while len(machine.output[pid]) < 3:
        machine.advance()
    stop(machine, pid)
    evict(machine)
    machine.call(Kill(pid, Signal.CONT))
    while machine.process(pid).state is not State.SWAPPING_IN:
        machine.advance()
    machine.call(Kill(pid, Signal.STOP))
    loading = [page for page in machine.process(pid).space.pages if page.loading is not None]
    assert loading
    assert not any(page.leaving for page in loading)
    machine.run(until_s=machine.now_s + 5.0)
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()


@pytest.mark.parametrize("kind", ["fail_in", "corrupt_slot", "lose_slot", "fail_out"])
@pytest.mark.parametrize("pages", [None, (0,), (1, 2)])
def test_d7_d14_what_is_lost_is_computed_again(
    cache: bool, kind: Kind, pages: tuple[int, ...] | None
) -> None:
    """D3, D7, D14: a failed, corrupt or vanished page is recomputed, never served; once."""
    machine = machine_with(Fault(kind, pages=pages), cache=cache, cost=CostModel(in_page_s=1e-6))
    pid = machine.spawn(PROMPT, 20)
    machine.run(until_s=0.04)
    stop(machine, pid)
    evict(machine)
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()
    if kind != "fail_out":
        assert machine.kernel.memory.pages_lost
        assert machine.kernel.counters.copies_failed == 1, "stale records are not tried again"


def test_d5_loads_under_load(cache: bool) -> None:
    """D5: many streams come and go over a slow and lossy link; every output is right."""
    rates: dict[Kind, float] = {"fail_in": 0.1, "corrupt_slot": 0.1, "lose_slot": 0.1}
    machine = SimMachine(
        16, 64, "progress", Params(poison=True, prefix_cache=cache),
        faults=FaultPlan(3, rates), cost=CostModel(in_page_s=1e-4),
    )  # fmt: skip
    pids = [machine.spawn(tuple(range(n, n + 9)), 40) for n in range(6)]
    for turn in range(40):
        pid = pids[turn % 6]
        if pid in machine.kernel.processes:
            machine.call(Kill(pid, Signal.STOP))
            machine.run(until_s=machine.now_s + 0.02)
        if pid in machine.kernel.processes:
            machine.call(Kill(pid, Signal.CONT))
    machine.finish()


@pytest.mark.parametrize("kind", ["hang_out", "hang_in"])
def test_d8_a_copy_that_never_ends_is_given_up(cache: bool, kind: Kind) -> None:
    """D8: after its deadline nobody waits for it; its frames stay out of use."""
    machine = machine_with(
        Fault(kind, nth=0), cache=cache, cost=CostModel(in_page_s=1e-6, out_page_s=1e-6)
    )
    pid = machine.spawn(PROMPT, 8)
    machine.run(until_s=0.02)
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=10.0)
    assert machine.process(pid).state is State.SWAPPED
    evict(machine, 30 if kind == "hang_in" else 18)
    machine.call(Kill(pid, Signal.CONT))
    machine.run()
    machine.check_output(pid)
    hung = list(machine.kernel.memory.copies.transfers.peek_all())
    assert len(hung) == 1 and hung[0].abandoned
    frames = machine.kernel.memory.frames
    assert all(frames.state(item.pfn) is FrameState.IN_TRANSFER for item in hung[0].items)
    assert frames.count(FrameState.IN_TRANSFER) == len(hung[0].items)


def test_d8_who_needs_lost_frames_fails_with_a_reason(cache: bool) -> None:
    """D8: what cannot fit beside the frames of a copy that never ends is ended, and told why."""
    machine = machine_with(Fault("hang_out", nth=0), cache=cache)
    pid = machine.spawn(PROMPT, 8)
    machine.run(until_s=0.02)
    machine.call(Kill(pid, Signal.STOP))
    big = machine.spawn(tuple(range(100, 134)), 10, qos=Qos.BATCH)
    small = machine.spawn(PROMPT[:4], 6)
    machine.run(until_s=300.0)
    assert machine.ended[big].reason is ExitReason.ERROR
    assert "never ended" in machine.ended[big].error
    assert machine.ended[small].reason is ExitReason.LENGTH
    machine.call(Kill(pid, Signal.CONT))
    machine.run()
    machine.check_output(pid)


def test_d8_a_copy_that_never_ends_holds_up_no_other(cache: bool) -> None:
    """D8: given up, it is not on its way any more, and pages are written behind as before."""
    machine = machine_with(Fault("hang_out", nth=0), cache=cache)
    pid = machine.spawn(PROMPT, 4, keep_open=True)
    machine.run(until_s=10.0)
    copies = machine.kernel.memory.copies
    assert [transfer.abandoned for transfer in copies.transfers.peek_all()] == [True]
    stop(machine, pid)
    view = machine.kernel.memory.view()
    assert view.outgoing_frames == 0 and copies.queue_s(Lane.OUT) == 0.0
    before = copies.stats.pages[Lane.OUT]
    other = machine.spawn(tuple(range(100, 110)), 12)
    machine.run(until_s=machine.now_s + 5.0)
    machine.check_output(other)
    assert copies.stats.pages[Lane.OUT] > before, "its pages were cleaned while it ran"
    machine.call(Kill(pid, Signal.KILL))


def test_d8_a_page_whose_copy_never_ends_is_computed_again(cache: bool) -> None:
    """D8: what a stopped process has left in a copy that hangs does not wait for it when it goes
    on, nor does anybody who needs its other frames."""
    machine = machine_with(Fault("hang_out", nth=0), Fault("hang_out", nth=1), cache=cache)
    pid = machine.spawn(PROMPT, 8)
    machine.run(until_s=0.02)
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=10.0)
    other = evict(machine, 16)
    assert machine.ended[other].reason is ExitReason.LENGTH
    machine.call(Kill(pid, Signal.CONT))
    machine.run(until_s=machine.now_s + 5.0)
    assert machine.ended[pid].reason is ExitReason.LENGTH
    machine.check_output(pid)


@pytest.mark.parametrize("kind", ["delay_out", "delay_in"])
def test_d8_a_late_copy_does_no_harm(cache: bool, kind: Kind) -> None:
    """D8: what arrives after its deadline is dropped, and its frames come back."""
    late = Fault(kind, nth=0, delay_s=6.0)
    machine = machine_with(late, cache=cache, cost=CostModel(in_page_s=1e-6, out_page_s=1e-6))
    pid = machine.spawn(PROMPT, 8)
    machine.run(until_s=0.02)
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=3.0 if kind == "delay_out" else 10.0)
    evict(machine)
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()


@pytest.mark.parametrize("kind", ["delay_out", "hang_out"])
def test_d8_resumed_while_its_last_page_is_late(cache: bool, kind: Kind) -> None:
    """D8: a fork goes on while the page it is going to write is still being read; when that takes
    too long, the page is computed again in another frame."""
    machine = machine_with(Fault(kind, delay_s=6.0), cache=cache)
    pid = machine.spawn(PROMPT[:6], 8)
    while len(machine.output[pid]) < 4:
        machine.advance()
    (child,) = machine.call(Fork(pid))
    machine.asked[child], machine.output[child] = machine.asked[pid], list(machine.output[pid])
    machine.call(Kill(child, Signal.STOP))
    while machine.process(child).space.pages[-1].leaving is None:
        machine.advance()
    assert machine.process(child).space.computed % 4, "the last page is not full"
    machine.call(Kill(child, Signal.CONT))
    machine.follow(child)
    machine.run(until_s=machine.now_s + 1.0)
    assert machine.process(child).state is State.SWAPPING_IN, "it waits for the copy"
    machine.run(until_s=machine.now_s + 2.0)
    assert machine.ended[child].reason is ExitReason.LENGTH
    machine.check_output(child)


def test_d9_d18_the_slow_way_is_not_taken(cache: bool) -> None:
    """D9, D18: where loading takes longer than computing, it is computed."""
    machine = machine_with(cache=cache, cost=CostModel(in_page_s=1.0))
    pid = machine.spawn(PROMPT, 20)
    machine.run(until_s=0.04)
    stop(machine, pid)
    evict(machine)
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()
    assert machine.kernel.memory.copies.stats.pages[Lane.IN] == 0


def test_d10_pages_out_are_dropped_or_resident(cache: bool) -> None:
    """D10: every slot is free, being written, or holds the copy of a page; none at the end."""
    machine = machine_with(cache=cache)
    pids = [machine.spawn(tuple(range(n, n + 9)), 30) for n in range(3)]
    for pid in pids:
        machine.run(until_s=machine.now_s + 0.03)
        machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=1.0)
    assert machine.kernel.memory.copies.stats.pages[Lane.OUT] > 0
    for pid in pids:
        machine.call(Kill(pid, Signal.CONT))
    machine.finish()  # the audit counts the slots after each step


def test_d15_a_copy_of_a_page_that_was_written_on_is_stale(cache: bool) -> None:
    """D15: the partial page went out, came back and grew; its old copy is never loaded again."""
    machine = machine_with(cache=cache, cost=CostModel(in_page_s=1e-6))
    pid = machine.spawn(PROMPT, 16)
    for _ in range(5):
        machine.advance()
        stop(machine, pid)
        evict(machine)
        machine.call(Kill(pid, Signal.CONT))
        machine.advance()
    assert machine.kernel.memory.copies.stats.pages[Lane.IN]
    machine.finish()


def test_d17_loads_come_first(cache: bool) -> None:
    """D17: while anything loads, nothing is written behind."""
    machine = machine_with(cache=cache, cost=CostModel(in_page_s=0.01, prefill_token_s=0.1))
    pid = machine.spawn(PROMPT, 12)
    while len(machine.output[pid]) < 3:
        machine.advance()
    stop(machine, pid)
    evict(machine)
    other = machine.spawn(tuple(range(200, 203)), 36)
    machine.call(Kill(pid, Signal.CONT))
    transfers = machine.kernel.memory.copies.transfers
    loads = 0
    while pid in machine.kernel.processes or other in machine.kernel.processes:
        before = {t.ticket for t in transfers.peek_all()}
        loading = transfers.count_pages(Lane.IN)
        machine.advance()
        loads += loading > 0
        if loading and transfers.count_pages(Lane.IN):
            new = [t for t in transfers.peek_all() if t.ticket not in before]
            assert not [t for t in new if t.lane is Lane.OUT]
    assert loads
    machine.finish()
