"""A history as an area of braille."""

from collections.abc import Iterable, Sequence

from tokenix.tui.model import plot
from tokenix.tui.model.columns import count
from tokenix.tui.widgets.drawn import Drawn, Piece


class Graph(Drawn):
    """The newest samples of a series, at the right, below a line of words. Its upper edge is a
    round number, `least` or more, which the line names. `roles`: of the graph's lines from below,
    spread over the height. On one line alone, the words and a short graph."""

    def __init__(
        self, title: str, roles: Sequence[str], unit: str = "", least: float = 1.0,
        *, id: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(id=id)
        self._title, self._roles, self._unit, self._least = title, roles, unit, least
        self._samples: Sequence[float] = ()
        self._figure = ""
        self._mark: float | None = None

    def show(self, samples: Sequence[float], figure: str, mark: float | None = None) -> None:
        """A new history, what it is now in words, and where a dashed line is to be."""
        self._samples, self._figure, self._mark = samples, figure, mark
        self.redraw()

    def draw(self, width: int, height: int) -> Iterable[Sequence[Piece]]:
        samples = plot.newest(self._samples, 2 * width)
        top = plot.ceiling(samples, max(self._least, self._mark or 0.0))
        edge = f"{count(top) if top >= 10 else f'{top:g}'}{self._unit}"
        head: list[Piece] = [(f"{self._title} ", "muted"), (self._figure, "text!")]
        room = width - sum(len(text) for text, _ in head)
        if height == 1:
            spark = plot.braille(samples, max(0, room - 1), 1, top)[0]
            return [[*head, (" ", "text"), (spark, self._roles[0])]]
        lines = enumerate(reversed(plot.braille(samples, width, height - 1, top)))
        drawn = [self._line(line, row, height - 1, top) for row, line in lines]
        return [[*head, (edge.rjust(room), "faint")], *reversed(drawn)]

    def _line(self, line: str, row: int, rows: int, top: float) -> list[Piece]:
        """One of the graph's lines; `row` counts from below."""
        role = self._roles[row * len(self._roles) // rows]
        if self._mark is None or row != min(rows - 1, int(self._mark / top * rows)):
            return [(line, role)]
        return [("╌", "faint") if char == chr(plot.BLANK) else (char, role) for char in line]
