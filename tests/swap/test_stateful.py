"""Swap in any order: copies end late, badly or never, while processes come, pause, fork and go.

No kernel and no scheduler: `Memory` is told what to do, by chance, within what the kernel may do.
"""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import SamplingParams, Store, SwapChanged, SwapOn
from tokenix.kernel.audit import check_pins, check_tiers
from tokenix.kernel.copies import Copies
from tokenix.kernel.landing import Lost, MemoryEvent
from tokenix.kernel.memory import Memory
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import MOVING, State
from tokenix.kernel.swapfile import FileState, SwapFile
from tokenix.mm import audit
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pfn, Pid, Ticket
from tokenix.mm.page import Page
from tokenix.mm.reclaim import reclaim
from tokenix.mm.space import AddressSpace
from tokenix.sched.entity import Qos, SchedEntity
from tokenix.swap.tier import PlaceState
from tokenix.swap.transfers import Lane
from tokenix.tests import stateful
from tokenix.tests.swap.tier import Tier

FRAMES, SLOTS, BLOCKS, PAGE = 5, 5, 4, 2
LIMIT = (FRAMES - 1) * PAGE
"""The longest sequence that fits with a page to spare."""
MOST_HUNG = 2
CHOICE = st.integers(0, 11)
SOME = st.frozensets(st.integers(0, 3), max_size=2)


