"""What the simulated memories hold: device frames and host slots.

    frame   entry | cell cell cell ...        entry: the fold of everything before this page
    slot    generation, checksum, entry | cells

A page's cells were made under one fold of the prefix before it (`entry`), so whoever reads the
page must arrive with that fold. If not, attention would read another sequence's K and V, and the
reader is told so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenix.drivers.sim.model import MASK, ORIGIN, SPREAD, fold_cells, mix


class BadRead(Exception):
    """A row touched something that it must not: its RowFault's reason is the message."""


class Frame:
    """One page of device memory.

    `folds[i]` is the fold after `cells[:i + 1]`, kept so that a page is read in one comparison.
    `junk` says why the page has no contents ("poisoned", "unwritten"), "" if it has.
    """

    __slots__ = ("cells", "entry", "folds", "junk")

    def __init__(self) -> None:
        self.junk = "unwritten"
        self.entry = 0
        self.cells: list[int] = []
        self.folds: list[int] = []

    def spoil(self, why: str) -> None:
        """The contents are gone; a read reports `why`."""
        self.junk = why
        self.entry = 0
        self.cells.clear()
        self.folds.clear()

    def truncate(self, cells: int) -> None:
        """Cells from index `cells` on hold nothing that may be read."""
        del self.cells[cells:]
        del self.folds[cells:]

    def fill(self, page: "PageImage") -> None:
        """Become a copy of `page`."""
        self.junk = page.junk
        self.entry = page.entry
        self.cells[:] = page.cells
        self.folds.clear()
        fold = page.entry
        for cell in page.cells:
            fold = (fold * SPREAD + cell) & MASK
            self.folds.append(fold)

    def image(self) -> "PageImage":
        """The contents as they are at this moment."""
        return PageImage(self.junk, self.entry, tuple(self.cells))


@dataclass(frozen=True, slots=True)
class PageImage:
    """The bytes of a page on their way somewhere."""

    junk: str
    entry: int
    cells: tuple[int, ...]

    def checksum(self) -> int:
        return fold_cells(mix(self.entry, len(self.cells), 0), self.cells)


@dataclass(slots=True)
class HostPage:
    """A published page in the host tier."""

    generation: int
    checksum: int
    image: PageImage


class Memory:
    """All frames, and the two things a forward does with them: read a prefix, write cells."""

    def __init__(self, frames: int, page_tokens: int) -> None:
        self.frames = [Frame() for _ in range(frames)]
        self.page_tokens = page_tokens
        self.foreign: list[str] = []
        """Reads of pages that belong to another prefix, to be taken by the owner."""

    def read(self, table: Sequence[int], tokens: int) -> int:
        """The fold over positions 0..tokens - 1 through `table`. BadRead if a cell is not there."""
        fold = ORIGIN
        size = self.page_tokens
        frames = self.frames
        full, rest = divmod(tokens, size)
        for pfn in table[:full]:
            frame = frames[pfn]
            if frame.entry == fold and len(frame.folds) == size:
                fold = frame.folds[-1]
            else:
                fold = self._read_odd(pfn, fold, size)
        if rest:
            fold = self._read_odd(table[full], fold, rest)
        return fold

    def _read_odd(self, pfn: int, fold: int, cells: int) -> int:
        frame = self.frames[pfn]
        if frame.junk:
            raise BadRead(f"read {frame.junk} frame {pfn}")
        if len(frame.cells) < cells:
            raise BadRead(f"read unwritten cell {len(frame.cells)} of frame {pfn}")
        if frame.entry == fold:
            return frame.folds[cells - 1]
        self.foreign.append(f"frame {pfn} holds a page of another prefix")
        return fold_cells(fold, frame.cells[:cells])

    def write(self, table: Sequence[int], start: int, tokens: Sequence[int], fold: int) -> int:
        """Write cells for `tokens` at positions start, ...; returns the fold after them.

        What the frame held from a changed cell on is dead: it was made under another prefix.
        """
        size = self.page_tokens
        position = start
        for token in tokens:
            page, offset = divmod(position, size)
            frame = self.frames[table[page]]
            cell = mix(fold, token, position)
            if offset == 0 and (frame.junk or frame.entry != fold):
                frame.spoil("")
                frame.entry = fold
            fold = (fold * SPREAD + cell) & MASK
            if offset == len(frame.cells):
                frame.cells.append(cell)
                frame.folds.append(fold)
            elif frame.cells[offset] != cell:
                frame.truncate(offset)
                frame.cells.append(cell)
                frame.folds.append(fold)
            position += 1
        return fold

    def unwrite(self, table: Sequence[int], start: int, count: int) -> None:
        """A forward broke off: the cells at positions start.. are undefined."""
        size = self.page_tokens
        for page in range(start // size, -(-(start + count) // size)):
            if page < len(table):
                self.frames[table[page]].truncate(max(0, start - page * size))
