"""The kernel's books against the ground truth. Tests run `check` after every step."""

from collections import Counter

from tokenix.kernel.core import Kernel
from tokenix.kernel.state import RESIDENT, State
from tokenix.mm import audit
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pfn, Pid
from tokenix.swap.slots import SlotState


def check(kernel: Kernel) -> None:
    """Raise AssertionError at the first broken invariant."""
    memory = kernel.memory
    spaces = [process.space for process in kernel.processes.values()]
    audit.check(memory.frames, memory.index, spaces, kernel.segments.pinned_pages())
    _check_slots(kernel)
    _check_pins(kernel)
    for process in kernel.processes.values():
        active = process.state in RESIDENT
        assert process.space.active == active, f"{process.pid} is {process.state.value}"
        assert process.todo_tokens >= (0 if process.max_tokens == 0 or not process.in_turn else 1)
        assert process.ends == sum(not hasattr(item, "token") for item in process.out)
        assert process.unread == sum(hasattr(item, "token") for item in process.out)
        assert process.unread <= kernel.params.pipe_tokens, "pipes are bounded"
        if process.state is State.RUNNING:
            flight = kernel.in_flight
            assert flight is not None and any(p is process for p in flight.processes())
        waits = memory.awaits(process.pid)
        moving = process.state in (State.SWAPPING_IN, State.SWAPPING_OUT)
        assert waits == moving, f"{process.pid} is {process.state.value}, awaits {waits}"
    for zombie in kernel.zombies.values():
        assert zombie.space.mapped == 0, "zombies hold no memory"
    _check_queues(kernel)


def check_idle(kernel: Kernel) -> None:
    """With no living process: every frame and slot is free or cached, nothing is pinned."""
    check(kernel)
    memory = kernel.memory
    assert not kernel.processes and kernel.in_flight is None
    pinned = len(kernel.segments.pinned_pages())
    free = memory.frames.count(FrameState.FREE) + memory.frames.count(FrameState.CACHED)
    assert free + pinned == memory.frames.total, "frames leak"
    assert memory.slots.count(SlotState.FREE) == memory.slots.total, "slots leak"
    assert not list(memory.copies.transfers.peek_all()), "transfers leak"
    assert not kernel.readers and not kernel.waiters, "blocked calls leak"


def _check_slots(kernel: Kernel) -> None:
    memory = kernel.memory
    held: Counter[int] = Counter()
    transfers = list(memory.copies.transfers.peek_all())
    pages = {
        id(page): page
        for source in (
            [page for process in kernel.processes.values() for page in process.space.pages],
            kernel.segments.pinned_pages(),
            [item.page for transfer in transfers for item in transfer.items],
        )
        for page in source
    }
    for page in pages.values():
        if page.slot is not None:
            held[page.slot] += 1
            assert memory.slots.state(page.slot) is SlotState.VALID, "a page's copy is valid"
    assert all(count == 1 for count in held.values()), "a slot belongs to one page"
    assert len(held) == memory.slots.count(SlotState.VALID), "valid slots are owned"


def _check_pins(kernel: Kernel) -> None:
    memory = kernel.memory
    pins: Counter[int] = Counter()
    for transfer in memory.copies.transfers.peek_all():
        for item in transfer.items:
            pins[item.pfn] += 1
    for source, target in memory.copies.peek_frame_copies():
        pins[source] += 1
        pins[target] += 1
    for pfn in range(memory.frames.total):
        assert memory.frames.pins(Pfn(pfn)) == pins[pfn], f"pins of frame {pfn}"


def _check_queues(kernel: Kernel) -> None:
    scheduler = kernel.scheduler
    seen: list[Pid] = []
    for queue in (
        scheduler.waiting, scheduler.ready, scheduler.held, scheduler.paused, scheduler.moving
    ):  # fmt: skip
        seen += list(queue)
    assert len(seen) == len(set(seen)), "a process is in one queue"
    for process in kernel.processes.values():
        asleep = bool(process.hold) and process.state in (State.NEW, State.SWAPPED)
        assert (process.pid in seen) != asleep, f"{process.pid} is queued unless it is held"
    assert len(seen) <= len(kernel.processes), "the dead are not queued"
