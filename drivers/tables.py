"""Block tables of all processes: one int32 row each, kept between steps and changed by deltas."""

import numpy as np
import numpy.typing as npt

from tokenix.drivers.ops import TableDelta
from tokenix.mm.ids import Pid


class BlockTables:
    """pages[row_of(pid), vpn] is a frame number. Only the compute thread touches it."""

    def __init__(self, frames: int, rows: int = 8, pages: int = 16) -> None:
        """rows, pages: room at first."""
        self._frames = frames
        self.pages: npt.NDArray[np.int32] = np.zeros((rows, pages), np.int32)
        """[rows, pages], grown geometrically; entries at or past a row's length are 0."""
        self._length: dict[Pid, int] = {}
        self._row: dict[Pid, int] = {}
        self._unused: list[int] = list(range(rows))[::-1]

    def __len__(self) -> int:
        return len(self._row)

    def length(self, pid: Pid) -> int:
        """Pages in the table of `pid`; 0 if there is none."""
        return self._length.get(pid, 0)

    def row_of(self, pid: Pid) -> int:
        return self._row[pid]

    def apply(self, delta: TableDelta) -> str | None:
        """table[:keep] + frames. What is wrong with it, if anything: the table is then dropped."""
        kept = self.length(delta.pid)
        if not 0 <= delta.keep <= kept:
            self.drop(delta.pid)
            return f"block table of pid {delta.pid} keeps {delta.keep} pages of {kept}"
        strange = [pfn for pfn in delta.frames if not 0 <= pfn < self._frames]
        if strange:
            self.drop(delta.pid)
            return f"block table of pid {delta.pid} names frame {strange[0]} of {self._frames}"
        row = self._row.get(delta.pid)
        if row is None:
            row = self._take_row()
            self._row[delta.pid] = row
        length = delta.keep + len(delta.frames)
        self._widen(length)
        self.pages[row, delta.keep : length] = delta.frames
        self.pages[row, length:kept] = 0
        self._length[delta.pid] = length
        return None

    def drop(self, pid: Pid) -> None:
        """Forget the table of `pid`, if there is one."""
        row = self._row.pop(pid, None)
        if row is not None:
            self.pages[row, : self._length.pop(pid)] = 0
            self._unused.append(row)

    def _take_row(self) -> int:
        if not self._unused:
            rows, width = self.pages.shape
            grown = np.zeros((2 * rows, width), np.int32)
            grown[:rows] = self.pages
            self.pages = grown
            self._unused = list(range(rows, 2 * rows))[::-1]
        return self._unused.pop()

    def _widen(self, length: int) -> None:
        rows, width = self.pages.shape
        if length > width:
            grown = np.zeros((rows, max(length, 2 * width)), np.int32)
            grown[:, :width] = self.pages
            self.pages = grown
