"""Slots, transfers, the link, the way back and write-behind, by table."""

import pytest

from tokenix.mm.ids import Pfn, Pid, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.swap.link import DEADLINE_FLOOR_S, Link
from tokenix.swap.restore import Restore, choose_restore
from tokenix.swap.slots import SlotState, SlotTable
from tokenix.swap.transfers import Direction, Item, Transfer, TransferTable
from tokenix.swap.writeback import DirtyQueue, choose_stranded

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
    assert table.take_overdue(4.9) == [] and table.count_pages(Direction.OUT) == 1
    assert [late.ticket for late in table.take_overdue(5.0)] == [1]
    assert table.count_pages(Direction.OUT) == 0, "nobody waits for it"
    assert table.take_overdue(6.0) == [] and table.next_deadline_s() is None
    assert table.take(Ticket(1)) is not None and table.count_pages(Direction.OUT) == 0


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
