"""Slots, transfers, the link, the way back and write-behind, by table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenix.mm.ids import Block, Pfn, Pid, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.swap.link import DEADLINE_FLOOR_S, Link
from tokenix.swap.restore import SPLIT_GAIN, Costs, choose_restore
from tokenix.swap.sink import choose_sinking
from tokenix.swap.spare import Spare, SpareSlots, spare_kind
from tokenix.swap.tier import PlaceState, Tier, TierStats
from tokenix.swap.transfers import Item, Lane, Transfer, TransferTable
from tokenix.swap.writeback import DirtyQueue, choose_stranded

# ---- tiers ----


def test_a_place_has_a_new_generation_for_each_content() -> None:
    tier, page = Tier(1), Page()
    seen = []
    for publish in (True, False, True):
        taken = tier.take(page)
        assert taken is not None and tier.take(page) is None
        place, generation = taken
        assert tier.owner(place) is page and tier.generation(place) == generation
        seen.append(generation)
        assert tier.state(place) is PlaceState.WRITING
        if publish:
            tier.publish(place)
        tier.free(place)
    assert seen == [1, 2, 3]
    assert [tier.count(state) for state in PlaceState] == [1, 0, 0, 0]


def test_places_are_not_freed_or_published_twice() -> None:
    tier = Tier(2)
    taken = tier.take(Page())
    assert taken is not None
    tier.publish(taken[0])
    with pytest.raises(AssertionError):
        tier.publish(taken[0])
    tier.free(taken[0])
    with pytest.raises(AssertionError):
        tier.free(taken[0])


def test_a_place_that_is_read_is_free_when_the_last_reader_is_done() -> None:
    tier = Tier(1)
    taken = tier.take(Page())
    assert taken is not None
    place = taken[0]
    tier.publish(place)
    tier.pin(place)
    tier.pin(place)
    tier.free(place)
    assert tier.state(place) is PlaceState.DOOMED and tier.take(Page()) is None
    tier.unpin(place)
    assert tier.free_places == 0
    tier.unpin(place)
    assert tier.free_places == 1


def test_d10_what_is_written_is_returned_dropped_or_there() -> None:
    """D10: pages go out and never come back in the counters."""
    tier = Tier(4)
    places = [tier.take(Page()) for _ in range(4)]
    taken = [place[0] for place in places if place is not None]
    for place in taken[:3]:
        tier.publish(place)
    tier.note_read(taken[0])
    for place in (taken[0], taken[1], taken[3]):
        tier.free(place)
    assert tier.statistics() == TierStats(written=3, returned=1, dropped=1, resident=1)


# ---- what can be given up ----


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        (Page(mapped=1), None),
        (Page(slot=Slot(0), mapped=1), None),
        (Page(slot=Slot(0), block=Block(0), mapped=1), Spare.DOUBLE),
        (Page(slot=Slot(0), block=Block(0), key=b"k"), Spare.DOUBLE),
        (Page(slot=Slot(0), key=b"k"), Spare.CACHED),
        (Page(slot=Slot(0), pfn=Pfn(0), mapped=1, active=1), Spare.DONOR),
        (Page(slot=Slot(0), pfn=Pfn(0), mapped=1, active=1, loading=Ticket(1)), None),
        (Page(slot=Slot(0), block=Block(0), mapped=1, storing=Ticket(1)), None),
        (Page(slot=Slot(0), mapped=1, active=1), None),
    ],
)
def test_why_a_slot_is_spare(page: Page, kind: Spare | None) -> None:
    assert spare_kind(page) is kind
    spare = SpareSlots()
    spare.note(page)
    spare.note(page)
    assert len(spare) == (kind is not None)
    if kind is not None and page.slot is not None:
        assert spare.peek(kind) is page
        spare.drop(page.slot)
        assert len(spare) == 0 and spare.peek(kind) is None


# ---- what sinks ----


def host_page(slot: int, **fields: object) -> Page:
    return Page(slot=Slot(slot), mapped=1, **fields)  # type: ignore[arg-type]


def test_held_sink_before_cached_before_patient_and_none_twice() -> None:
    held, cached, patient = host_page(0), Page(slot=Slot(1), key=b"k"), host_page(2)
    stored, runs = host_page(3, block=Block(0)), host_page(4, active=1)
    under_way, gone = host_page(5, storing=Ticket(1)), Page(slot=Slot(6))
    waiting = [stored, held, runs, under_way, gone]
    assert choose_sinking(waiting, [cached], [patient, held], 9) == [held, cached, patient]
    assert choose_sinking(waiting, [cached], [patient], 2) == [held, cached]


# ---- transfers ----


def transfer(ticket: int, pages: int, deadline_s: float) -> Transfer:
    items = tuple(Item(Page(), Slot(i), Pfn(i)) for i in range(pages))
    return Transfer(Ticket(ticket), Lane.OUT, items, 0.0, deadline_s)


def test_transfers_are_found_by_ticket_in_any_order() -> None:
    table = TransferTable()
    for ticket, pages in ((1, 3), (2, 1), (3, 2)):
        table.add(transfer(ticket, pages, 10.0 - ticket))
    assert table.count_pages(Lane.OUT) == 6 and table.next_deadline_s() == 7.0
    assert table.take(Ticket(2)) is not None and table.take(Ticket(2)) is None
    assert table.count_pages(Lane.OUT) == 5


def test_overdue_transfers_are_told_once_and_stay_until_their_fence() -> None:
    table = TransferTable()
    table.add(transfer(1, 1, 5.0))
    assert table.take_overdue(4.9) == [] and table.count_pages(Lane.OUT) == 1
    assert [late.ticket for late in table.take_overdue(5.0)] == [1]
    assert table.count_pages(Lane.OUT) == 0, "nobody waits for it"
    assert table.take_overdue(6.0) == [] and table.next_deadline_s() is None
    assert table.take(Ticket(1)) is not None and table.count_pages(Lane.OUT) == 0


# ---- link ----


def test_the_link_learns_its_rate() -> None:
    link = Link(1.0, 1.0)
    for _ in range(60):
        link.note(Lane.IN, 4, 0.8, 0)
    assert link.s_per_page(Lane.IN) == pytest.approx(0.2, rel=0.01)
    assert link.s_per_page(Lane.OUT) == 1.0
    link.note(Lane.OUT, 1, 2.0, 1)
    assert link.s_per_page(Lane.OUT) == pytest.approx(1.0), "what was ahead took its time too"


def test_deadlines_grow_with_the_queue() -> None:
    link = Link(0.1, 0.1)
    assert link.deadline_s(Lane.IN, 0, 0) == DEADLINE_FLOOR_S
    assert link.deadline_s(Lane.IN, 5, 5) == 2 * link.deadline_s(Lane.IN, 5, 0)


# ---- the way back ----


def pages_of(where: str) -> list[Page]:
    """d: on the device, h: in the host tier, f: in the swap file only."""
    made = {"d": Page(pfn=Pfn(0)), "h": Page(slot=Slot(0)), "f": Page(block=Block(0))}
    return [made[letter] for letter in where]


@pytest.mark.parametrize(
    ("where", "page_s", "queued_s", "rate", "way", "at"),
    [
        ("dddd", 1.0, 9.0, 1.0, "swap-in", None),
        ("hhhh", 0.001, 0.0, 1000.0, "swap-in", None),
        ("hhhh", 0.1, 0.0, 1000.0, "recompute", 0),
        ("ddhh", 0.1, 0.0, 1000.0, "recompute", 2),
        ("hhhh", 0.01, 1.0, 1000.0, "recompute", 0),
        ("hhhh", 0.016, 0.0, 1000.0, "split", (0, 2)),
        ("ddhhhhhh", 0.016, 0.0, 1000.0, "split", (2, 5)),
        ("hhhhhhhh", 0.006, 0.0, 1000.0, "split", (0, 2)),
        ("hhhhhhhh", 0.001, 0.0, 1000.0, "swap-in", None),
        ("hhhh", 0.1, 0.0, 0.0, "swap-in", None),
        ("hhff", 0.001, 0.0, 1000.0, "recompute", 2),
        ("ffhh", 0.001, 0.0, 1000.0, "recompute", 0),
        ("ffhhhhhh", 0.001, 0.0, 1000.0, "recompute", 0),
        ("fhhhhhhhhhhhhhhhhhhh", 0.001, 0.0, 1000.0, "swap-in", None),
        ("ddfhhf", 0.001, 0.0, 100.0, "swap-in", None),
    ],
)
def test_the_cheapest_way_back_is_taken(
    where: str, page_s: float, queued_s: float, rate: float, way: str, at: object
) -> None:
    """16 tokens a page; the swap file is a hundred times slower than the link."""
    costs = Costs(page_s, 100 * page_s, queued_s, 0.0, rate)
    pages = pages_of(where)
    chosen = choose_restore(pages, 16 * len(pages), 16, costs)
    assert (chosen.way, chosen.head or chosen.cut) == (way, at)


@given(
    st.text("dhf", min_size=1, max_size=24), st.integers(1, 16), st.floats(1e-4, 1e-1),
    st.floats(1e-4, 1.0), st.floats(0, 1.0), st.floats(100, 1e5),
)  # fmt: skip
def test_no_way_back_is_much_quicker_than_the_one_taken(
    where: str, last: int, page_s: float, fetch_s: float, queued_s: float, rate: float
) -> None:
    costs = Costs(page_s, fetch_s, queued_s, queued_s, rate)
    pages = pages_of(where)
    computed = 16 * (len(pages) - 1) + last
    missing = [page.pfn is None for page in pages]
    ways = [costs.load_s(where.count("h"), where.count("f"))]
    for vpn in range(len(pages)):
        head = where[:vpn]
        again_s = costs.compute_s(computed - 16 * vpn)
        ways.append(costs.load_s(head.count("h"), head.count("f")) + again_s)
    chosen = choose_restore(pages, computed, 16, costs)
    assert chosen.seconds <= min(ways) * (1 + 1e-9)
    if "f" not in where and any(missing):
        first = missing.index(True)
        splits = [
            max(costs.compute_s(16 * (vpn - first)), costs.load_s(sum(missing[vpn:]), 0))
            for vpn in range(first + 1, computed // 16 + 1)
            if sum(missing[vpn:])
        ]
        assert chosen.seconds <= min([*ways, *splits]) / SPLIT_GAIN * (1 + 1e-9)


# ---- write-behind ----


def full_page(frame: int) -> Page:
    return Page(pfn=Pfn(frame), mapped=1, active=1)


def test_stranded_pages_are_chosen_unless_a_copy_is_under_way() -> None:
    pages = [full_page(0), full_page(1), full_page(2), full_page(3)]
    pages[0].leaving = Ticket(1)
    pages[2].slot = Slot(0)
    assert choose_stranded(pages, 10) == [pages[1], pages[3]]
    assert choose_stranded(pages, 1) == [pages[1]]


def test_pages_are_cleaned_in_the_order_in_which_they_became_full() -> None:
    queue = DirtyQueue(capacity=8)
    pages = [full_page(frame) for frame in range(6)]
    for number, page in enumerate(pages):
        queue.push(Pid(number), page)
    queue.push(Pid(9), pages[4])  # once more: it is taken once
    pages[1].loading = Ticket(2)
    pages[2].pfn = None
    pages[3].mapped = 0
    assert queue.take(2) == [(Pid(0), pages[0]), (Pid(4), pages[4])]
    assert queue.take(2) == [(Pid(5), pages[5]), (Pid(9), pages[4])], "nothing copies it so far"


def test_the_dirty_queue_is_bounded_by_the_pages_that_can_be_cleaned() -> None:
    queue = DirtyQueue(capacity=4)
    page, gone = full_page(0), full_page(1)
    gone.mapped = 0
    for _ in range(100):
        queue.push(Pid(1), page)
        queue.push(Pid(2), gone)
        assert len(queue) <= 2 * 4 + 1
    assert queue.take(10) == [(Pid(1), page)] and queue.take(10) == []
