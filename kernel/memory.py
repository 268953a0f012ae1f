"""Memory of processes: carries out what mm/ and swap/ decide.

fetch       SWAPPED -> pages in the swap file rise to the host tier (FETCHING -> SWAPPED)
bring_in    NEW or SWAPPED -> all pages have frames (READY), or are being loaded (SWAPPING_IN, or
            READY if it may run beside the load)
pause       frames become reclaimable; dirty pages are copied out first (SWAPPING_OUT)
grow        one more page for a process that runs
fork        share full pages, copy the tail
release     everything back
"""

import math

from tokenix.drivers.ops import TableDelta
from tokenix.kernel.landing import Landing, MemoryEvent
from tokenix.kernel.process import Process
from tokenix.kernel.state import State
from tokenix.kernel.tiers import Donors, no_donors
from tokenix.mm.ids import Pfn, Pid
from tokenix.mm.page import Page
from tokenix.mm.prefix import root_key
from tokenix.mm.space import AddressSpace
from tokenix.swap.restore import Costs, Restore, choose_restore
from tokenix.swap.spare import Spare
from tokenix.swap.transfers import Lane
from tokenix.swap.writeback import BATCH_PAGES, HOST_SHARE, choose_stranded


class Memory(Landing):
    """The kernel's hands on the memory of processes."""

    def new_space(self, pid: Pid, tenant: str) -> AddressSpace:
        root = root_key(tenant)
        return AddressSpace(pid, self.info.page_tokens, self.frames, self.index, root, tenant)

    def add(self, process: Process) -> None:
        self._processes[process.pid] = process

    def release(self, process: Process) -> None:
        """The process has ended: unmap everything. Frames under a fence follow when it passes."""
        self.truncate(process, 0)
        if process.space.active:
            process.space.pause()
        self.copies.forget(process.pid)
        self.copies.uncover(process.pid)
        del self._processes[process.pid]

    def bring_in(
        self,
        process: Process,
        prefill_tokens_per_s: float,
        now_s: float,
        most_tokens: int = 0,
    ) -> bool:
        """Give every page of the process a frame, with room to grow; all or nothing. `most_tokens`:
        of a pass that it may be in while pages are loaded; 0: it waits for them.

        `awaits(pid)` tells afterwards whether it waits for content that is still being loaded;
        after False, whether pages are on their way up from the swap file.
        """
        space = process.space
        assert not space.active, "only paused processes are brought in"
        costs = self._costs(prefill_tokens_per_s)
        beside = self._is_covered(process, space.missing, most_tokens, costs)
        way = self._choose_restore(process, costs, beside)
        if space.deep:
            self._raise(process, now_s)
            return False
        process.way = way.way
        self._attach_known_prefix(process, costs)
        goal = min(space.pages_for(process.length) + 1, space.pages_for(process.limit_tokens))
        growth = max(0, goal - space.mapped)
        space.activate()
        alike = self._find_alike(process, costs) if process.state is State.NEW else None
        first, gap = way.head or (0, 0)
        absent = [page for page in space.pages[gap:] if page.pfn is None]
        if alike is not None:
            self.frames.pin(alike[0])
        found = self.make_free(len(absent) + gap - first + growth)
        if alike is not None:
            self.frames.unpin(alike[0])
            if self.frames.owner(alike[0]) is not alike[2]:  # it was taken all the same
                alike = None
        if not found:
            space.pause()
            return False
        if gap:
            process.furthest = max(process.furthest, gap * space.page_tokens)
            for page in space.open_gap(first, gap):
                self.drop_copies(page)
        covered = alike is None and self._is_covered(process, len(absent), most_tokens, costs)
        if absent:
            ticket = self.copies.load(absent, now_s, covered)
            process.usage.swapped_in_bytes += len(absent) * self.info.frame_bytes
        space.grow(growth)
        if alike is not None:
            self.copies.copy_frame(alike[0], space.adopt(alike[1]))
            process.usage.cached_tokens += alike[1]
        if covered:
            process.way = "covered"
            self.copies.cover(process.pid, ticket)
            self.settle_in(process)
            return True
        tail = space.end // space.page_tokens
        for vpn, page in enumerate(space.pages):
            if page.loading is not None and not gap:
                self.copies.wait_for(process.pid, page.loading)
            if page.leaving is not None and vpn >= tail:  # it is going to be written
                self.copies.wait_for(process.pid, page.leaving)
        if not self.awaits(process.pid):
            self.settle_in(process)
        return True

    def _is_covered(self, process: Process, missing: int, most_tokens: int, costs: Costs) -> bool:
        """Whether it may run while so many pages are loaded: nothing else is on its way to it, or
        on that lane, and its next pass is long enough."""
        space, tokens = process.space, min(process.todo_tokens, most_tokens)
        if not (self.info.covers_loads and missing and tokens > 1) or space.gap:
            return False
        if self.copies.transfers.peek_on(Lane.IN) or not costs.is_covered(missing, tokens):
            return False
        written = space.pages[space.computed // space.page_tokens :]
        return all(page.loading is None for page in space.pages) and all(
            page.leaving is None for page in written
        )

    def await_load(self, process: Process) -> bool:
        """It is not in a pass any more: whether it must wait for a load that it ran beside."""
        ticket = self.copies.beside(process.pid)
        if ticket is None:
            return False
        self.copies.uncover(process.pid)
        self.copies.wait_for(process.pid, ticket)
        return True

    def awaits(self, pid: Pid) -> bool:
        """Whether copies are under way that the process waits for."""
        return self.copies.awaits(pid)

    def settle_in(self, process: Process) -> None:
        """All content is in place: copies of pages that will be written on are stale now."""
        space = process.space
        for page in space.pages[space.end // space.page_tokens :]:
            self.drop_copies(page)

    def await_tail(self, process: Process) -> bool:
        """Its gap is closed: whether it must wait for pages behind it that are still loading."""
        for page in process.space.pages:
            if page.loading is not None:
                self.copies.wait_for(process.pid, page.loading)
        return self.awaits(process.pid)

    def fetch(self, process: Process, prefill_tokens_per_s: float, now_s: float) -> None:
        """Pages in the swap file rise to the host tier; `awaits(pid)` tells whether any does. What
        is computed sooner, or what the host tier has no slot for, is dropped."""
        self._choose_restore(process, self._costs(prefill_tokens_per_s))
        if process.space.deep:
            self._raise(process, now_s)

    def grow(self, process: Process, tokens: int) -> bool:
        """Map pages so that the next `tokens` tokens can be computed; False if memory is short."""
        space = process.space
        if space.computed + tokens <= len(space.pages) * space.page_tokens:
            return True
        growth = space.pages_for(space.computed + tokens) - space.mapped
        if not self.make_free(growth):
            return False
        space.grow(growth)
        return True

    def table_delta(self, process: Process) -> TableDelta | None:
        """What the device must change in its block table of the process; None if nothing."""
        pages = process.space.pages
        keep = process.table_known
        known = process.space.gap or len(pages)  # what is behind a gap may still be loading
        if keep == known:
            return None
        frames, beside = [], self.copies.beside(process.pid)
        for page in pages[keep:known]:
            there = page.loading is None or page.loading == beside
            assert page.pfn is not None and there, "a running process is resident"
            frames.append(page.pfn)
        process.table_known = known
        process.table_sent = True
        return TableDelta(process.pid, keep, tuple(frames))

    def pause(self, process: Process, keep: bool, donors: Donors, now_s: float) -> int:
        """Let go of the frames. Returns the pages that are copied out first.

        keep: keep the KV (swap); False throws it away. `donors`: running spaces whose host copies
        may be dropped to make room in the host tier, first to give first.
        """
        space = process.space
        keep = keep and self.copies.host.total > 0
        self.truncate(process, space.pages_for(space.computed) if keep else 0)
        space.pause()
        self.copies.uncover(process.pid)
        process.table_known = 0
        dirty: list[tuple[int, Page]] = []
        for vpn, page in enumerate(space.pages):
            if page.active > 0 or page.clean:
                continue
            if page.leaving is not None:
                self.copies.wait_for(process.pid, page.leaving)
            elif page.pfn is not None and page.loading is None:
                dirty.append((vpn, page))
        self.make_slots(len(dirty), donors)
        room = self.room_for(process.tenant, "host", self.copies.host.free_places)
        if room < len(dirty):
            self.truncate(process, dirty[room][0])
            del dirty[room:]
        if dirty:
            ticket = self.copies.copy_out([page for _, page in dirty], now_s)
            self.copies.wait_for(process.pid, ticket)
            process.usage.swapped_out_bytes += len(dirty) * self.info.frame_bytes
        return len(dirty)

    def fork(self, parent: Process, child: Process, most_tokens: int) -> None:
        """Map the parent's full pages into the child, and copy the tail if a frame is to be had;
        otherwise the child computes the tail again. Of no more than `most_tokens` tokens."""
        computed = min(parent.space.computed, most_tokens)
        parent.space.share_full_pages(child.space, computed)
        full = computed // self.info.page_tokens
        if computed % self.info.page_tokens == 0:
            return
        source = parent.space.pages[full]
        if source.pfn is None or source.loading is not None:
            return
        self.frames.pin(source.pfn)  # lest it is reclaimed for its own copy
        if self.make_free(1):
            self.copies.copy_frame(source.pfn, child.space.append_tail(computed))
        self.frames.unpin(source.pfn)

    def pin_segment(self, process: Process) -> AddressSpace:
        """A space that keeps the full pages of `process` on the device."""
        space = self.new_space(process.pid, process.tenant)
        process.space.share_full_pages(space, process.space.computed)
        space.activate()
        self.pinned[space.tenant] = self.pinned.get(space.tenant, 0) + space.mapped
        return space

    def unpin_segment(self, space: AddressSpace) -> None:
        self.pinned[space.tenant] -= space.mapped
        for page in space.truncate(0):
            self.drop_copies(page)

    # ---- daemons ----

    def write_behind(self, full_pages: bool, donors: Donors, now_s: float) -> int:
        """Clean some pages if the link is idle: those stranded, and, if `full_pages`, those that
        have become full. Returns how many are on their way."""
        stranded = self.frames.stranded
        transfers = self.copies.transfers
        host = self.copies.host
        if (not stranded and not (full_pages and self.dirty)) or not host.total:
            return 0
        if transfers.count_pages(Lane.OUT) or transfers.count_pages(Lane.IN):
            return 0
        first = choose_stranded(stranded.values(), BATCH_PAGES)
        self.make_slots(len(first), donors)
        del first[host.free_places :]
        kept = host.total - host.free_places - len(self.spare) + self.spare.count(Spare.DONOR)
        room = min(BATCH_PAGES - len(first), int(host.total * HOST_SHARE) - kept - len(first))
        then = self.take_dirty(room, len(first)) if full_pages else []
        pages = [*first, *(page for _, page in then if page not in first)]
        if pages:
            self.copies.copy_out(pages, now_s)
        for pid, page in then:
            process = self._processes.get(pid)
            if process is not None and page.leaving is not None:
                process.usage.swapped_out_bytes += self.info.frame_bytes
        return len(pages)

    def drop_stranded(self) -> tuple[bool, list[MemoryEvent]]:
        """The host tier is full: pages that block a frame for a paused process are given up.
        Returns whether there were any, and what that means for processes."""
        if self.copies.host.free_places + len(self.spare) > 0:
            return False, []
        pages = [
            page for page in self.frames.stranded.values() if not (page.leaving or page.loading)
        ]
        return bool(pages), [event for page in pages for event in self.lose(page)]

    def note_known_prefix(self, process: Process, prefill_tokens_per_s: float) -> None:
        """What a newcomer need not compute, as it seems when it comes: as much as it would attach
        now. What is in the swap file does not count, for it does not wait for that."""
        space = process.space
        if not self.index.count():
            return
        full = (process.length - 1) // space.page_tokens
        space.extend_known_keys(process.tokens, full)
        found = self._find_known(space, full, self._costs(prefill_tokens_per_s))
        process.known_tokens = len(found) * space.page_tokens

    def prefetch_prefix(self, process: Process, prefill_tokens_per_s: float, now_s: float) -> int:
        """Pages of a newcomer's prompt that are in the swap file rise to the host tier while it
        waits, if that is quicker than computing them. Nobody waits for them. Returns how many."""
        space = process.space
        if not len(self.index.idle_blocks):
            return 0
        full = (process.length - 1) // space.page_tokens
        space.extend_known_keys(process.tokens, full)
        deep = self.index.lookup_deep(space.keys)
        costs = self._costs(prefill_tokens_per_s)
        tokens = len(deep) * space.page_tokens
        if not deep or choose_restore(deep, tokens, space.page_tokens, costs).cut is not None:
            return 0
        self.make_slots(len(deep), no_donors)
        del deep[self.copies.host.free_places :]
        if deep:
            self.copies.fetch(deep, now_s)
            process.risen = deep
        return len(deep)

    # ---- inside ----

    def _costs(self, prefill_tokens_per_s: float) -> Costs:
        link, hangs = self.copies.link, self.copies.hangs(Lane.FETCH)
        return Costs(
            in_s_per_page=link.s_per_page(Lane.IN),
            fetch_s_per_page=link.s_per_page(Lane.FETCH),
            in_queue_s=self.copies.queue_s(Lane.IN),
            fetch_queue_s=math.inf if hangs else self.copies.queue_s(Lane.FETCH),
            prefill_tokens_per_s=prefill_tokens_per_s,
        )

    def _choose_restore(self, process: Process, costs: Costs, covered: bool = False) -> Restore:
        """Drops what is computed again at the end. `covered`: loading takes no time."""
        space = process.space
        if not space.missing:
            return Restore(0.0)
        kind = "swap-in" if covered and self.restore == "auto" else self.restore
        way = choose_restore(space.pages, space.computed, space.page_tokens, costs, kind)
        if way.cut is not None:
            self.truncate(process, way.cut)
        return way

    def _attach_known_prefix(self, process: Process, costs: Costs) -> None:
        """Find the pages behind what is mapped by their content, as far as loading them is worth
        it; at least one token stays to do."""
        space = process.space
        risen, process.known_tokens, process.risen = process.risen, 0, []
        full = (process.length - 1) // space.page_tokens
        if space.computed != space.mapped * space.page_tokens or full <= space.mapped:
            return
        space.extend_known_keys(process.tokens, full)
        found = self._find_known(space, full, costs)
        space.attach(found)
        if process.state is not State.NEW:
            return
        self.index.note_use(found)
        usage = process.usage
        below = [page for page in found if page.pfn is None]
        deep = len(set(below).intersection(risen))
        usage.cached_tokens += len(found) * space.page_tokens
        usage.cached_host_tokens += (len(below) - deep) * space.page_tokens
        usage.cached_file_tokens += deep * space.page_tokens

    def _find_known(self, space: AddressSpace, full: int, costs: Costs) -> list[Page]:
        """Pages behind what is mapped, of the first `full`, as far as loading them is worth it."""
        found = self.index.lookup(space.keys[:full])[space.mapped :]
        tokens = len(found) * space.page_tokens
        way = choose_restore(found, tokens, space.page_tokens, costs, self.restore)
        if way.cut is not None:
            del found[way.cut :]
        return found

    def _find_alike(self, process: Process, costs: Costs) -> tuple[Pfn, int, Page] | None:
        """A frame whose page begins as the newcomer's next one does, how many tokens they have in
        common, and the page; None if computing them takes no longer than waiting for the copy,
        which is a step. At least one token stays to do."""
        space = process.space
        if not self.index.count() or space.computed != space.mapped * space.page_tokens:
            return None
        vpn, end = space.mapped, min(process.length - 1, space.computed + space.page_tokens)
        space.extend_keys(process.tokens, vpn)
        alike = self.index.lookup_partial(
            space.parent_key(vpn), process.tokens[space.computed : end]
        )
        if alike is None or costs.compute_s(alike[1]) <= self.info.step_s:
            return None
        assert alike[0].pfn is not None, "it is on the device"
        return alike[0].pfn, alike[1], alike[0]

    def _raise(self, process: Process, now_s: float) -> None:
        space = process.space
        host = self.copies.host
        rising = [page for page in space.pages if page.rising is not None]
        deep = [page for page in space.pages if page.deep and page.rising is None]
        room = -1
        while room < host.free_places < len(deep):
            room = host.free_places
            self.make_slots(len(deep), no_donors)  # maybe those of other pages of its own
            deep = [page for page in space.pages if page.deep and page.rising is None]
        room = self.room_for(process.tenant, "host", host.free_places)
        if room < len(deep):
            self.truncate(process, space.pages.index(deep[room]))
            del deep[room:]
            rising = [page for page in rising if page in space.pages]
        if deep:
            self.copies.wait_for(process.pid, self.copies.fetch(deep, now_s))
            process.usage.fetched_bytes += len(deep) * self.info.frame_bytes
        for page in rising:
            assert page.rising is not None
            self.copies.wait_for(process.pid, page.rising)
