"""Page frames: who owns each KV block on the device, and which may be taken.

    FREE         no owner, no fence
    HELD         a page that a running process needs, or whose only copy this is
    CACHED       a page that may be dropped at once: unmapped but findable by content, or mapped
                 only by paused processes and clean
    IN_TRANSFER  a copy reads or writes the frame, or it was released under a running forward

Forwards retire as they were submitted, so a frame waits for the newest one at its release:

    forward 1   |=======================|
    forward 2             |=========================|
    released        ^ free behind 1   ^ free behind 2

    free + cached + held + in_transfer == total          (mm/audit.py recounts it)

`FrameTable` is the only writer of `Page.pfn`. The state of a frame follows from its owner and its
pins; all books that follow from a page are kept by calling `note(page)` after any change of it.
"""

import enum
from collections import deque
from collections.abc import Callable, Sequence

from tokenix.mm.ids import Pfn
from tokenix.mm.page import Page


class FrameState(enum.IntEnum):
    FREE = 0
    HELD = 1
    CACHED = 2
    IN_TRANSFER = 3


_FREE, _HELD, _CACHED, _IN_TRANSFER = FrameState  # looked up often, and an enum's names are slow


class FrameTable:
    """All frames of one device."""

    def __init__(self, total: int, on_change: Callable[[Page], None] = lambda page: None) -> None:
        """`on_change` is told of every page that has changed, for the books of others."""
        assert total > 0, "a device has frames"
        self.total = total
        self._on_change = on_change
        self._free: list[Pfn] = [Pfn(i) for i in range(total - 1, -1, -1)]
        self._owner: list[Page | None] = [None] * total
        self._pins: list[int] = [0] * total
        self._state: list[FrameState] = [_FREE] * total
        self._counts: list[int] = [total, 0, 0, 0]
        self._fenced: dict[Pfn, None] = {}
        """Released, and not free before a fence is lifted."""
        self._fences: deque[list[Pfn]] = deque()
        """Of each forward in flight, the oldest first: what waits for it."""
        self._junk: set[Pfn] = set()
        self.stranded: dict[Pfn, Page] = {}
        """Frames that hold the only copy of a page which no running process needs."""
        self.reclaimed = 0
        """Cached frames given up so far (written by `mm/reclaim.py`)."""
        self.freed_log: list[Pfn] = []
        """Frames that became free since the last `take_freed_log` (to poison them in tests)."""

    # ---- look only ----

    def count(self, state: FrameState) -> int:
        """Frames in `state`."""
        return self._counts[state]

    @property
    def fence_up(self) -> bool:
        """Whether a forward is in flight: what is released now is free when it has retired."""
        return bool(self._fences)

    def count_fences(self) -> int:
        """Forwards in flight."""
        return len(self._fences)

    def count_coming(self) -> int:
        """Frames that are free, or will be when what is in flight has retired."""
        return self._counts[_FREE] + len(self._fenced)

    def state(self, pfn: Pfn) -> FrameState:
        return self._state[pfn]

    def owner(self, pfn: Pfn) -> Page | None:
        return self._owner[pfn]

    def pins(self, pfn: Pfn) -> int:
        return self._pins[pfn]

    # ---- changes ----

    def take(self, page: Page) -> Pfn:
        """Give `page` a free frame. The caller has made sure that one is free."""
        assert page.pfn is None, "a page has at most one frame"
        pfn = self._free.pop()
        assert self._owner[pfn] is None and self._pins[pfn] == 0, "a free frame has no owner"
        self._owner[pfn] = page
        page.pfn = pfn
        self.note(page)
        return pfn

    def release(self, page: Page) -> None:
        """Take the frame away from `page`. It is free once no fence covers it."""
        pfn = page.pfn
        assert pfn is not None and self._owner[pfn] is page, "only the owner's frame is released"
        page.pfn = None
        self._owner[pfn] = None
        for recount in page.recounts:
            recount.due = True
        self._hold_back(pfn)
        self._settle(pfn)
        self._on_change(page)

    def pin(self, pfn: Pfn) -> None:
        """A copy is going to read or write the frame: it stays until `unpin`."""
        self._pins[pfn] += 1
        self._settle(pfn)

    def unpin(self, pfn: Pfn) -> None:
        assert self._pins[pfn] > 0, "unpin follows pin"
        self._pins[pfn] -= 1
        self._settle(pfn)

    def raise_fence(self) -> None:
        """A forward was submitted: frames released from now on may still be read by it."""
        self._fences.append([])

    def hold_back(self, free: Sequence[Pfn]) -> None:
        """Keep free frames from use until the newest fence is lifted: they are junk-filled."""
        assert self._fences, "held back by a fence"
        for pfn in free:
            self._free.remove(pfn)
            self._hold_back(pfn)
            self._settle(pfn)
        self._junk.update(free)

    def lift_fence(self) -> None:
        """The oldest forward has retired: what was released since, and before the next one was
        submitted, is free."""
        assert self._fences, "a fence is lifted once"
        for pfn in self._fences.popleft():
            del self._fenced[pfn]
            self._settle(pfn)
            self._junk.discard(pfn)

    def note(self, page: Page) -> None:
        """The page has changed in any field but `pfn`: everybody's books follow."""
        for recount in page.recounts:
            recount.due = True
        if page.pfn is not None:
            self._settle(page.pfn)
        self._on_change(page)

    def take_freed_log(self) -> tuple[Pfn, ...]:
        log, self.freed_log = tuple(self.freed_log), []
        return log

    def _hold_back(self, pfn: Pfn) -> None:
        """It has no owner, but the newest forward in flight, if there is one, may still use it."""
        if self._fences:
            self._fences[-1].append(pfn)
            self._fenced[pfn] = None

    def _settle(self, pfn: Pfn) -> None:
        page = self._owner[pfn]
        if page is None:
            stranded = False
            new = _IN_TRANSFER if pfn in self._fenced else _FREE
        else:
            needed = page.active > 0
            clean = page.slot is not None or page.block is not None
            stranded = not needed and not clean and page.mapped > 0
            new = _HELD if needed or stranded else _CACHED
        if self._pins[pfn] > 0:
            new = _IN_TRANSFER
        if stranded:
            self.stranded[pfn] = page  # type: ignore[assignment]
        elif self.stranded:
            self.stranded.pop(pfn, None)
        old = self._state[pfn]
        if new is old:
            return
        self._counts[old] -= 1
        self._counts[new] += 1
        self._state[pfn] = new
        if new is _FREE:
            self._free.append(pfn)
            if pfn not in self._junk:
                self.freed_log.append(pfn)