class Swap(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tier = Tier()
        self.now_s = 0.0
        self._tickets = self._pids = 0
        info = DeviceInfo("naive", FRAMES, PAGE, 16, SLOTS, 256, 1 << 20, 0.01, 1e3, 1e-4, 1e-4)
        params = Params(sink_low_share=0.5, sink_high_share=0.5, sink_lead_s=-1e6, sink_held_s=0.0)
        self.memory = Memory(info, self.tier.submit, self._ticket, params)
        self.answers: list[object] = []
        self.file = SwapFile(
            self.memory, params, self.tier.submit, self._ticket, lambda _, a: self.answers.append(a)
        )
        self.living: list[Process] = []

    def _ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def _make(self, tokens: list[int], tenant: str) -> Process:
        self._pids += 1
        pid = Pid(self._pids)
        entity = SchedEntity(pid, Qos.STREAM, 0, tenant, 0.0, len(tokens), LIMIT - len(tokens))
        process = Process(
            pid, Pid(0), tenant, "", SamplingParams(), 0, frozenset(), 0.0,
            entity=entity, space=self.memory.new_space(pid, tenant), tokens=tokens,
            prompt_tokens=len(tokens), max_tokens=LIMIT - len(tokens),
        )  # fmt: skip
        self.living.append(process)
        return process

    def _pick(self, choice: int, *states: State) -> Process | None:
        pool = [p for p in self.living if not states or p.state in states]
        return pool[choice % len(pool)] if pool else None

    def _donors(self) -> list[AddressSpace]:
        return [p.space for p in self.living if p.state is State.READY]

    def _handle(self, events: list[MemoryEvent]) -> None:
        """As the kernel does."""
        for event in events:
            process = next(p for p in self.living if p.pid == event.pid)
            if isinstance(event, Lost) or process.state in (State.SWAPPING_OUT, State.FETCHING):
                process.state = State.SWAPPED
            elif process.state is State.SWAPPING_IN:
                self.memory.settle_in(process)
                process.state = State.READY

    # ---- processes ----

    @initialize(lengths=st.lists(st.integers(2, LIMIT - 1), min_size=2, max_size=3))
    def begin(self, lengths: list[int]) -> None:
        """Some are there, and the first is computed and paused."""
        for family, length in enumerate(lengths):
            self.spawn(family, length, "a")
        self.bring_in(0, 1.0)
        self.compute(0, LIMIT)
        self.pause(0, True)
        self.swapon()

    @rule(family=st.integers(0, 2), length=st.integers(1, LIMIT - 1), tenant=st.sampled_from("ab"))
    def spawn(self, family: int, length: int, tenant: str) -> None:
        if len(self.living) < 5:
            process = self._make([family * 50 + i // 3 for i in range(length)], tenant)
            self.memory.add(process)

    @rule(choice=CHOICE, fast_s=st.sampled_from([1.0, 1.0, 2e4, 2e4, 1e6]))
    def bring_in(self, choice: int, fast_s: float) -> None:
        """Swap-in where computing is slow, recompute where it is fast, split in between."""
        process = self._pick(choice, State.NEW, State.SWAPPED)
        if process is None:
            return
        if not self.memory.bring_in(process, fast_s, self.now_s):
            if self.memory.awaits(process.pid):
                process.state = State.FETCHING
            return
        process.state = State.SWAPPING_IN if self.memory.awaits(process.pid) else State.READY

    @rule(choice=CHOICE, count=st.integers(1, 5))
    def compute(self, choice: int, count: int) -> None:
        """Some tokens, and one more is drawn when all are computed."""
        process = self._pick(choice, State.READY)
        if process is None or not process.todo_tokens:
            return
        count = min(count, process.todo_tokens)
        if not self.memory.grow(process, count):
            return
        space = process.space
        gap = space.gap
        if gap:
            count = min(count, gap * PAGE - space.computed)
        for at in range(space.computed, space.computed + count):
            pfn = space.pages[at // PAGE].pfn
            assert pfn is not None
            self.tier.write(pfn, at % PAGE, (process.tenant, tuple(process.tokens[: at + 1])))
        for page in space.advance(process.tokens, space.computed + count):
            self.memory.dirty.push(process.pid, page)
        if gap and not space.gap and self.memory.await_tail(process):
            process.state = State.SWAPPING_IN
            return
        if not process.todo_tokens and process.length < LIMIT:
            process.tokens.append(process.length)

    @rule(choice=CHOICE, other=CHOICE)
    def swap_places(self, choice: int, other: int) -> None:
        """One makes room, another comes, and computes what it can."""
        self.pause(choice, True)
        while self._count_ending():
            self.end_copy(0, frozenset())
        self.bring_in(other, 1.0)
        self.compute(0, LIMIT)

    @rule(choice=CHOICE, keep=st.sampled_from([True, True, False]))
    def pause(self, choice: int, keep: bool) -> None:
        process = self._pick(choice, State.READY)
        if process is None:
            return
        self.memory.pause(process, keep, self._donors, self.now_s)
        process.state = State.SWAPPING_OUT if self.memory.awaits(process.pid) else State.SWAPPED

    @rule(choice=CHOICE)
    def fork(self, choice: int) -> None:
        parent = self._pick(choice)
        if parent is None or len(self.living) >= 5:
            return
        child = self._make(list(parent.tokens), parent.tenant)
        self.memory.fork(parent, child, parent.length)
        self.memory.add(child)
        child.state = State.SWAPPED if child.space.mapped else State.NEW

    @rule(choice=CHOICE)
    def kill(self, choice: int) -> None:
        process = self._pick(choice)
        if process is not None:
            self.memory.release(process)
            self.living.remove(process)

    @rule(choice=CHOICE)
    def kill_the_loading(self, choice: int) -> None:
        process = self._pick(choice, State.SWAPPING_IN)
        if process is not None:
            self.kill(self.living.index(process))

    # ---- the swap file ----

    @rule()
    def swapon(self) -> None:
        if self.file.state is FileState.OFF:
            self.file.swapon(0, "/", BLOCKS * 16)
        self.answer_swap()

    @rule()
    def swapoff(self) -> None:
        if self.file.state is FileState.ON:
            self.file.swapoff(0, self.now_s)

    @rule()
    def answer_swap(self) -> None:
        """The device opens or closes the file."""
        for command in self.tier.swaps:
            blocks = command.blocks if isinstance(command, SwapOn) else 0
            self.tier.blocks.clear()
            self.file.changed(SwapChanged(command.ticket, blocks, 1e-3, 1e-3))
        self.tier.swaps.clear()

    @rule()
    def work(self) -> None:
        self._handle(self.file.work(self.now_s))

    @rule(choice=CHOICE)
    def lose_slots(self, choice: int) -> None:
        """Somebody needs the host tier."""
        self.memory.make_slots(1 + choice % SLOTS, self._donors)

    @rule(choice=CHOICE)
    def sink(self, choice: int) -> None:
        """A whole process, and its pages give up what is above."""
        self.work()
        for ticket, command in list(self.tier.pending.items()):
            if isinstance(command, Store) and ticket not in self.tier.hung:
                self._handle(self.memory.complete(self.tier.end(ticket, frozenset()), self.now_s))
        self.memory.make_slots(1 + choice % SLOTS, self._donors)
        reclaim(self.memory.frames, self.memory.index, FRAMES, self.memory.latest_first())

    @rule(choice=CHOICE, fast_s=st.sampled_from([1.0, 1.0, 1e6]))
    def fetch(self, choice: int, fast_s: float) -> None:
        process = self._pick(choice, State.SWAPPED)
        if process is not None and process.space.deep:
            self.memory.fetch(process, fast_s, self.now_s)
            if self.memory.awaits(process.pid):
                process.state = State.FETCHING

    @rule(choice=CHOICE)
    def prefetch(self, choice: int) -> None:
        process = self._pick(choice, State.NEW)
        if process is not None:
            self.memory.prefetch_prefix(process, 1.0, self.now_s)

    # ---- daemons, the device, time ----

    @rule(full=st.booleans())
    def write_behind(self, full: bool) -> None:
        self.memory.write_behind(full, self._donors, self.now_s)

    @rule()
    def drop_stranded(self) -> None:
        self._handle(self.memory.drop_stranded()[1])

    @rule(choice=CHOICE, bad=SOME)
    def end_copy(self, choice: int, bad: frozenset[int]) -> None:
        """In any order, not only that of submission."""
        tickets = [ticket for ticket in self.tier.pending if ticket not in self.tier.hung]
        if tickets:
            done = self.tier.end(tickets[choice % len(tickets)], bad)
            self._handle(self.memory.complete(done, self.now_s))

    def _count_ending(self) -> int:
        return len(set(self.tier.pending) - set(self.tier.hung))

    @precondition(lambda self: len(self.tier.hung) < MOST_HUNG)
    @rule(choice=CHOICE)
    def hang(self, choice: int) -> None:
        """A copy never ends."""
        copies = self.memory.copies.transfers.peek_all()
        tickets = [t.ticket for t in copies if t.ticket not in self.tier.hung]
        if tickets:
            self.tier.hung.append(tickets[choice % len(tickets)])

    @rule(choice=CHOICE)
    def spoil(self, choice: int) -> None:
        """A page in a lower tier changes; its checksum does not."""
        pages = [("slot", slot) for slot in self.tier.slots]
        pages += [("block", block) for block in self.tier.blocks]
        if pages:
            self.tier.spoiled.add(pages[choice % len(pages)])

    @rule(choice=CHOICE)
    def damaged(self, choice: int) -> None:
        """All copies of somebody who is paused are damaged, and it comes back."""
        process = self._pick(choice, State.SWAPPED)
        if process is None:
            return
        for page in process.space.pages:
            self.tier.spoiled |= {("slot", page.slot)} if page.slot is not None else set()
            self.tier.spoiled |= {("block", page.block)} if page.block is not None else set()
        coming = [p for p in self.living if p.state in (State.NEW, State.SWAPPED)]
        self.bring_in(coming.index(process), 1.0)
        while self._count_ending():
            self.end_copy(0, frozenset())

    @rule(wait_s=st.sampled_from([0.1, 3.0]))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s
        self._handle(self.memory.expire(self.now_s))

    # ---- what must hold ----

    @invariant()
    def books_are_right(self) -> None:
        memory = self.memory
        audit.check(memory.frames, memory.index, [p.space for p in self.living])
        pins = self.tier.count_pins()
        for number in range(FRAMES):
            assert memory.frames.pins(Pfn(number)) == pins[Pfn(number)], f"pins of {number}"
        assert len(memory.dirty) <= 2 * FRAMES + 1
        for process in self.living:
            assert memory.awaits(process.pid) == (process.state in MOVING), process.state
            assert process.space.active == (process.state in (State.READY, State.SWAPPING_IN))

    @invariant()
    def places_are_conserved(self) -> None:
        """The kernel's own audit, of the tiers and of what copies pin."""
        check_tiers(self.memory, [page for p in self.living for page in p.space.pages])
        check_pins(self.memory)
        transfers = self.memory.copies.transfers
        for lane in Lane:
            waited = [t for t in transfers.peek_on(lane) if not t.abandoned]
            assert transfers.count_pages(lane) == sum(len(t.items) for t in waited)

    @invariant()
    def everybody_reads_its_own(self) -> None:
        for process in self.living:
            space = process.space
            behind = range(space.gap * PAGE, space.end) if space.gap else ()
            for at in (*range(space.computed), *behind):
                page = space.pages[at // PAGE]
                assert page.pfn is not None or process.state is not State.READY
                cell = (process.tenant, tuple(process.tokens[: at + 1]))
                for place in self._places(page):
                    assert place[at % PAGE] == cell, f"pid {process.pid}, token {at}"

    def _places(self, page: Page) -> list[dict[int, object]]:
        """Where its content can be read."""
        places = []
        if page.pfn is not None and page.loading is None:
            places.append(self.tier.frames[page.pfn])
        if page.slot is not None and ("slot", page.slot) not in self.tier.spoiled:
            generation, cells = self.tier.slots[page.slot]
            assert generation == page.generation
            places.append(cells)
        if page.block is not None and ("block", page.block) not in self.tier.spoiled:
            generation, cells = self.tier.blocks[page.block]
            assert generation == page.block_generation
            places.append(cells)
        return places

    def teardown(self) -> None:
        """All copies end but those that hang; everybody goes; nothing else is left."""
        while self._count_ending():
            self.end_copy(0, frozenset())
        self.wait(1000.0)
        while self.living:
            self.kill(0)
        self.books_are_right()
        self.places_are_conserved()
        memory, hung = self.memory, [self.tier.pending[t] for t in self.tier.hung]
        free = memory.frames.count(FrameState.FREE) + memory.frames.count(FrameState.CACHED)
        assert free + len(self.tier.count_pins()) == FRAMES
        if hung:
            return
        for tier in (memory.copies.host, memory.copies.disk):
            assert tier.free_places + tier.count(PlaceState.VALID) == tier.total
        for page in memory.index.pages():
            memory.forget_idle(page)
        for tier in (memory.copies.host, memory.copies.disk):
            assert tier.free_places == tier.total


def test_any_order_of_copies() -> None:
    stateful.run(Swap, examples=300, steps=40)


def publish_anyway(copies: Copies, ticket: Ticket, item: object, good: bool) -> None:
    LAND(copies, ticket, item, True)  # type: ignore[arg-type]


LAND = Copies._land_out


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Copies, "wait_for", lambda copies, pid, ticket: None),
        (Copies, "_land_out", publish_anyway),
        (Memory, "settle_in", lambda memory, process: None),
        (Memory, "lose", lambda memory, page: []),
    ],
)
def test_a_broken_part_is_found(
    part: type, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    with pytest.raises((AssertionError, KeyError)):
        stateful.run(Swap, examples=300, steps=40, shrink=False)
