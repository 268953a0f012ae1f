"""Frames, spaces, the prefix index and reclaim; and that their audit can fail."""

from collections.abc import Callable

import pytest

from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Block, Pfn, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.mm.prefix import chain_key, root_key
from tokenix.mm.reclaim import Watermarks, count_available, reclaim
from tokenix.tests.mm.machinery import Pool

TEN = tuple(range(10))


# ---- frames ----


def test_a_frame_follows_its_owner_and_its_pins() -> None:
    frames = FrameTable(2)
    page = Page(mapped=1, active=1)
    pfn = frames.take(page)
    states = [frames.state(pfn)]
    frames.pin(pfn)
    states.append(frames.state(pfn))
    frames.unpin(pfn)
    page.active = 0
    page.slot = Slot(0)
    frames.note(page)
    states.append(frames.state(pfn))
    frames.release(page)
    states.append(frames.state(pfn))
    assert states == [
        FrameState.HELD, FrameState.IN_TRANSFER, FrameState.CACHED, FrameState.FREE
    ]  # fmt: skip
    assert frames.take_freed_log() == (pfn,) and frames.take_freed_log() == ()


def test_a_fence_keeps_what_is_released_under_it() -> None:
    frames = FrameTable(2)
    page = Page(mapped=1, active=1)
    pfn = frames.take(page)
    frames.raise_fence()
    frames.release(page)
    assert frames.state(pfn) is FrameState.IN_TRANSFER
    frames.pin(pfn)
    frames.lift_fence()
    assert frames.state(pfn) is FrameState.IN_TRANSFER
    frames.unpin(pfn)
    assert frames.state(pfn) is FrameState.FREE


def test_a_frame_waits_for_the_newest_forward_at_its_release() -> None:
    frames = FrameTable(3)
    pages = [Page(mapped=1, active=1) for _ in range(3)]
    pfns = [frames.take(page) for page in pages]
    for page in pages[:2]:
        frames.raise_fence()
        frames.release(page)
    free = []
    while frames.fence_up:
        frames.lift_fence()
        free.append([pfn for pfn in pfns if frames.state(pfn) is FrameState.FREE])
    assert free == [pfns[:1], pfns[:2]]


def test_a_frame_is_stranded_if_nobody_runs_with_it_and_it_is_the_only_copy() -> None:
    frames = FrameTable(2)
    page = Page(mapped=1, active=1)
    pfn = frames.take(page)
    assert not frames.stranded
    page.active = 0
    frames.note(page)
    assert frames.stranded == {pfn: page}
    page.block = Block(3)
    frames.note(page)
    assert not frames.stranded and frames.state(pfn) is FrameState.CACHED


@pytest.mark.parametrize(
    "misuse",
    [
        lambda frames, page: frames.take(page),
        lambda frames, page: frames.unpin(page.pfn),
        lambda frames, page: frames.release(Page(pfn=page.pfn)),
        lambda frames, page: frames.lift_fence(),
        lambda frames, page: frames.hold_back([page.pfn]),
    ],
)
def test_misuse_is_caught(misuse: Callable[[FrameTable, Page], object]) -> None:
    frames = FrameTable(2)
    page = Page(mapped=1, active=1)
    frames.take(page)
    with pytest.raises(AssertionError):
        misuse(frames, page)


# ---- spaces and the index ----


def test_full_pages_are_named_and_found() -> None:
    pool = Pool()
    space = pool.space(TEN)
    assert [page.key is not None for page in space.pages] == [True, True, False]
    keys = [chain_key(root_key("red"), TEN[:4])]
    keys.append(chain_key(keys[0], TEN[4:8]))
    assert space.keys == keys and pool.index.lookup(keys) == space.pages[:2]
    assert pool.index.lookup([keys[1]]) == space.pages[1:2]
    assert pool.index.lookup([b"?", keys[1]]) == [], "only from the start"
    pool.check()


def test_tenants_do_not_meet() -> None:
    pool = Pool()
    red, blue = pool.space(TEN[:4]), pool.space(TEN[:4], "blue")
    assert red.keys != blue.keys and red.pages[0] is not blue.pages[0]
    pool.check()


def test_equal_content_has_one_name_holder() -> None:
    pool = Pool()
    first, second = pool.space(TEN[:4]), pool.space(TEN[:4])
    assert first.pages[0].key is not None and second.pages[0].key is None
    second.truncate(0)
    assert pool.frames.count(FrameState.HELD) == 1
    pool.check()


