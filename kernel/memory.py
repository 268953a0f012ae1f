"""Memory of processes: carries out what mm/ and swap/ decide, and follows every copy to its fence.

    bring_in    NEW or SWAPPED -> all pages have frames (READY), or are being loaded (SWAPPING_IN)
    pause       frames become reclaimable; dirty pages are copied out first (SWAPPING_OUT)
    grow        one more page for a process that runs
    fork        share full pages, copy the tail
    release     everything back

A page is lost when its copy fails, comes too late or does not verify: every process that maps it
forgets it and all behind it, and computes them again. Nobody else notices.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Command, CopyDone, CopyFailed, TableDelta
from tokenix.kernel.copies import Copies
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import State
from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Pfn, Pid, Ticket
from tokenix.mm.page import Page
from tokenix.mm.prefix import PrefixIndex, root_key
from tokenix.mm.reclaim import Watermarks, count_available, reclaim
from tokenix.mm.space import AddressSpace
from tokenix.sched.view import MemoryView
from tokenix.swap.restore import Restore, choose_restore
from tokenix.swap.slots import SlotState, SlotTable
from tokenix.swap.transfers import Direction, Transfer
from tokenix.swap.writeback import BATCH_PAGES, HOST_SHARE, DirtyQueue, choose_stranded


@dataclass(frozen=True, slots=True)
class Arrived:
    """The awaited copies of a process are done: SWAPPING_OUT or SWAPPING_IN has ended."""

    pid: Pid


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that was being loaded has lost pages; it must be brought in again."""

    pid: Pid


MemoryEvent = Arrived | Lost

Donors = Callable[[], list[AddressSpace]]
"""Gives the running spaces whose host copies may be dropped, first to give first."""


