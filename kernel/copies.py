"""Copies in flight: their commands, what they pin, who waits for them, how they land.

    load, copy_out, copy_frame --> (pinned frames, a ticket, a deadline) --> finish | expire

What a lost page means for processes is `kernel.memory`'s business.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import (
    Command,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    PageIn,
    PageOut,
)
from tokenix.mm.frames import FrameTable
from tokenix.mm.ids import Pfn, Pid, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.swap.link import Link
from tokenix.swap.slots import SlotTable
from tokenix.swap.transfers import Direction, Item, Transfer, TransferTable


@dataclass(frozen=True, slots=True)
class Landed:
    """A copy has passed its fence."""

    direction: Direction | None
    """None: from frame to frame."""
    lost: tuple[Page, ...]
    """Pages whose content did not arrive."""


class Copies:
    """Between frames and slots. `send` takes device commands."""

    def __init__(
        self,
        info: DeviceInfo,
        frames: FrameTable,
        slots: SlotTable,
        send: Callable[[Command], None],
        new_ticket: Callable[[], Ticket],
    ) -> None:
        self.transfers = TransferTable()
        self.link = Link(info.copy_in_s_per_page, info.copy_out_s_per_page)
        self.pages_out = 0
        self.pages_in = 0
        self._frames = frames
        self._slots = slots
        self._send = send
        self._new_ticket = new_ticket
        self._awaits: dict[Pid, dict[Ticket, None]] = {}
        self._frame_copies: dict[Ticket, tuple[Pfn, Pfn, Page]] = {}

    # ---- look only ----

    def awaits(self, pid: Pid) -> bool:
        """Whether the process waits for copies."""
        return pid in self._awaits

    def waiting_for(self, ticket: Ticket) -> list[Pid]:
        return [pid for pid, tickets in self._awaits.items() if ticket in tickets]

    def peek_frame_copies(self) -> list[tuple[Pfn, Pfn]]:
        """(source, target) of the copies between frames that are in flight."""
        return [(source, target) for source, target, _ in self._frame_copies.values()]

    def queue_s(self, direction: Direction) -> float:
        """Seconds of copies in flight in that direction."""
        return self.transfers.count_pages(direction) * self.link.s_per_page(direction)

    # ---- who waits ----

    def wait_for(self, pid: Pid, ticket: Ticket) -> None:
        self._awaits.setdefault(pid, {})[ticket] = None

    def forget(self, pid: Pid) -> None:
        """The process waits for nothing any more."""
        self._awaits.pop(pid, None)

    def resolve(self, ticket: Ticket) -> list[Pid]:
        """Nobody waits for `ticket` any more. Returns who waits for nothing now."""
        arrived = []
        for pid in self.waiting_for(ticket):
            del self._awaits[pid][ticket]
            if not self._awaits[pid]:
                del self._awaits[pid]
                arrived.append(pid)
        return arrived

    # ---- submitting ----

    def load(self, pages: Sequence[Page], now_s: float) -> None:
        """Frames for `pages`, and their content from the host tier. Room was made before."""
        ticket = self._new_ticket()
        items = []
        for page in pages:
            assert page.slot is not None, "a page without a frame is in the host tier"
            pfn = self._frames.take(page)
            page.loading = ticket
            self._frames.pin(pfn)
            items.append(Item(page, pfn, page.slot, page.generation))
        self.pages_in += len(items)
        self._submit(ticket, Direction.IN, items, now_s)
        self._send(CopyIn(ticket, tuple(PageIn(i.slot, i.generation, i.pfn) for i in items)))

    def copy_out(self, pages: Sequence[Page], now_s: float) -> Ticket:
        """`pages` to free slots. There are as many."""
        ticket = self._new_ticket()
        items = []
        for page in pages:
            taken = self._slots.take()
            assert taken is not None and page.pfn is not None, "room was counted before"
            slot, generation = taken
            page.leaving = ticket
            self._frames.pin(page.pfn)
            items.append(Item(page, page.pfn, slot, generation))
        self.pages_out += len(items)
        self._submit(ticket, Direction.OUT, items, now_s)
        self._send(CopyOut(ticket, tuple(PageOut(i.pfn, i.slot, i.generation) for i in items)))
        return ticket

    def _submit(
        self, ticket: Ticket, direction: Direction, items: list[Item], now_s: float
    ) -> None:
        ahead = self.transfers.count_pages(direction)
        limit_s = self.link.deadline_s(direction, len(items), ahead)
        transfer = Transfer(ticket, direction, tuple(items), now_s, now_s + limit_s, ahead)
        self.transfers.add(transfer)

    def copy_frame(self, source: Pfn, page: Page) -> None:
        """The content of `source` to the frame of `page`."""
        assert page.pfn is not None, "the target has a frame"
        ticket = self._new_ticket()
        page.loading = ticket
        self._frames.pin(source)
        self._frames.pin(page.pfn)
        self._frame_copies[ticket] = (source, page.pfn, page)
        self._send(CopyFrame(ticket, source, page.pfn))

    # ---- landing ----

    def finish(self, done: CopyDone | CopyFailed, now_s: float) -> Landed:
        """A copy has passed its fence: unpin, publish, and say what was lost."""
        bad = done.bad if isinstance(done, CopyFailed) else ()
        if done.ticket in self._frame_copies:
            return self._finish_frame(done.ticket, bool(bad))
        transfer = self.transfers.take(done.ticket)
        assert transfer is not None, "every completion belongs to a submitted copy"
        if not bad:
            took_s = now_s - transfer.submitted_s
            pages, ahead = len(transfer.items), transfer.ahead_pages
            self.link.note(transfer.direction, pages, took_s, ahead)
        lost: list[Page] = []
        for number, item in enumerate(transfer.items):
            self._frames.unpin(item.pfn)
            if transfer.direction is Direction.OUT:
                self._land_out(transfer.ticket, item, number not in bad)
                continue
            item.page.loading = None
            self._frames.note(item.page)
            if item.page.mapped == 0:
                self.free_slot(item.page)
            elif number in bad:
                lost.append(item.page)
        return Landed(transfer.direction, tuple(lost))

    def _finish_frame(self, ticket: Ticket, failed: bool) -> Landed:
        source, target, page = self._frame_copies.pop(ticket)
        self._frames.unpin(source)
        self._frames.unpin(target)
        page.loading = None
        self._frames.note(page)
        return Landed(None, (page,) if failed else ())

    def _land_out(self, ticket: Ticket, item: Item, good: bool) -> None:
        page = item.page
        awaited = page.leaving == ticket
        if awaited:
            page.leaving = None
        if good and awaited and page.mapped > 0:
            assert page.pfn == item.pfn and page.slot is None, "a page that is copied stays put"
            self._slots.publish(item.slot)
            page.slot, page.generation = item.slot, item.generation
            self._frames.note(page)
        else:
            self._slots.free(item.slot)

    def free_slot(self, page: Page) -> None:
        """Drop the host copy, unless a load is reading it (its fence frees it then)."""
        slot: Slot | None = page.slot
        if slot is not None and page.loading is None:
            page.slot = None
            self._slots.free(slot)
            self._frames.note(page)