def test_unmapped_pages_stay_findable_until_reclaimed() -> None:
    pool = Pool(4)
    space = pool.space(TEN)
    gone = space.truncate(0)
    assert len(gone) == 1 and pool.index.count_idle() == 2
    assert pool.frames.count(FrameState.CACHED) == 2
    pool.check()
    again = pool.space()
    again.extend_keys(TEN, 2)
    again.attach(pool.index.lookup(again.keys))
    assert again.computed == 8 and pool.index.count_idle() == 0
    pool.check()


def test_a_prompt_is_hashed_as_far_as_it_is_known() -> None:
    pool = Pool(4)
    pool.space(TEN)
    long = (*TEN[:8], *range(100, 500))
    again = pool.space()
    again.extend_known_keys(long, len(long) // 4)
    assert len(again.keys) == 3  # two pages that are known, and the one where that ends
    assert len(pool.index.lookup(again.keys)) == 2
    again.extend_known_keys(long, len(long) // 4)
    assert len(again.keys) == 3
    stranger = pool.space(tenant="blue")
    stranger.extend_known_keys(long, len(long) // 4)
    assert len(stranger.keys) == 1 and pool.index.lookup(stranger.keys) == []


def test_without_a_cache_nothing_is_kept() -> None:
    pool = Pool(cache=False)
    pool.space(TEN).truncate(0)
    assert pool.frames.count(FrameState.FREE) == 8


def test_children_share_full_pages() -> None:
    pool = Pool()
    parent, child = pool.space(TEN), pool.space()
    child.pause()
    parent.share_full_pages(child, parent.computed)
    assert child.pages == parent.pages[:2] and child.computed == 8
    assert parent.exclusive == 3 and parent.exclusive_dirty == 3
    child.activate()
    assert parent.exclusive == 1
    pool.check()
    parent.truncate(0)
    parent.pause()
    assert child.exclusive == 2
    pool.check()


def test_counts_follow_changes() -> None:
    pool = Pool()
    space = pool.space(TEN)
    space.pages[0].slot = Slot(0)
    pool.frames.note(space.pages[0])
    assert (space.missing, space.exclusive, space.exclusive_dirty) == (0, 3, 2)
    space.pause()
    assert (space.exclusive, space.idle_resident) == (0, 3)
    pool.frames.release(space.pages[0])
    assert (space.missing, space.idle_resident) == (1, 2)


# ---- reclaim ----


def test_reclaim_takes_idle_pages_by_last_use_then_clean_ones_from_the_tail() -> None:
    pool = Pool(6)
    old, new, paused = (
        pool.space(tuple(range(n, n + 4 * k))) for n, k in ((0, 1), (50, 1), (90, 2))
    )
    old_page, new_page, pages = old.pages[0], new.pages[0], list(paused.pages)
    old.truncate(0)
    new.truncate(0)
    paused.pause()
    for slot, page in enumerate(pages):
        page.slot = Slot(slot)
        pool.frames.note(page)
    assert count_available(pool.frames) == 6
    gone = []
    for want in (3, 4, 5, 6):
        assert reclaim(pool.frames, pool.index, want, [paused])
        kept = [page for page in (old_page, new_page, *pages) if page.pfn is not None]
        gone.append(4 - len(kept))
        pool.check()
    assert gone == [1, 2, 3, 4]
    assert pages[0].pfn is None and pages[0].slot == 0, "its copy is kept"


def test_watermarks_have_hysteresis() -> None:
    """Below the low mark the daemon fills up to the high one, and then leaves the cache alone."""
    pool = Pool(16)
    space = pool.space(tuple(range(16 * 4)))
    marks = Watermarks(low=2, high=5)
    assert marks.want(pool.frames) == 0, "nothing is cached"
    space.truncate(4)  # twelve pages that nobody maps now, findable by their content
    assert pool.frames.count(FrameState.CACHED) == 12
    assert marks.want(pool.frames) == 5
    assert reclaim(pool.frames, pool.index, marks.want(pool.frames), [])
    assert pool.frames.count(FrameState.FREE) == 5 and marks.want(pool.frames) == 0
    space.grow(3)
    assert marks.want(pool.frames) == 0, "between the marks nothing happens"
    space.grow(1)
    assert marks.want(pool.frames) == 5
    pool.check()


def test_reclaim_leaves_what_is_needed_or_dirty() -> None:
    pool = Pool(4)
    running, paused = pool.space(TEN[:4]), pool.space(tuple(range(20, 24)))
    paused.pause()
    assert not reclaim(pool.frames, pool.index, 3, [paused])
    assert running.pages[0].pfn is not None and paused.pages[0].pfn is not None
    pool.check()


# ---- the audit can fail ----


def _break_state(pool: Pool) -> None:
    pool.frames._counts[FrameState.FREE] += 1


def _break_owner(pool: Pool) -> None:
    pool.spaces[0].pages[0].pfn = Pfn(7)


def _leak(pool: Pool) -> None:
    page = pool.spaces[0].pages.pop()
    page.mapped = page.active = 0


def _double_map(pool: Pool) -> None:
    pool.spaces[1].pages.append(pool.spaces[0].pages[2])


def _miscount(pool: Pool) -> None:
    pool.spaces[0].pages[0].mapped += 1


def _overcompute(pool: Pool) -> None:
    pool.spaces[0].computed = 99


def _name_a_partial_page(pool: Pool) -> None:
    pool.spaces[0].pages[2].key = b"?"


def _forget_an_idle_page(pool: Pool) -> None:
    page = pool.spaces[0].pages[0]
    pool.spaces[0].truncate(0)
    pool.index.forget(page)


def _lose_both(pool: Pool) -> None:
    pool.spaces[0].pause()
    pool.frames.release(pool.spaces[0].pages[0])


def _list_an_idle_page_nowhere(pool: Pool) -> None:
    page = pool.spaces[0].pages[0]
    pool.spaces[0].truncate(0)
    assert page.use is not None
    pool.index.idle_frames.remove(page.use)


@pytest.mark.parametrize(
    "damage",
    [
        _break_state, _break_owner, _leak, _double_map, _miscount, _overcompute,
        _name_a_partial_page, _forget_an_idle_page, _lose_both, _list_an_idle_page_nowhere,
    ],
)  # fmt: skip
def test_the_audit_sees(damage: Callable[[Pool], None]) -> None:
    pool = Pool()
    pool.space(TEN)
    pool.space(tuple(range(40, 44)))
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check()


def test_loading_pages_are_not_found() -> None:
    pool = Pool()
    space = pool.space(TEN[:4])
    space.pages[0].loading = Ticket(1)
    assert pool.index.lookup(space.keys) == []


def test_reclaim_under_a_fence_gives_up_no_more_than_is_wanted() -> None:
    """Frames released while a forward runs are free only when it has retired: they count."""
    pool = Pool(8)
    spaces = [pool.space(tuple(range(16))), pool.space(tuple(range(20, 36)))]
    for one in spaces:
        for number, page in enumerate(one.pages):
            page.slot = Slot(10 * one.pid + number)
        one.pause()
    pool.frames.raise_fence()
    assert not reclaim(pool.frames, pool.index, 3, spaces), "not free yet"
    assert pool.frames.count_coming() == 3 and [one.idle_resident for one in spaces] == [1, 4]
    assert not reclaim(pool.frames, pool.index, 3, spaces) and pool.frames.count_coming() == 3
    pool.frames.lift_fence()
    assert pool.frames.count(FrameState.FREE) == 3


def test_the_page_that_begins_most_alike_is_found_behind_the_same_prefix() -> None:
    pool = Pool(16)
    first = (1, 2, 3, 4)
    for rest in ((5, 6, 7, 8), (5, 6, 9, 9), (7, 7, 7, 7)):
        pool.space((*first, *rest))
    pool.space((9, 9, 9, 9, 5, 6, 7, 8))
    space = pool.space()
    space.extend_keys((*first, 5, 6, 9), 1)
    parent = space.parent_key(1)
    found = pool.index.lookup_partial(parent, (5, 6, 9))
    assert found is not None and found == (pool.spaces[1].pages[1], 3)
    assert pool.index.lookup_partial(parent, (8,)) is None
    pool.spaces[1].truncate(0)
    pool.index.forget(found[0])
    assert pool.index.lookup_partial(parent, (5, 6, 9)) == (pool.spaces[0].pages[1], 2)


def test_any_string_names_a_tenant() -> None:
    names = ["", "red", "\udc80", "\ud800", "\U0001f40d"]
    assert len({root_key(name) for name in names}) == len(names)
