"""Recount everything from the ground up and compare with the books; tests do after each step."""

from collections import Counter
from collections.abc import Sequence

from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Pfn
from tokenix.mm.page import Page
from tokenix.mm.prefix import PrefixIndex
from tokenix.mm.space import AddressSpace


def check(
    frames: FrameTable,
    index: PrefixIndex,
    spaces: Sequence[AddressSpace],
    pinned_pages: Sequence[Page] = (),
) -> None:
    """Raise AssertionError at the first broken invariant.

    `pinned_pages`: pages that named segments keep (each counts as one active map).
    """
    _check_conservation(frames)
    _check_maps(spaces, pinned_pages)
    _check_spaces(frames, spaces)
    _check_index(frames, index)


def _check_conservation(frames: FrameTable) -> None:
    states = Counter(frames.state(Pfn(i)) for i in range(frames.total))
    for state in FrameState:
        assert states[state] == frames.count(state), f"count of {state.name} is off"
    assert sum(states.values()) == frames.total, "frames are conserved"
    for i in range(frames.total):
        page = frames.owner(Pfn(i))
        assert page is None or page.pfn == i, f"frame {i} and its owner disagree"
        assert not (page is None and frames.state(Pfn(i)) in (FrameState.HELD, FrameState.CACHED))
        findable = page is not None and (page.mapped > 0 or page.key is not None)
        assert page is None or findable, f"frame {i} is kept for nobody"


def _check_maps(spaces: Sequence[AddressSpace], pinned_pages: Sequence[Page]) -> None:
    mapped: Counter[int] = Counter()
    active: Counter[int] = Counter()
    pages: dict[int, Page] = {}
    for space in spaces:
        for page in space.pages:
            pages[id(page)] = page
            mapped[id(page)] += 1
            active[id(page)] += 1 if space.active else 0
    for page in pinned_pages:
        pages[id(page)] = page
        mapped[id(page)] += 1
        active[id(page)] += 1
    for key, page in pages.items():
        assert page.mapped == mapped[key], f"page mapped {page.mapped}, counted {mapped[key]}"
        assert page.active == active[key], f"page active {page.active}, counted {active[key]}"
        assert page.pfn is not None or page.clean, "a mapped page is somewhere"


def _check_spaces(frames: FrameTable, spaces: Sequence[AddressSpace]) -> None:
    writers: Counter[int] = Counter()
    for space in spaces:
        assert space.end <= space.mapped * space.page_tokens, "computed within the table"
        assert not space.gap or space.computed < space.gap * space.page_tokens < space.end
        assert not space.gap or space.active, "who is paused has no gap"
        full, whole = space.computed // space.page_tokens, space.end // space.page_tokens
        for vpn, page in enumerate(space.pages):
            if full <= vpn < space.gap or vpn >= whole:
                writers[id(page)] += 1
                assert page.mapped == 1, "a page that is not full is private"
                assert page.key is None, "a page that is not full has no name"
            assert len(page.recounts) == page.mapped, "whoever maps a page hears of its changes"
            if space.active and page.pfn is not None:
                state = frames.state(page.pfn)
                assert state in (FrameState.HELD, FrameState.IN_TRANSFER), "active pages are held"
    assert all(count == 1 for count in writers.values()), "a page has one writer"


def _check_index(frames: FrameTable, index: PrefixIndex) -> None:
    idle = [page for page in index.pages() if page.mapped == 0]
    assert len(idle) == index.count_idle(), "idle pages are listed"
    for page in index.pages():
        assert page.key is not None, "indexed pages are named"
        assert page.pfn is not None or page.clean, "a page that can be found is somewhere"
    for name, listed, mine in (
        ("frames", index.idle_frames, [p for p in idle if p.pfn is not None]),
        ("slots", index.idle_slots, [p for p in idle if p.slot is not None]),
        ("slots", index.idle_afloat, [p for p in idle if p.slot is not None and p.block is None]),
        ("blocks", index.idle_blocks, [p for p in idle if p.block is not None]),
    ):
        busy = [p for p in mine if p.loading or p.leaving or p.storing or p.rising]
        assert len(mine) - len(busy) <= len(listed) <= len(mine), f"idle pages with {name}"
