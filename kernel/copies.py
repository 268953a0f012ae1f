"""Copies in flight: their commands, what they pin, who waits for them, how they land.

    load, copy_out, store, fetch, copy_frame --> (pins, a ticket, a deadline) --> finish | expire

What a lost page means for processes is `kernel.memory`'s business.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import (
    Command,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    Fetch,
    PageFetch,
    PageIn,
    PageOut,
    PageStore,
    Store,
)
from tokenix.mm.frames import FrameTable
from tokenix.mm.ids import Block, Pfn, Pid, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.swap.link import Link
from tokenix.swap.spare import SpareSlots
from tokenix.swap.tier import PlaceState, Tier
from tokenix.swap.transfers import Item, Lane, Transfer, TransferTable


@dataclass(frozen=True, slots=True)
class Landed:
    """A copy has passed its fence."""

    lane: Lane | None
    """None: from frame to frame."""
    lost: tuple[Page, ...]
    """Pages whose content did not arrive where it was needed."""


class Covered(NamedTuple):
    """A load by layers, and the process that may run beside it."""

    pid: Pid
    ticket: Ticket


@dataclass(slots=True)
class LaneStats:
    """Pages since boot."""

    pages: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    failed: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))


class Copies:
    """Between the tiers. `send` takes device commands."""

    def __init__(
        self,
        info: DeviceInfo,
        frames: FrameTable,
        spare: SpareSlots,
        send: Callable[[Command], None],
        new_ticket: Callable[[], Ticket],
    ) -> None:
        self.transfers = TransferTable()
        self.link = Link(info.copy_in_s_per_page, info.copy_out_s_per_page)
        self.host = Tier(info.host_slots)
        self.disk = Tier(0)
        """Of the swap file; `kernel/swapfile.py` sets it, empty, when the file comes or goes."""
        self.stats = LaneStats()
        self._frames = frames
        self._spare = spare
        self._send = send
        self._new_ticket = new_ticket
        self._awaits: dict[Pid, dict[Ticket, None]] = {}
        self._frame_copies: dict[Ticket, tuple[Pfn, Pfn, Page]] = {}
        self.covered: Covered | None = None
        """The load in flight that a process does not wait for, as it may run beside it."""

    # ---- look only ----

    def awaits(self, pid: Pid) -> bool:
        """Whether the process waits for copies."""
        return pid in self._awaits

    def waiting_for(self, ticket: Ticket) -> list[Pid]:
        return [pid for pid, tickets in self._awaits.items() if ticket in tickets]

    def peek_frame_copies(self) -> list[tuple[Pfn, Pfn]]:
        """(source, target) of the copies between frames that are in flight."""
        return [(source, target) for source, target, _ in self._frame_copies.values()]

    def hangs(self, lane: Lane) -> bool:
        """Whether a copy on the lane was given up and has not ended: nor may the next one."""
        return any(transfer.abandoned for transfer in self.transfers.peek_on(lane))

    def beside(self, pid: Pid) -> Ticket | None:
        """The load that the process may run beside, if there is one."""
        covered = self.covered
        return covered.ticket if covered is not None and covered.pid == pid else None

    def queue_s(self, lane: Lane) -> float:
        """Seconds of copies in flight on the lane."""
        return self.transfers.count_pages(lane) * self.link.s_per_page(lane)

    # ---- who waits ----

    def wait_for(self, pid: Pid, ticket: Ticket) -> None:
        self._awaits.setdefault(pid, {})[ticket] = None

    def forget(self, pid: Pid) -> None:
        """The process waits for nothing any more."""
        self._awaits.pop(pid, None)

    def cover(self, pid: Pid, ticket: Ticket) -> None:
        """The process may run beside the load, which is alone on its lane."""
        assert self.covered is None, "another one would still be in flight"
        self.covered = Covered(pid, ticket)

    def uncover(self, pid: Pid) -> None:
        """The process may not run beside a load any more."""
        if self.beside(pid) is not None:
            self.covered = None

    def end_cover(self, ticket: Ticket) -> None:
        """That load is over, or given up: nobody runs beside it any more."""
        if self.covered is not None and self.covered.ticket == ticket:
            self.covered = None

    def resolve(self, ticket: Ticket) -> list[Pid]:
        """Nobody waits for `ticket` any more. Returns who waits for nothing now."""
        arrived = []
        for pid in self.waiting_for(ticket):
            del self._awaits[pid][ticket]
            if not self._awaits[pid]:
                del self._awaits[pid]
                arrived.append(pid)
        return arrived

    # ---- submitting: room was made before ----

    def load(self, pages: Sequence[Page], now_s: float, by_layers: bool = False) -> Ticket:
        """Frames for `pages`, and their content from the host tier."""
        ticket = self._new_ticket()
        items, parts = [], []
        for page in pages:
            assert page.slot is not None, "a page that is loaded is in the host tier"
            page.loading = ticket
            self.host.pin(page.slot)
            pfn = self._frames.take(page)
            self._frames.pin(pfn)
            items.append(Item(page, page.slot, pfn))
            parts.append(PageIn(page.slot, page.generation, pfn))
        self._submit(CopyIn(ticket, tuple(parts), by_layers), Lane.IN, items, now_s)
        return ticket

    def copy_out(self, pages: Sequence[Page], now_s: float) -> Ticket:
        """`pages` to free slots."""
        ticket = self._new_ticket()
        items, parts = [], []
        for page in pages:
            taken = self.host.take(page)
            assert taken is not None and page.pfn is not None, "room was counted before"
            slot = Slot(taken[0])
            page.leaving = ticket
            self._frames.pin(page.pfn)
            self._frames.note(page)
            items.append(Item(page, slot, page.pfn))
            parts.append(PageOut(page.pfn, slot, taken[1]))
        self._submit(CopyOut(ticket, tuple(parts)), Lane.OUT, items, now_s)
        return ticket

    def store(self, pages: Sequence[Page], now_s: float) -> None:
        """`pages` of the host tier to free blocks; they keep their slots."""
        ticket = self._new_ticket()
        items, parts = [], []
        for page in pages:
            taken = self.disk.take(page)
            assert taken is not None and page.slot is not None, "room was counted before"
            block = Block(taken[0])
            page.storing = ticket
            self.host.pin(page.slot)
            self._frames.note(page)
            items.append(Item(page, page.slot, block=block))
            parts.append(PageStore(page.slot, page.generation, block, taken[1]))
        self._submit(Store(ticket, tuple(parts)), Lane.STORE, items, now_s)

    def fetch(self, pages: Sequence[Page], now_s: float) -> Ticket:
        """`pages` of the swap file to free slots."""
        ticket = self._new_ticket()
        items, parts = [], []
        for page in pages:
            taken = self.host.take(page)
            assert taken is not None and page.block is not None, "room was counted before"
            slot = Slot(taken[0])
            page.rising = ticket
            self.disk.pin(page.block)
            self._frames.note(page)
            items.append(Item(page, slot, block=page.block))
            parts.append(PageFetch(page.block, page.block_generation, slot, taken[1]))
        self._submit(Fetch(ticket, tuple(parts)), Lane.FETCH, items, now_s)
        return ticket

    def copy_frame(self, source: Pfn, page: Page) -> None:
        """The content of `source` to the frame of `page`."""
        assert page.pfn is not None, "the target has a frame"
        ticket = self._new_ticket()
        page.loading = ticket
        self._frames.pin(source)
        self._frames.pin(page.pfn)
        self._frame_copies[ticket] = (source, page.pfn, page)
        self._send(CopyFrame(ticket, source, page.pfn))

    def _submit(
        self, command: CopyIn | CopyOut | Store | Fetch, lane: Lane, items: list[Item], now_s: float
    ) -> None:
        ahead = self.transfers.count_pages(lane)
        limit_s = self.link.deadline_s(lane, len(items), ahead)
        self.transfers.add(
            Transfer(command.ticket, lane, tuple(items), now_s, now_s + limit_s, ahead)
        )
        self.stats.pages[lane] += len(items)
        self._send(command)

    # ---- landing ----

    def finish(self, done: CopyDone | CopyFailed, now_s: float) -> Landed:
        """A copy has passed its fence: unpin, publish, and say what was lost."""
        bad = frozenset(done.bad) if isinstance(done, CopyFailed) else frozenset()
        if done.ticket in self._frame_copies:
            return self._finish_frame(done.ticket, bool(bad))
        transfer = self.transfers.take(done.ticket)
        assert transfer is not None, "every completion belongs to a submitted copy"
        ticket, lane = transfer.ticket, transfer.lane
        self.end_cover(ticket)
        if not bad and not transfer.abandoned:
            took_s = now_s - transfer.submitted_s
            self.link.note(lane, len(transfer.items), took_s, transfer.ahead_pages)
        self.stats.failed[lane] += len(bad)
        lost: list[Page] = []
        for number, item in enumerate(transfer.items):
            good = number not in bad
            match lane:
                case Lane.OUT:
                    self._land_out(ticket, item, good)
                case Lane.IN:
                    self._land_in(ticket, item, good, lost)
                case Lane.STORE:
                    self._land_store(ticket, item, good)
                case Lane.FETCH:
                    self._land_fetch(ticket, item, good, lost)
        return Landed(lane, tuple(lost))

    def _finish_frame(self, ticket: Ticket, failed: bool) -> Landed:
        source, target, page = self._frame_copies.pop(ticket)
        self._frames.unpin(source)
        self._frames.unpin(target)
        page.loading = None
        self._frames.note(page)
        return Landed(None, (page,) if failed else ())

    def _land_out(self, ticket: Ticket, item: Item, good: bool) -> None:
        page = item.page
        self._frames.unpin(item.pfn)
        awaited = page.leaving == ticket
        if awaited:
            page.leaving = None
        if good and awaited and _wanted(page):
            assert page.pfn == item.pfn and page.slot is None, "a page that is copied stays put"
            self._publish_slot(page, item.slot)
        else:
            self.host.free(item.slot)
        self._frames.note(page)

    def _land_in(self, ticket: Ticket, item: Item, good: bool, lost: list[Page]) -> None:
        page = item.page
        self._frames.unpin(item.pfn)
        if good and self.host.state(item.slot) is PlaceState.VALID:
            self.host.note_read(item.slot)
        self.host.unpin(item.slot)
        if page.loading == ticket:
            page.loading = None
            self._frames.note(page)
            if not good and _wanted(page):
                lost.append(page)

    def _land_store(self, ticket: Ticket, item: Item, good: bool) -> None:
        page = item.page
        awaited = page.storing == ticket
        if awaited:
            page.storing = None
        if good and awaited and _wanted(page) and page.slot == item.slot:
            self.disk.publish(item.block)
            page.block = item.block
            page.block_generation = self.disk.generation(item.block)
        else:
            self.disk.free(item.block)
            page.failed_stores += not good
        self.host.unpin(item.slot)
        self._frames.note(page)

    def _land_fetch(self, ticket: Ticket, item: Item, good: bool, lost: list[Page]) -> None:
        """The page moves up: its block is free again."""
        page = item.page
        awaited = page.rising == ticket
        if awaited:
            page.rising = None
        if good and awaited and _wanted(page):
            assert page.block == item.block and page.slot is None, "a page that rises stays put"
            self._publish_slot(page, item.slot)
            self.disk.note_read(item.block)
            self.free_block(page)
        else:
            self.host.free(item.slot)
            if awaited and _wanted(page):
                lost.append(page)
        self.disk.unpin(item.block)
        self._frames.note(page)

    def _publish_slot(self, page: Page, slot: Slot) -> None:
        self.host.publish(slot)
        page.slot, page.generation = slot, self.host.generation(slot)
        page.failed_stores = 0

    # ---- giving up places ----

    def free_slot(self, page: Page) -> None:
        """Drop the host copy, if there is one."""
        slot = page.slot
        if slot is not None:
            page.slot = None
            self._spare.drop(slot)
            self.host.free(slot)
            self._frames.note(page)

    def free_block(self, page: Page) -> None:
        """Drop the copy in the swap file, if there is one."""
        block = page.block
        if block is not None:
            page.block = None
            self.disk.free(block)
            self._frames.note(page)


def _wanted(page: Page) -> bool:
    """Whether somebody maps it or can find it."""
    return page.mapped > 0 or page.key is not None
