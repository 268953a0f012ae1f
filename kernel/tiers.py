"""The tiers together: who is in which, and room in each for somebody else.

make_free     frames, from pages that may be dropped           (mm/reclaim.py says in what order)
make_slots    host slots: of pages that are in the swap file too, of pages that nobody maps, of
              pages that are resident anyway
"""

import itertools
from collections.abc import Callable

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Command
from tokenix.kernel.copies import Copies
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Pfn, Pid, Ticket
from tokenix.mm.page import Page
from tokenix.mm.prefix import PrefixIndex
from tokenix.mm.quota import Quotas
from tokenix.mm.reclaim import Watermarks, count_available, reclaim
from tokenix.mm.space import AddressSpace
from tokenix.sched.view import MemoryView
from tokenix.swap.spare import Spare, SpareSlots, spare_kind
from tokenix.swap.transfers import Lane
from tokenix.swap.writeback import DirtyQueue

Donors = Callable[[], list[AddressSpace]]
"""Gives the running spaces whose host copies may be dropped, first to give first."""


def no_donors() -> list[AddressSpace]:
    """Copies of pages that running processes keep resident stay."""
    return []


class Tiers:
    """Frames, host slots and blocks, and the processes whose pages they hold. `send` takes device
    commands."""

    def __init__(
        self,
        info: DeviceInfo,
        send: Callable[[Command], None],
        new_ticket: Callable[[], Ticket],
        params: Params,
    ) -> None:
        self.info = info
        total = info.frames
        self.watermarks = Watermarks(
            int(total * params.reclaim_low_share), int(total * params.reclaim_high_share)
        )
        self.frames = FrameTable(info.frames, self._note)
        self.quotas = Quotas()
        self.pinned: dict[str, int] = {}
        """Pages of named segments, by tenant."""
        self.index = PrefixIndex(
            params.prefix_cache,
            params.prefix_policy,
            info.frames + info.host_slots,
            self.quotas,
        )
        self.spare = SpareSlots()
        self.copies = Copies(info, self.frames, self.spare, send, new_ticket)
        self.dirty = DirtyQueue(info.frames)
        self.restore = "auto"
        """How the paused come back: the cheapest way, or always one (`swap.restore.WAYS`)."""
        self.pages_lost = 0
        self._upsets = 0
        self._processes: dict[Pid, Process] = {}

    # ---- look only ----

    def view(self) -> MemoryView:
        """The snapshot that a plan is made from."""
        outgoing = sum(
            1
            for transfer in self.copies.transfers.peek_all()
            if transfer.lane is Lane.OUT and not transfer.abandoned
            for item in transfer.items
            if item.page.active == 0 and item.page.pfn is not None
        )
        link = self.copies.link
        return MemoryView(
            page_tokens=self.info.page_tokens,
            total_frames=self.frames.total,
            free_frames=self.frames.count(FrameState.FREE),
            cached_frames=self.frames.count(FrameState.CACHED),
            outgoing_frames=outgoing,
            host_slots=self.copies.host.total,
            host_free_slots=self.copies.host.free_places + len(self.spare),
            in_s_per_page=link.s_per_page(Lane.IN),
            out_s_per_page=link.s_per_page(Lane.OUT),
            in_queue_s=self.copies.queue_s(Lane.IN),
            file_blocks=self.copies.disk.total,
            fetch_s_per_page=link.s_per_page(Lane.FETCH),
            fetch_queue_s=self.copies.queue_s(Lane.FETCH),
            swap=self.copies.host.total > 0,
            frame_ceilings=self.frame_ceilings(),
            upsets=self._upsets,
        )

    def frame_ceilings(self) -> dict[str, int]:
        """What processes of a tenant may have together: its ceiling, less what it has pinned."""
        ceilings = self.quotas.ceilings("frames")
        return {tenant: most - self.pinned.get(tenant, 0) for tenant, most in ceilings.items()}

    def spaces(self) -> list[AddressSpace]:
        return [process.space for process in self._processes.values()]

    def paused(self) -> list[Process]:
        """Those that have pages but need none, the one that will need them again last first."""
        paused = [p for p in self._processes.values() if not p.space.active and p.space.mapped]
        paused.sort(key=lambda p: (p.hold.value == 0, -p.entity.due_s, p.pid))
        return paused

    def latest_first(self) -> list[AddressSpace]:
        """Paused spaces, in the same order."""
        return [process.space for process in self.paused()]

    # ---- room ----

    def balance(self) -> None:
        """The reclaim daemon: keep some frames free, ahead of need."""
        want = self.watermarks.want(self.frames)
        if want:
            reclaim(self.frames, self.index, want, self.latest_first())

    def make_free(self, want: int) -> bool:
        if self.frames.count(FrameState.FREE) >= want:
            return True
        if self.frames.fence_up or count_available(self.frames) < want:
            return False
        return reclaim(self.frames, self.index, want, self.latest_first())

    def make_slots(self, want: int, donors: Donors) -> None:
        """Free host slots until `want` are: first of pages that are in the swap file too, then of
        pages that nobody maps, then of pages that are resident anyway. Of these `donors` give
        first, then whoever else has some."""
        host, spare = self.copies.host, self.spare
        while host.free_places < want:
            page = spare.peek(Spare.DOUBLE)
            if page is None:
                known = self.index.idle_slots.peek()
                if known is None:
                    break
                page = known.page
            if page.pfn is None and page.block is None:
                self.forget_idle(page)
            else:
                self.copies.free_slot(page)
        if host.free_places >= want or donors is no_donors or not spare.count(Spare.DONOR):
            return
        first = ((space.pid, page) for space in donors() for page in space.pages)
        others = ((Pid(0), page) for page in list(spare.pages(Spare.DONOR)))
        for pid, page in itertools.chain(first, others):
            if host.free_places >= want:
                return
            if page.slot is not None and spare_kind(page) is Spare.DONOR:
                self.copies.free_slot(page)
                if not page.clean:
                    self.dirty.push(pid, page)

    def room_for(self, tenant: str, tier: str, free: int) -> int:
        """Of `free` places, those that the tenant may have."""
        left = self.quotas.left(tenant, tier)
        return free if left is None else min(free, left)

    def take_dirty(self, room: int, taken: int) -> list[tuple[Pid, Page]]:
        """Up to `room` pages to clean, with slots for them beside `taken`: empty ones, and those of
        pages that nobody maps."""
        taken_out = self.dirty.take(room)
        fine = set(self.quotas.within((page for _, page in taken_out), "host"))
        pages = [(pid, page) for pid, page in taken_out if page in fine]
        self.make_slots(taken + len(pages), no_donors)
        fits = max(0, self.copies.host.free_places - taken)
        for pid, page in pages[fits:]:
            self.dirty.push(pid, page)
        return pages[:fits]

    # ---- giving up ----

    def truncate(self, process: Process, full_pages: int) -> None:
        if full_pages < process.space.mapped:
            process.furthest = max(process.furthest, process.space.computed)
            for page in process.space.truncate(full_pages):
                self.drop_copies(page)
            process.table_known = min(process.table_known, full_pages)

    def drop_copies(self, page: Page) -> None:
        """Nobody needs what the lower tiers hold of the page."""
        self.copies.free_slot(page)
        self.copies.free_block(page)

    def forget_idle(self, page: Page) -> None:
        """A page that nobody maps is not kept any more, in any tier."""
        assert page.mapped == 0, "only what nobody maps is forgotten"
        self.index.forget(page, evicted=True)
        if page.pfn is not None:
            self.frames.release(page)
        self.drop_copies(page)

    # ---- inside ----

    def start_counting(self) -> None:
        """The first quota is about to be set."""
        frames, copies = self.frames, self.copies
        owned = (frames.owner(Pfn(i)) for i in range(frames.total))
        below = (tier.owner(place) for tier in (copies.host, copies.disk) for place in tier.places)
        pages = dict.fromkeys(page for page in itertools.chain(owned, below) if page is not None)
        self.quotas.start_counting(pages)

    def _note(self, page: Page) -> None:
        """The page has changed: the books that follow from it do too. Called often."""
        if page.slot is not None:
            self.spare.note(page)
        if page.mapped == 0 or self.index.is_idle(page):
            self.index.note(page)
        if self.quotas.counting:
            self.quotas.note(page)
