"""The process table as it is looked at: which processes, in what order, where the cursor is.

    take(look) --> lines, cursor          and: sort_by, reverse, search, fold into a tree, follow

It holds choices and the last look; `lines` follow from both. Only what is on screen becomes text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tokenix.cli.processes import tree
from tokenix.cli.table import cells, cut, in_cells, printable
from tokenix.syscalls.types import Pid, ProcessStat
from tokenix.tui.model import columns, palette
from tokenix.tui.model.columns import Extras
from tokenix.tui.model.history import History

FIRST_ORDER: Final = "lead"


class Line(NamedTuple):
    process: ProcessStat
    branch: str
    """In the tree: what leads to it."""


@dataclass(slots=True)
class Listing:
    history: History
    sorted_by: str = FIRST_ORDER
    reverse: bool = False
    """Against the natural order of the column."""
    wanted: str = ""
    """Only lines in which all its words are found."""
    as_tree: bool = False
    follow: bool = False
    """The cursor stays with its process, not at its line: as soon as it was moved there, so that
    two keys in a row act on one process."""
    prompts: bool = False
    """Commands are shown."""
    lines: Sequence[Line] = ()
    cursor: int = 0
    """Of `lines`; 0 if there are none."""
    _processes: Sequence[ProcessStat] = field(default=())
    _looked: bool = False
    _others: int = 0

    # ---- looks and choices ----

    def take(self, processes: Sequence[ProcessStat], others: int = 0) -> None:
        """The processes of a new look; `others` there are that the user does not see."""
        self._processes, self._others, self._looked = processes, others, True
        self._arrange(self.follow)

    def sort_by(self, name: str) -> None:
        """By a column; again by the same one: the other way round."""
        assert name in columns.BY_NAME, "a column of the table"
        self.reverse = name == self.sorted_by and not self.reverse
        self.sorted_by, self.as_tree = name, False
        self._arrange(self.follow)

    def sort_beside(self, steps: int, shown: Sequence[str]) -> None:
        """By the column so many further right, of those that are shown, if any are."""
        if not shown:
            return
        at = shown.index(self.sorted_by) if self.sorted_by in shown else 0
        self.reverse = False
        self.sorted_by, self.as_tree = shown[(at + steps) % len(shown)], False
        self._arrange(self.follow)

    def turn(self) -> None:
        """The other way round."""
        self.reverse = not self.reverse
        self._arrange(self.follow)

    def search(self, words: str) -> None:
        self.wanted = words
        self._arrange(True)

    def fold(self, as_tree: bool) -> None:
        self.as_tree = as_tree
        self._arrange(True)

    def point(self, to: int) -> None:
        """The cursor at a line, as a user moves it: below the first one it follows its process."""
        self.move(to)
        self.follow = self.cursor > 0

    def move(self, to: int) -> None:
        """The cursor, to a line or the nearest there is."""
        self.cursor = min(max(0, to), max(0, len(self.lines) - 1))

    # ---- what is shown ----

    def fitting(self, width: int) -> Sequence[tuple[columns.Column, int]]:
        """Those that fit, with their widths. The tree is drawn in that of commands."""
        return columns.fitting(width, self.sorted_by, self.prompts or self.as_tree)

    @property
    def emptiness(self) -> str:
        """Why there are no lines."""
        if not self._looked:
            return "no answer yet"
        if self._processes:
            return f"nothing has {printable(self.wanted)!r}; Escape shows all"
        if self._others:
            return f"{columns.count(self._others)} run for other users; only root sees them"
        return 'nothing is asked just now; tokenix run "Hello" asks something'

    @property
    def chosen(self) -> ProcessStat | None:
        """The process under the cursor."""
        return self.lines[self.cursor].process if self.lines else None

    def extras(self, line: Line) -> Extras:
        """What a row shows beyond its process."""
        process = line.process
        words = process.name if self.prompts else ""
        return Extras(self.history.tokens_per_s(process.pid), line.branch, words)

    def cells(self, line: Line, shown: Iterable[tuple[columns.Column, int]]) -> list[str]:
        """The text of a row, each cell as wide as its column."""
        extras = self.extras(line)
        return [
            fitted(column.text(line.process, extras), width, column.left) for column, width in shown
        ]

    def _arrange(self, stay: bool) -> None:
        chosen = self.chosen
        found = [process for process in self._processes if self._is_wanted(process)]
        self.lines = [Line(*each) for each in tree(found)] if self.as_tree else self._sorted(found)
        if stay and chosen is not None:
            self.cursor = self._line_of(chosen.pid)
        self.move(self.cursor)

    def _sorted(self, processes: list[ProcessStat]) -> list[Line]:
        column = columns.BY_NAME[self.sorted_by]
        descending = (column.name not in columns.ASCENDING) != self.reverse
        if column.name == "rate":
            pace = self.history.tokens_per_s
            processes.sort(key=lambda p: pace(p.pid), reverse=descending)
        else:
            key, none = column.key, columns.NO_EXTRAS
            processes.sort(key=lambda p: key(p, none), reverse=descending)
        return [Line(process, "") for process in processes]

    def _is_wanted(self, process: ProcessStat) -> bool:
        if not self.wanted:
            return True
        look = palette.state_of(process.state, process.held)
        text = f"{process.pid} {process.tenant} {process.qos} {look.word} {process.state}"
        if self.prompts:
            text += " " + process.name
        text = text.lower()
        return all(word in text for word in self.wanted.lower().split())

    def _line_of(self, pid: Pid) -> int:
        """Where a process is now; if it is gone, where the cursor was."""
        for at, line in enumerate(self.lines):
            if line.process.pid == pid:
                return at
        return self.cursor


def fitted(text: str, width: int, left: bool) -> str:
    """Exactly so wide, in cells of a terminal; what is cut ends in an ellipsis."""
    if cells(text) > width:
        text = cut(text, width - 1) + "…"
    return in_cells(text, width, left)