class Memory:
    """The kernel's hands on frames and slots. `send` takes device commands."""

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
        self.frames = FrameTable(info.frames)
        self.index = PrefixIndex(self.frames, params.prefix_cache)
        self.slots = SlotTable(info.host_slots)
        self.copies = Copies(info, self.frames, self.slots, send, new_ticket)
        self.dirty = DirtyQueue(info.frames)
        self.pages_lost = 0
        self._upsets = 0
        self._processes: dict[Pid, Process] = {}

    # ---- look only ----

    def view(self) -> MemoryView:
        """The snapshot that a plan is made from."""
        outgoing = sum(
            1
            for transfer in self.copies.transfers.peek_all()
            if transfer.direction is Direction.OUT and not transfer.abandoned
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
            host_slots=self.slots.total,
            host_free_slots=self.slots.count(SlotState.FREE) + self.frames.donors,
            in_s_per_page=link.in_s_per_page,
            out_s_per_page=link.out_s_per_page,
            in_queue_s=self.copies.queue_s(Direction.IN),
            swap=self.slots.total > 0,
            upsets=self._upsets,
        )

    def spaces(self) -> list[AddressSpace]:
        return [process.space for process in self._processes.values()]

    def latest_first(self) -> list[AddressSpace]:
        """Paused spaces, the one that will be needed again last first."""
        paused = [p for p in self._processes.values() if not p.space.active and p.space.mapped]
        paused.sort(key=lambda p: (p.hold.value == 0, -p.entity.due_s, p.pid))
        return [p.space for p in paused]

    # ---- processes ----

    def new_space(self, pid: Pid, tenant: str) -> AddressSpace:
        return AddressSpace(pid, self.info.page_tokens, self.frames, self.index, root_key(tenant))

    def add(self, process: Process) -> None:
        self._processes[process.pid] = process

    def release(self, process: Process) -> None:
        """The process has ended: unmap everything. Frames under a fence follow when it passes."""
        self._truncate(process, 0)
        if process.space.active:
            process.space.pause()
        self.copies.forget(process.pid)
        del self._processes[process.pid]

    def bring_in(self, process: Process, prefill_tokens_per_s: float, now_s: float) -> bool:
        """Give every page of the process a frame, with room to grow; all or nothing.

        After True, `awaits(pid)` tells whether content is still being loaded.
        """
        space = process.space
        assert not space.active, "only paused processes are brought in"
        self._choose_restore(process, prefill_tokens_per_s)
        self._attach_known_prefix(process)
        goal = min(space.pages_for(process.length) + 1, space.pages_for(process.limit_tokens))
        growth = max(0, goal - space.mapped)
        space.activate()
        absent = [page for page in space.pages if page.pfn is None]
        if not self._make_free(len(absent) + growth):
            space.pause()
            return False
        if absent:
            self.copies.load(absent, now_s)
            process.usage.swapped_in_bytes += len(absent) * self.info.frame_bytes
        space.grow(growth)
        tail = space.computed // space.page_tokens
        for vpn, page in enumerate(space.pages):
            if page.loading is not None:
                self.copies.wait_for(process.pid, page.loading)
            if page.leaving is not None and vpn >= tail:  # it is going to be written
                self.copies.wait_for(process.pid, page.leaving)
        if not self.awaits(process.pid):
            self.settle_in(process)
        return True

    def awaits(self, pid: Pid) -> bool:
        """Whether copies are under way that the process waits for."""
        return self.copies.awaits(pid)

    def settle_in(self, process: Process) -> None:
        """All content is in place: host copies of pages that will be written on are stale now."""
        space = process.space
        for page in space.pages[space.computed // space.page_tokens :]:
            self.copies.free_slot(page)

    def grow(self, process: Process, tokens: int) -> bool:
        """Map pages so that the next `tokens` tokens can be computed; False if memory is short."""
        space = process.space
        if space.computed + tokens <= len(space.pages) * space.page_tokens:
            return True
        growth = space.pages_for(space.computed + tokens) - space.mapped
        if not self._make_free(growth):
            return False
        space.grow(growth)
        return True

    def table_delta(self, process: Process) -> TableDelta | None:
        """What the device must change in its block table of the process; None if nothing."""
        pages = process.space.pages
        keep = process.table_known
        if keep == len(pages):
            return None
        frames = []
        for page in pages[keep:]:
            assert page.pfn is not None and page.loading is None, "a running process is resident"
            frames.append(page.pfn)
        process.table_known = len(pages)
        process.table_sent = True
        return TableDelta(process.pid, keep, tuple(frames))

    def pause(self, process: Process, keep: bool, donors: Donors, now_s: float) -> int:
        """Let go of the frames. Returns the pages that are copied out first.

        keep: keep the KV (swap); False throws it away. `donors`: running spaces whose host copies
        may be dropped to make room in the host tier, first to give first.
        """
        space = process.space
        self._truncate(process, space.pages_for(space.computed) if keep and self.slots.total else 0)
        space.pause()
        process.table_known = 0
        dirty: list[tuple[int, Page]] = []
        for vpn, page in enumerate(space.pages):
            if page.active > 0 or page.slot is not None:
                continue
            if page.leaving is not None:
                self.copies.wait_for(process.pid, page.leaving)
            elif page.pfn is not None and page.loading is None:
                dirty.append((vpn, page))
        self._take_donors(len(dirty), donors)
        room = self.slots.count(SlotState.FREE)
        if room < len(dirty):
            self._truncate(process, dirty[room][0])
            del dirty[room:]
        if dirty:
            ticket = self.copies.copy_out([page for _, page in dirty], now_s)
            self.copies.wait_for(process.pid, ticket)
            process.usage.swapped_out_bytes += len(dirty) * self.info.frame_bytes
        return len(dirty)

    def fork(self, parent: Process, child: Process) -> None:
        """Map the parent's full pages into the child, and copy the tail if a frame is to be had;
        otherwise the child computes the tail again."""
        parent.space.share_full_pages(child.space)
        computed = parent.space.computed
        full = computed // self.info.page_tokens
        if computed % self.info.page_tokens == 0:
            return
        source = parent.space.pages[full]
        if source.pfn is None or source.loading is not None:
            return
        self.frames.pin(source.pfn)  # lest it is reclaimed for its own copy
        if self._make_free(1):
            self.copies.copy_frame(source.pfn, child.space.append_tail(computed))
        self.frames.unpin(source.pfn)

    def pin_segment(self, process: Process) -> AddressSpace:
        """A space that keeps the full pages of `process` on the device."""
        space = self.new_space(process.pid, process.tenant)
        process.space.share_full_pages(space)
        space.activate()
        return space

    def unpin_segment(self, space: AddressSpace) -> None:
        for page in space.truncate(0):
            self.copies.free_slot(page)

    # ---- daemons ----

    def write_behind(self, full_pages: bool, donors: Donors, now_s: float) -> int:
        """Clean some pages if the link is idle: those stranded, and, if `full_pages`, those that
        have become full. Returns how many are on their way."""
        stranded = self.frames.stranded
        transfers = self.copies.transfers
        if (not stranded and not (full_pages and self.dirty)) or not self.slots.total:
            return 0
        if transfers.count_pages(Direction.OUT) or transfers.count_pages(Direction.IN):
            return 0
        first = choose_stranded(stranded.values(), BATCH_PAGES)
        self._take_donors(len(first), donors)
        del first[self.slots.count(SlotState.FREE) :]
        used = self.slots.total - self.slots.count(SlotState.FREE) + len(first)
        room = min(BATCH_PAGES - len(first), int(self.slots.total * HOST_SHARE) - used)
        then = self.dirty.take(room) if full_pages else []
        pages = [*first, *(page for _, page in then if page not in first)]
        if pages:
            self.copies.copy_out(pages, now_s)
        for pid, page in then:
            process = self._processes.get(pid)
            if process is not None and page.leaving is not None:
                process.usage.swapped_out_bytes += self.info.frame_bytes
        return len(pages)

    def balance(self) -> None:
        """The reclaim daemon: keep some frames free, ahead of need."""
        want = self.watermarks.want(self.frames)
        if want:
            reclaim(self.frames, self.index, want, self.latest_first())

    def drop_stranded(self) -> bool:
        """The host tier is full: pages that block a frame for a paused process are given up.
        Returns whether there were any."""
        if self.slots.count(SlotState.FREE) + self.frames.donors > 0:
            return False
        pages = [
            page for page in self.frames.stranded.values() if not (page.leaving or page.loading)
        ]
        for page in pages:
            self._lose(page)
        return bool(pages)

    def complete(self, done: CopyDone | CopyFailed, now_s: float) -> list[MemoryEvent]:
        """A copy has passed its fence. Returns which processes have something to do now."""
        landed = self.copies.finish(done, now_s)
        events: list[MemoryEvent] = []
        for page in landed.lost:  # before any of them is unmapped: nobody may find them
            self.index.forget(page)
        for page in landed.lost:
            events += self._lose(page)
        if isinstance(done, CopyFailed) and landed.direction is Direction.OUT:
            self._drop_uncopied(done.ticket)
        return events + self._resolve(done.ticket)

    def expire(self, now_s: float) -> list[MemoryEvent]:
        """Give up copies whose deadline has passed. Their frames stay pinned until their fence."""
        events: list[MemoryEvent] = []
        for transfer in self.copies.transfers.take_overdue(now_s):
            if transfer.direction is Direction.IN:
                for item in transfer.items:
                    events += self._lose(item.page)
            else:
                self._abandon_out(transfer)
            events += self._resolve(transfer.ticket)
        return events

    # ---- inside ----

    def _choose_restore(self, process: Process, prefill_tokens_per_s: float) -> None:
        space = process.space
        first = next((vpn for vpn, page in enumerate(space.pages) if page.pfn is None), None)
        if first is None:
            return
        way = choose_restore(
            space.missing,
            space.computed - first * space.page_tokens,
            self.copies.link.in_s_per_page,
            self.copies.queue_s(Direction.IN),
            prefill_tokens_per_s,
        )
        if way is Restore.RECOMPUTE:
            self._truncate(process, first)

    def _attach_known_prefix(self, process: Process) -> None:
        """Find the pages behind what is mapped by their content; at least one token stays to do."""
        space = process.space
        full = (process.length - 1) // space.page_tokens
        if space.computed != space.mapped * space.page_tokens or full <= space.mapped:
            return
        space.extend_keys(process.tokens, full)
        found = self.index.lookup(space.keys[:full])[space.mapped :]
        space.attach(found)
        if process.state is State.NEW:
            process.usage.cached_tokens = len(found) * space.page_tokens

    def _make_free(self, want: int) -> bool:
        if self.frames.count(FrameState.FREE) >= want:
            return True
        if self.frames.fence_up or count_available(self.frames) < want:
            return False
        return reclaim(self.frames, self.index, want, self.latest_first())

    def _abandon_out(self, transfer: Transfer) -> None:
        """Nobody waits for this copy any more. It still reads its frames: what is going to be
        written needs another one."""
        self._upsets += 1
        for item in transfer.items:
            item.page.leaving = None
        self._drop_uncopied(transfer.ticket)
        late = {item.pfn for item in transfer.items}
        for process in self._processes.values():
            tail = process.space.computed // process.space.page_tokens
            for vpn, page in enumerate(process.space.pages[tail:], tail):
                if page.pfn in late:
                    self._truncate(process, vpn)
                    break

    def _resolve(self, ticket: Ticket) -> list[MemoryEvent]:
        """Whoever waited for `ticket` does not any more."""
        return [Arrived(pid) for pid in self.copies.resolve(ticket)]

    def _lose(self, page: Page) -> list[MemoryEvent]:
        """The content of the page is gone: all who map it forget it and everything behind it."""
        if page.mapped == 0:
            return []
        self.pages_lost += 1
        self._upsets += 1
        events: list[MemoryEvent] = []
        self.index.forget(page)
        for process in list(self._processes.values()):
            if page not in process.space.pages:
                continue
            self._truncate(process, process.space.pages.index(page))
            if process.state is State.SWAPPING_IN and process.space.active:
                process.space.pause()
                process.table_known = 0
                self.copies.forget(process.pid)
                events.append(Lost(process.pid))
        return events

    def _drop_uncopied(self, ticket: Ticket) -> None:
        """A copy out failed or is late: who waits for it does without the pages it was to save."""
        self._upsets += 1
        for pid in self.copies.waiting_for(ticket):
            process = self._processes[pid]
            for vpn, page in enumerate(process.space.pages):
                if page.active == 0 and page.slot is None and page.leaving is None:
                    self._truncate(process, vpn)
                    break

    def _truncate(self, process: Process, full_pages: int) -> None:
        if full_pages < process.space.mapped:
            process.furthest = max(process.furthest, process.space.computed)
            for page in process.space.truncate(full_pages):
                self.copies.free_slot(page)
            process.table_known = min(process.table_known, full_pages)

    def _take_donors(self, want: int, donors: Donors) -> None:
        """Free slots that hold copies of pages which are resident anyway, until `want` are free.
        `donors` give first; then whoever else keeps such pages resident."""
        if self.slots.count(SlotState.FREE) >= want or self.frames.donors == 0:
            return
        known = ((space.pid, page) for space in donors() for page in space.pages)
        owners = ((Pid(0), self.frames.owner(Pfn(i))) for i in range(self.frames.total))
        for pid, page in itertools.chain(known, owners):
            if self.slots.count(SlotState.FREE) >= want or self.frames.donors == 0:
                return
            if page is not None and page.active > 0 and page.slot is not None:
                self.dirty.push(pid, page)
                self.copies.free_slot(page)
