"""The kernel's books against the ground truth. Tests run `check` after every step."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenix.kernel.core import Kernel
from tokenix.kernel.memory import Memory
from tokenix.kernel.state import MOVING, RESIDENT, Hold, State
from tokenix.mm import audit
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pfn, Pid
from tokenix.mm.page import Page
from tokenix.mm.quota import TIERS
from tokenix.sched.entity import Qos
from tokenix.swap.spare import Spare, spare_kind
from tokenix.swap.tier import PlaceState, Tier
from tokenix.swap.transfers import Lane


def check(kernel: Kernel) -> None:
    """Raise AssertionError at the first broken invariant."""
    memory = kernel.memory
    spaces = [process.space for process in kernel.processes.values()]
    audit.check(memory.frames, memory.index, spaces, kernel.segments.pinned_pages())
    mapped = [page for process in kernel.processes.values() for page in process.space.pages]
    check_tiers(memory, [*mapped, *kernel.segments.pinned_pages()])
    check_pins(memory, kernel.images.pinned_slots(), kernel.images.count_arriving())
    _check_images(kernel)
    _check_flights(kernel)
    _check_covered(kernel)
    for process in kernel.processes.values():
        active = process.state in RESIDENT
        assert process.space.active == active, f"{process.pid} is {process.state.value}"
        assert process.todo_tokens >= (0 if process.max_tokens == 0 or not process.in_turn else 1)
        assert process.ends == sum(not hasattr(item, "token") for item in process.out)
        assert process.unread == sum(hasattr(item, "token") for item in process.out)
        assert process.unread <= kernel.params.pipe_tokens, "pipes are bounded"
        waits = memory.awaits(process.pid)
        assert waits == (process.state in MOVING), (
            f"{process.pid} is {process.state.value}, awaits {waits}"
        )
    assert kernel.pids == sorted([*kernel.processes, *kernel.zombies])
    _check_census(kernel)
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
    for tier in (memory.copies.host, memory.copies.disk):
        valid = tier.count(PlaceState.VALID)
        assert tier.free_places + valid == tier.total, "places leak"
        assert valid <= memory.index.count_idle() + pinned, "places are kept for nobody"
    assert not list(memory.copies.transfers.peek_all()), "transfers leak"
    assert not kernel.readers and not kernel.waiters, "blocked calls leak"
    assert kernel.parked_reads == 0, "they are counted"
    images = kernel.images
    assert not images.jobs and not images.pending and not images.kept, "images leak"


def check_tiers(memory: Memory, mapped: Sequence[Page]) -> None:
    """The lower tiers against all pages: those of processes, those that can be found, those under
    way."""
    copies = memory.copies
    under_way = [item.page for transfer in copies.transfers.peek_all() for item in transfer.items]
    pages = {id(p): p for p in (*mapped, *memory.index.pages(), *under_way)}.values()
    _check_tier(copies.host, [(page.slot, page.generation, page) for page in pages])
    _check_tier(copies.disk, [(page.block, page.block_generation, page) for page in pages])
    if memory.quotas.counting:
        _check_quotas(memory, pages)
    for kind in Spare:
        spare = {page.slot for page in pages if spare_kind(page) is kind}
        assert spare == {page.slot for page in memory.spare.pages(kind)}, f"{kind.value} slots"


def _check_quotas(memory: Memory, pages: Iterable[Page]) -> None:
    """What tenants have in each tier is counted."""
    counts: Counter[tuple[str, str]] = Counter()
    tenants = dict.fromkeys(page.tenant for page in pages)
    for page in pages:
        counts[page.tenant, "frames"] += page.pfn is not None
        counts[page.tenant, "host"] += any(
            place is not None for place in (page.slot, page.leaving, page.rising)
        )
        counts[page.tenant, "disk"] += page.block is not None or page.storing is not None
    for tenant in tenants:
        for tier in TIERS:
            assert memory.quotas.used(tenant, tier) == counts[tenant, tier], f"{tenant}: {tier}"


def _check_tier(tier: Tier, copies: list[tuple[int | None, int, Page]]) -> None:
    """Each valid place belongs to the one page that names it; what was written is accounted for."""
    owned = [(place, generation, page) for place, generation, page in copies if place is not None]
    for place, generation, page in owned:
        assert tier.state(place) is PlaceState.VALID, "a page's copy is valid"
        assert tier.owner(place) is page, "a place belongs to one page"
        assert tier.generation(place) == generation, "a page names its newest copy"
    assert len(owned) == tier.count(PlaceState.VALID), "valid places are owned"
    assert sum(tier.count(state) for state in PlaceState) == tier.total, "places are conserved"
    books = tier.statistics()
    assert books.written == books.returned + books.dropped + books.resident, "pages are accounted"


def check_pins(memory: Memory, saved: Sequence[int] = (), arriving: int = 0) -> None:
    """What copies in flight read and write is pinned, and nothing else is. `saved`: slots that are
    being written to images; `arriving`: pages that come out of some."""
    copies = memory.copies
    frames: Counter[int] = Counter()
    slots: Counter[int] = Counter(saved)
    blocks: Counter[int] = Counter()
    writing: Counter[Lane] = Counter()
    for transfer in copies.transfers.peek_all():
        writing[transfer.lane] += len(transfer.items)
        for item in transfer.items:
            if transfer.lane in (Lane.OUT, Lane.IN):
                frames[item.pfn] += 1
            if transfer.lane in (Lane.IN, Lane.STORE):
                slots[item.slot] += 1
            if transfer.lane is Lane.FETCH:
                blocks[item.block] += 1
    for source, target in copies.peek_frame_copies():
        frames[source] += 1
        frames[target] += 1
    for name, total, pins, counted in (
        ("frame", memory.frames.total, lambda i: memory.frames.pins(Pfn(i)), frames),
        ("slot", copies.host.total, copies.host.pins, slots),
        ("block", copies.disk.total, copies.disk.pins, blocks),
    ):
        for place in range(total):
            assert pins(place) == counted[place], f"pins of {name} {place}"
    into_slots = writing[Lane.OUT] + writing[Lane.FETCH] + arriving
    assert copies.host.count(PlaceState.WRITING) == into_slots, "slots are written by copies"
    assert copies.disk.count(PlaceState.WRITING) == writing[Lane.STORE], "so are blocks"


def _check_flights(kernel: Kernel) -> None:
    """Whoever lives and is in a pass is RUNNING, and nobody else; a row begins where what is
    computed ends, or the row before it, and has pages: but for those that are void."""
    flights = kernel.flights
    assert len(flights) <= kernel.info.depth, "the device takes no more"
    assert len(flights) == kernel.memory.frames.count_fences(), "a pass has its fence"
    running = [p.pid for p in kernel.processes.values() if p.state is State.RUNNING]
    members = {process.pid for flight in flights for process in flight.processes()}
    assert sorted(members & kernel.processes.keys()) == sorted(running), "RUNNING is in a pass"
    for pid in running:
        space = kernel.processes[pid].space
        at = space.computed
        for flight in flights:
            row = flight.places.get(pid)
            if row is not None and flight.starts[row] == at:
                at += flight.count_tokens(row)
                assert at <= space.mapped * space.page_tokens, f"{pid} writes to its own pages"


def _check_covered(kernel: Kernel) -> None:
    """Who runs, or may, misses no page but those of the load that it runs beside, alone, and those
    behind a gap."""
    copies = kernel.memory.copies
    covered = copies.covered
    if covered is not None:
        process = kernel.processes[covered.pid]
        assert process.state in (State.READY, State.RUNNING, State.STOPPED), "it does not wait"
        loads = {transfer.ticket for transfer in copies.transfers.peek_on(Lane.IN)}
        assert covered.ticket in loads, "what somebody runs beside is in flight"
        decodes = [member for flight in kernel.flights for member in flight.decodes]
        assert process not in decodes, "it has a prompt to compute"
    for process in kernel.processes.values():
        if process.state in (State.READY, State.RUNNING, State.STOPPED):
            there = process.space.pages[: process.space.gap or None]
            coming = {page.loading for page in there} - {None, copies.beside(process.pid)}
            assert not coming, f"{process.pid} may run without its pages"


def _check_images(kernel: Kernel) -> None:
    """Who is being suspended is held for that, and for nothing else; idle images are of those that
    wait for input."""
    images = kernel.images
    leaving = [pid for pid in kernel.processes if images.is_leaving(pid)]
    assert not set(leaving) & set(images.pending), "a process is saved once it has left"
    for pid, process in kernel.processes.items():
        suspended = pid in images.pending or pid in leaving
        assert suspended == bool(process.hold & Hold.SUSPEND), f"{pid} is held for no suspend"
        assert not (pid in leaving and process.out), "what is in an image is not read"
    for pid, path in images.kept.items():
        assert kernel.processes[pid].hold & Hold.INPUT and path in images.files


def _check_census(kernel: Kernel) -> None:
    """What is counted as it happens, against a count."""
    states = Counter(process.state for process in kernel.processes.values())
    states[State.READY] += states.pop(State.RUNNING, 0)
    living = {state: count for state, count in kernel.census.items() if state is not State.ZOMBIE}
    assert living == {state: states[state] for state in living}, "the census is right"
    waiting = [task.entity for task in kernel.scheduler.waiting.values()]
    eldest = kernel.scheduler.queues.eldest
    for qos in Qos:
        since_s = [entity.waiting_since_s for entity in waiting if entity.qos is qos]
        assert eldest.count(qos) == len(since_s), "those who wait are counted"
        assert eldest.since_s(qos) == min(since_s, default=None), "the eldest is known"


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
