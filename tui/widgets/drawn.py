"""The base of widgets that draw lines: what has not changed is not drawn again."""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import itemgetter

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from tokenix.tui.widgets.ink import Ink, ink_of

Piece = tuple[str, str]
"""Text and the role it is drawn in; the role may end in `!` for bold."""


class Drawn(Widget):
    """Draws `draw(width, height)`: for each line the pieces it is made of. `redraw()` says that
    something has changed; a new size or theme is noticed."""

    DEFAULT_CSS = "Drawn { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._drawn: list[Strip] = []
        self._drawn_for: tuple[int, int, Ink] | None = None

    def draw(self, width: int, height: int) -> Iterable[Sequence[Piece]]:
        """The lines, at most `height`."""
        raise AssertionError("a drawn widget draws")

    def redraw(self) -> None:
        self._drawn_for = None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        ink = ink_of(self.app)
        if self._drawn_for != (width, height, ink):
            ground = self.rich_style
            lines = islice(self.draw(width, height), height)
            self._drawn = [strip(pieces, ink, width).apply_style(ground) for pieces in lines]
            self._drawn += [Strip.blank(width, ground)] * (height - len(self._drawn))
            self._drawn_for = (width, height, ink)
        return self._drawn[y]


def strip(pieces: Sequence[Piece], ink: Ink, width: int) -> Strip:
    """A line of exactly so many cells, in as few segments as it has changes of ink. One that is cut
    ends in an ellipsis."""
    segments = [
        Segment("".join(text for text, _ in run), ink(role.removesuffix("!"), role.endswith("!")))
        for role, run in groupby(pieces, key=itemgetter(1))
    ]
    line = Strip(segments)
    if line.cell_length > width > 0 and line.crop(width).text.strip():
        return Strip([*line.crop(0, width - 1), Segment("…", ink("faint"))])
    return line.adjust_cell_length(width)
