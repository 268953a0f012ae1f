"""What the end of a copy means for processes: it arrived, it failed, it came too late, or never.

A page is lost when its copy fails, comes too late or does not verify: every process that maps it
forgets it and all behind it, and computes them again. Nobody else notices.
"""

from dataclasses import dataclass

from tokenix.drivers.ops import CopyDone, CopyFailed
from tokenix.kernel.state import State
from tokenix.kernel.tiers import Tiers
from tokenix.mm.ids import Pid, Ticket
from tokenix.mm.page import Page
from tokenix.swap.transfers import Lane, Transfer


@dataclass(frozen=True, slots=True)
class Arrived:
    """The awaited copies of a process are done: SWAPPING_OUT, FETCHING or SWAPPING_IN has ended."""

    pid: Pid


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that was being loaded has lost pages; it must be brought in again."""

    pid: Pid


MemoryEvent = Arrived | Lost


class Landing(Tiers):
    """The tiers, and what copies between them do when they end."""

    def complete(self, done: CopyDone | CopyFailed, now_s: float) -> list[MemoryEvent]:
        """A copy has passed its fence. Returns which processes have something to do now."""
        landed = self.copies.finish(done, now_s)
        events: list[MemoryEvent] = []
        for page in landed.lost:  # before any of them is unmapped: nobody may find them
            self.index.forget(page)
        for page in landed.lost:
            events += self.lose(page)
        if isinstance(done, CopyFailed) and landed.lane is Lane.OUT:
            self._drop_uncopied(done.ticket)
        return events + self._resolve(done.ticket)

    def expire(self, now_s: float) -> list[MemoryEvent]:
        """Give up copies whose deadline has passed. Their frames stay pinned until their fence."""
        events: list[MemoryEvent] = []
        for transfer in self.copies.transfers.take_overdue(now_s):
            match transfer.lane:
                case Lane.IN | Lane.FETCH:
                    for item in transfer.items:
                        events += self.lose(item.page)
                    self.copies.end_cover(transfer.ticket)
                case Lane.OUT:
                    self._abandon_out(transfer)
                case Lane.STORE:
                    for item in transfer.items:
                        item.page.storing = None
                        self.frames.note(item.page)
            events += self._resolve(transfer.ticket)
        return events

    def lose(self, page: Page) -> list[MemoryEvent]:
        """The content of the page is gone: all who map it forget it and everything behind it."""
        if page.mapped == 0:
            self.forget_idle(page)
            return []
        self.pages_lost += 1
        self._upsets += 1
        events: list[MemoryEvent] = []
        self.index.forget(page)
        for process in list(self._processes.values()):
            if page not in process.space.pages:
                continue
            self.truncate(process, process.space.pages.index(page))
            if process.state is State.SWAPPING_IN and process.space.active:
                if process.space.gap:
                    self.truncate(process, process.space.pages_for(process.space.computed))
                process.space.pause()
                process.table_known = 0
            elif process.state is not State.FETCHING or not self.copies.awaits(process.pid):
                continue
            self.copies.forget(process.pid)
            events.append(Lost(process.pid))
        return events

    # ---- inside ----

    def _abandon_out(self, transfer: Transfer) -> None:
        """Nobody waits for this copy any more. It still reads its frames: what is going to be
        written needs another one."""
        self._upsets += 1
        for item in transfer.items:
            item.page.leaving = None
            self.frames.note(item.page)
        self._drop_uncopied(transfer.ticket)
        late = {item.pfn for item in transfer.items}
        for process in self._processes.values():
            tail = process.space.computed // process.space.page_tokens
            for vpn, page in enumerate(process.space.pages[tail:], tail):
                if page.pfn in late:
                    self.truncate(process, vpn)
                    break

    def _drop_uncopied(self, ticket: Ticket) -> None:
        """A copy out failed or is late: who waits for it does without the pages it was to save."""
        self._upsets += 1
        for pid in self.copies.waiting_for(ticket):
            process = self._processes[pid]
            for vpn, page in enumerate(process.space.pages):
                if page.active == 0 and not page.clean and page.leaving is None:
                    self.truncate(process, vpn)
                    break

    def _resolve(self, ticket: Ticket) -> list[MemoryEvent]:
        """Whoever waited for `ticket` does not any more."""
        return [Arrived(pid) for pid in self.copies.resolve(ticket)]
