"""The base of widgets that draw lines: a line that is as it was is not shown again."""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import itemgetter

from rich.segment import Segment
from textual.geometry import NULL_SPACING, Region
from textual.strip import Strip
from textual.widget import Widget

from tokenix.tui.widgets.ink import Pen, pen_of

Piece = tuple[str, str]
"""Text and the role it is drawn in; the role may end in `!` for bold."""


class Drawn(Widget):
    """Draws `draw(width, height)`: for each line the pieces it is made of. `redraw()` says that
    something has changed; a new size or theme is noticed."""

    DEFAULT_CSS = "Drawn { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._pieces: list[tuple[Piece, ...]] = []
        self._strips: list[Strip] = []
        """Of the same lines."""
        self._drawn_for: tuple[int, int, Pen] | None = None
        """Width and height, and what they are drawn with."""

    def draw(self, width: int, height: int) -> Iterable[Sequence[Piece]]:
        """The lines, at most `height`."""
        raise AssertionError("a drawn widget draws")

    def redraw(self) -> None:
        """Draw, and show those lines that are others now."""
        if self._drawn_for is None or self._drawn_for != self._wanted():
            self._drawn_for = None
            self.refresh()
        elif changed := self._draw(*self._drawn_for):
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Textual's way, which takes as long as drawing does, is for those with a frame."""
        wanted = self._wanted()
        if self._drawn_for != wanted:
            self._pieces, self._drawn_for = [], wanted
            self._draw(*wanted)
        if self.styles.gutter != NULL_SPACING:
            return super().render_lines(crop)
        return cropped([self._strips[y] for y in crop.line_range], crop)

    def render_line(self, y: int) -> Strip:
        return self._strips[y]

    def _wanted(self) -> tuple[int, int, Pen]:
        return (*self.size, pen_of(self))

    def _draw(self, width: int, height: int, pen: Pen) -> list[int]:
        """Which lines are others than before."""
        old = self._pieces
        lines = [tuple(line) for line in islice(self.draw(width, height), height)]
        self._pieces = lines + [()] * (height - len(lines))
        changed = [y for y, line in enumerate(self._pieces) if old[y : y + 1] != [line]]
        kept = self._strips[:height]
        self._strips = kept + [pen.blank(width)] * (height - len(kept))
        for y in changed:
            self._strips[y] = strip(self._pieces[y], pen, width)
        return changed


def strip(pieces: Sequence[Piece], pen: Pen, width: int) -> Strip:
    """A line of exactly so many cells, in as few segments as it has changes of ink. One that is cut
    ends in an ellipsis."""
    segments = [
        Segment("".join(text for text, _ in run), pen(role.removesuffix("!"), role.endswith("!")))
        for role, run in groupby(pieces, key=itemgetter(1))
    ]
    line = Strip(segments)
    if line.cell_length > width > 0 and line.crop(width).text.strip():
        return Strip([*line.crop(0, width - 1), Segment("…", pen("faint"))])
    return line.adjust_cell_length(width, pen.ground)


def cropped(lines: list[Strip], crop: Region) -> list[Strip]:
    """What of whole lines is asked for."""
    return [line.crop(*crop.column_span) for line in lines]
