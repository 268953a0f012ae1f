"""Slots, transfers, the link, the way back and write-behind, by table."""

import pytest

from tokenix.mm.ids import Pfn, Pid, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.swap.link import DEADLINE_FLOOR_S, Link
from tokenix.swap.restore import Restore, choose_restore
from tokenix.swap.slots import SlotState, SlotTable
from tokenix.swap.transfers import Direction, Item, Transfer, TransferTable
from tokenix.swap.writeback import choose_pages
from tokenix.tests.mm.machinery import Pool

# ---- slots ----


def test_a_slot_has_a_new_generation_for_each_content() -> None:
    slots = SlotTable(1)
    seen = []
    for publish in (True, False, True):
        taken = slots.take()
        assert taken is not None and slots.take() is None
        slot, generation = taken
        seen.append(generation)
        assert slots.state(slot) is SlotState.WRITING
        if publish:
            slots.publish(slot)
        slots.free(slot)
    assert seen == [1, 2, 3]
    assert [slots.count(state) for state in SlotState] == [1, 0, 0]


def test_slots_are_not_freed_or_published_twice() -> None:
    slots = SlotTable(2)
    taken = slots.take()
    assert taken is not None
    slots.publish(taken[0])
    with pytest.raises(AssertionError):
        slots.publish(taken[0])
    slots.free(taken[0])
    with pytest.raises(AssertionError):
        slots.free(taken[0])


# ---- transfers ----


def transfer(ticket: int, pages: int, deadline_s: float) -> Transfer:
    items = tuple(Item(Page(), Pfn(i), Slot(i), 1) for i in range(pages))
    return Transfer(Ticket(ticket), Direction.OUT, items, 0.0, deadline_s)


def test_transfers_are_found_by_ticket_in_any_order() -> None:
    table = TransferTable()
    for ticket, pages in ((1, 3), (2, 1), (3, 2)):
        table.add(transfer(ticket, pages, 10.0 - ticket))
    assert table.count_pages(Direction.OUT) == 6 and table.next_deadline_s() == 7.0
    assert table.take(Ticket(2)) is not None and table.take(Ticket(2)) is None
    assert table.count_pages(Direction.OUT) == 5


def test_overdue_transfers_are_told_once_and_stay_until_their_fence() -> None:
    table = TransferTable()
    table.add(transfer(1, 1, 5.0))
    assert table.take_overdue(4.9) == []
    assert [late.ticket for late in table.take_overdue(5.0)] == [1]
    assert table.take_overdue(6.0) == [] and table.next_deadline_s() is None
    assert table.take(Ticket(1)) is not None


# ---- link ----


def test_the_link_learns_its_rate() -> None:
    link = Link(1.0, 1.0)
    for _ in range(60):
        link.note(Direction.IN, 4, 0.8, 0)
    assert link.in_s_per_page == pytest.approx(0.2, rel=0.01) and link.out_s_per_page == 1.0
    link.note(Direction.OUT, 1, 2.0, 1)
    assert link.out_s_per_page == pytest.approx(1.0), "what was ahead took its time too"


def test_deadlines_grow_with_the_queue() -> None:
    link = Link(0.1, 0.1)
    assert link.deadline_s(Direction.IN, 0, 0) == DEADLINE_FLOOR_S
    assert link.deadline_s(Direction.IN, 5, 5) == 2 * link.deadline_s(Direction.IN, 5, 0)


# ---- the way back ----


@pytest.mark.parametrize(
    ("missing", "tokens", "page_s", "queued_s", "rate", "way"),
    [
        (0, 0, 1.0, 9.0, 1.0, Restore.SWAP_IN),
        (4, 64, 0.01, 0.0, 1000.0, Restore.SWAP_IN),
        (4, 64, 0.1, 0.0, 1000.0, Restore.RECOMPUTE),
        (4, 64, 0.01, 1.0, 1000.0, Restore.RECOMPUTE),
        (4, 64, 0.016, 0.0, 1000.0, Restore.SWAP_IN),
        (4, 64, 0.1, 0.0, 0.0, Restore.SWAP_IN),
    ],
)
def test_the_cheaper_way_is_taken(
    missing: int, tokens: int, page_s: float, queued_s: float, rate: float, way: Restore
) -> None:
    assert choose_restore(missing, tokens, page_s, queued_s, rate) is way


# ---- write-behind ----


def test_stranded_pages_come_first_then_likely_victims_full_pages() -> None:
    pool = Pool(16)
    first, second = pool.space(tuple(range(10))), pool.space(tuple(range(40, 49)))
    stranded = [Page(pfn=Pfn(14)), Page(pfn=Pfn(15), leaving=Ticket(1))]
    first.pages[0].slot = Slot(0)
    second.pages[1].loading = Ticket(2)
    chosen = choose_pages(stranded, [second, first], 10)
    assert chosen == [(None, stranded[0]), (Pid(2), second.pages[0]), (Pid(1), first.pages[1])]
    assert choose_pages(stranded, [second, first], 2) == chosen[:2]
    assert choose_pages([], [], 5) == []
