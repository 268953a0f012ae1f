"""Frames, spaces, the index and reclaim in any order, against a memory of plain dictionaries."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Pfn, Slot
from tokenix.mm.page import Page
from tokenix.mm.reclaim import count_available, reclaim
from tokenix.mm.space import AddressSpace
from tokenix.tests import stateful
from tokenix.tests.mm.machinery import PAGE_TOKENS, Pool

FRAMES = 7
CHOICE = st.integers(0, 11)
"""Chooses among whatever there is."""

Cell = tuple[str, tuple[int, ...]]
"""KV of a token depends on its tenant's namespace and all tokens up to it."""


class Life:
    """One address space and what it is supposed to hold."""

    def __init__(self, space: AddressSpace, tenant: str) -> None:
        self.space = space
        self.tenant = tenant
        self.tokens: tuple[int, ...] = ()


class Spaces(RuleBasedStateMachine):
    """What is written goes into `cells` by frame, what is cleaned into `saved` by slot."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(FRAMES)
        self.lives: list[Life] = []
        self.cells: dict[Pfn, dict[int, Cell]] = {}
        self.saved: dict[Slot, dict[int, Cell]] = {}
        self.pins: list[Pfn] = []
        self.fences: list[set[Pfn]] = []
        """Of each forward in flight, the oldest first: what was released since the one before."""
        self.slots = 0
        release = self.pool.frames.release

        def note(page: Page) -> None:
            if self.fences and page.pfn is not None:
                self.fences[-1].add(page.pfn)
            release(page)

        self.pool.frames.release = note  # type: ignore[method-assign]

    # ---- doing ----

    def _pick(self, choice: int, active: bool | None = None) -> Life | None:
        pool = [life for life in self.lives if active is None or life.space.active == active]
        return pool[choice % len(pool)] if pool else None

    def _make_free(self, want: int) -> bool:
        """As the kernel does: what is cached makes room."""
        paused = [life.space for life in self.lives if not life.space.active]
        frames = self.pool.frames
        before = count_available(frames)
        made = reclaim(frames, self.pool.index, want, paused)
        assert made or before < want or self.fences, "what is free or cached can be had"
        assert not made or frames.count(FrameState.FREE) >= want
        return made

    def _bring(self, space: AddressSpace) -> bool:
        """Frames, and what was saved, for all pages."""
        absent = [page for page in space.pages if page.pfn is None]
        space.activate()
        if not self._make_free(len(absent)):
            space.pause()
            return False
        for page in absent:
            assert page.slot is not None, "nothing is lost"
            self.cells[self.pool.frames.take(page)] = dict(self.saved[page.slot])
        return True

    def _write(self, life: Life, count: int) -> None:
        """Compute some more tokens, if there are frames for them."""
        space = life.space
        tokens = (*life.tokens, *range(len(life.tokens), len(life.tokens) + count))
        growth = max(0, space.pages_for(len(tokens)) - space.mapped)
        if not self._make_free(growth):
            return
        space.grow(growth)
        for page in space.pages[space.computed // PAGE_TOKENS :]:
            page.slot = None  # its copy is stale now
            self.pool.frames.note(page)
        for at in range(space.computed, len(tokens)):
            pfn = space.pages[at // PAGE_TOKENS].pfn
            assert pfn is not None
            if at % PAGE_TOKENS == 0:
                self.cells[pfn] = {}
            self.cells[pfn][at % PAGE_TOKENS] = (life.tenant, tokens[: at + 1])
        life.tokens = tokens
        space.advance(tokens, len(tokens))

    @rule(tenant=st.sampled_from(["red", "blue"]), length=st.integers(1, 10))
    def spawn(self, tenant: str, length: int) -> None:
        """What others have in common with it is found."""
        life = Life(self.pool.space(tenant=tenant), tenant)
        self.lives.append(life)
        space, tokens = life.space, tuple(range(length))
        space.extend_known_keys(tokens, (length - 1) // PAGE_TOKENS)
        found = self.pool.index.lookup(space.keys)
        space.attach(found)
        life.tokens = tokens[: space.computed]
        self._write(life, length - space.computed)

    @rule(choice=CHOICE, count=st.integers(1, 6))
    def compute(self, choice: int, count: int) -> None:
        life = self._pick(choice, active=True)
        if life is not None:
            self._write(life, count)

    @rule(choice=CHOICE)
    def pause(self, choice: int) -> None:
        life = self._pick(choice, active=True)
        if life is not None:
            life.space.pause()

    @rule(choice=CHOICE)
    def resume(self, choice: int) -> None:
        life = self._pick(choice, active=False)
        if life is not None:
            self._bring(life.space)

    @rule(choice=CHOICE)
    def fork(self, choice: int) -> None:
        """A child shares the full pages; its tail is a copy, if there is a frame."""
        parent = self._pick(choice)
        if parent is None:
            return
        child = Life(self.pool.space(tenant=parent.tenant), parent.tenant)
        child.space.pause()
        self.lives.append(child)
        parent.space.share_full_pages(child.space, parent.space.computed)
        child.tokens = parent.tokens[: child.space.computed]
        tail = parent.space.pages[child.space.mapped : child.space.mapped + 1]
        if parent.space.computed % PAGE_TOKENS and tail[0].pfn is not None:
            source = tail[0].pfn
            self.pool.frames.pin(source)
            if self._make_free(1):
                page = child.space.append_tail(parent.space.computed)
                assert page.pfn is not None
                self.cells[page.pfn] = dict(self.cells[source])
                child.tokens = parent.tokens[: parent.space.computed]
            self.pool.frames.unpin(source)

    @rule(choice=CHOICE, keep=st.integers(0, 3))
    def lose(self, choice: int, keep: int) -> None:
        """All behind the first pages is to be computed again."""
        life = self._pick(choice)
        if life is not None and keep < life.space.mapped:
            gone = life.space.truncate(keep)
            assert all(page.mapped == 0 for page in gone)
            life.tokens = life.tokens[: life.space.computed]

    @rule(choice=CHOICE)
    def exit(self, choice: int) -> None:
        life = self._pick(choice)
        if life is not None:
            life.space.truncate(0)
            self.lives.remove(life)
            self.pool.spaces.remove(life.space)

    @rule(choice=CHOICE, which=CHOICE)
    def clean(self, choice: int, which: int) -> None:
        """A page gets a copy in the host tier."""
        life = self._pick(choice)
        if life is None or not life.space.pages:
            return
        page = life.space.pages[which % life.space.mapped]
        if page.pfn is not None and page.slot is None:
            self.slots += 1
            page.slot = Slot(self.slots)
            self.saved[page.slot] = dict(self.cells.get(page.pfn, {}))
            self.pool.frames.note(page)

    @rule(choice=CHOICE, which=CHOICE)
    def pin(self, choice: int, which: int) -> None:
        life = self._pick(choice)
        pages = [] if life is None else [p.pfn for p in life.space.pages if p.pfn is not None]
        if pages:
            self.pins.append(pages[which % len(pages)])
            self.pool.frames.pin(self.pins[-1])

    @precondition(lambda self: self.pins)
    @rule(choice=CHOICE)
    def unpin(self, choice: int) -> None:
        self.pool.frames.unpin(self.pins.pop(choice % len(self.pins)))

    @precondition(lambda self: len(self.fences) < 2)
    @rule()
    def raise_fence(self) -> None:
        """A forward begins."""
        self.fences.append(set())
        self.pool.frames.raise_fence()

    @precondition(lambda self: self.fences)
    @rule()
    def lift_fence(self) -> None:
        """The oldest one ends."""
        del self.fences[0]
        self.pool.frames.lift_fence()

    @rule(want=st.integers(0, FRAMES))
    def reclaim(self, want: int) -> None:
        self._make_free(want)

    # ---- what must hold ----

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check()

    @invariant()
    def everybody_reads_its_own(self) -> None:
        for life in self.lives:
            for at in range(life.space.computed):
                page = life.space.pages[at // PAGE_TOKENS]
                place = self.cells[page.pfn] if page.pfn is not None else self.saved[page.slot]
                assert place[at % PAGE_TOKENS] == (life.tenant, life.tokens[: at + 1])

    @invariant()
    def states_are_what_they_say(self) -> None:
        """Derived anew from who maps what, what is pinned, and what was released under a fence."""
        frames, index = self.pool.frames, self.pool.index.pages()
        fenced = set().union(*self.fences)
        for number in range(FRAMES):
            pfn = Pfn(number)
            users = [life.space for life in self.lives
                     if any(page.pfn == pfn for page in life.space.pages)]  # fmt: skip
            page = next((p for s in users for p in s.pages if p.pfn == pfn), None)
            cached = any(known.pfn == pfn for known in index)
            if pfn in self.pins or (pfn in fenced and not users and not cached):
                expected = FrameState.IN_TRANSFER
            elif page is None:
                expected = FrameState.CACHED if cached else FrameState.FREE
            elif any(space.active for space in users) or page.slot is None:
                expected = FrameState.HELD
            else:
                expected = FrameState.CACHED
            assert frames.state(pfn) is expected, f"frame {number}"

    def teardown(self) -> None:
        """Everything goes, and nothing is left."""
        while self.pins:
            self.unpin(0)
        while self.fences:
            self.lift_fence()
        while self.lives:
            self.exit(0)
        self.pool.check()
        assert count_available(self.pool.frames) == FRAMES


def test_any_order_of_changes() -> None:
    stateful.run(Spaces, examples=150, steps=40)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("unpin", lambda frames, pfn: None),
        ("lift_fence", lambda frames: frames._fences.popleft()),
        ("_hold_back", lambda frames, pfn: None),
        ("note", lambda frames, page: None),
    ],
)
def test_a_broken_table_is_found(
    name: str, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrameTable, name, broken)
    with pytest.raises(AssertionError):
        stateful.run(Spaces, examples=150, steps=40, shrink=False)
