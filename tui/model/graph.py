"""A history as an area of braille, below a line of words."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenix.tui.model import plot
from tokenix.tui.model.columns import count
from tokenix.tui.model.phrases import Piece, Pieces


@dataclass(frozen=True, slots=True)
class Graph:
    """The newest samples of a series, at the right. The upper edge is a round number, `least` or
    more, which the line of words names."""

    title: str
    samples: Sequence[float]
    figure: str
    """What it is now."""
    roles: Sequence[str]
    """Of the graph's lines from below, spread over the height."""
    unit: str = ""
    least: float = 1.0
    mark: float | None = None
    """Where a dashed line is to be."""

    def lines(self, width: int, height: int) -> list[Pieces]:
        """So many. On one line alone, the words and a short graph."""
        samples = plot.newest(self.samples, 2 * width)
        top = plot.ceiling(samples, max(self.least, self.mark or 0.0))
        edge = f"{count(top) if top >= 10 else f'{top:g}'}{self.unit}"
        head: list[Piece] = [(f"{self.title} ", "muted"), (self.figure, "text!")]
        room = width - sum(len(text) for text, _ in head)
        if height == 1:
            spark = plot.braille(samples, max(0, room - 1), 1, top)[0]
            return [[*head, (" ", "text"), (spark, self.roles[0])]]
        lines = enumerate(reversed(plot.braille(samples, width, height - 1, top)))
        drawn = [self._line(line, row, height - 1, top) for row, line in lines]
        return [[*head, (edge.rjust(room), "faint")], *reversed(drawn)]

    def _line(self, line: str, row: int, rows: int, top: float) -> Pieces:
        """One of the graph's lines; `row` counts from below."""
        role = self.roles[row * len(self.roles) // rows]
        if self.mark is None or row != min(rows - 1, int(self.mark / top * rows)):
            return [(line, role)]
        return [("╌", "faint") if char == chr(plot.BLANK) else (char, role) for char in line]
