"""The first line: what is looked at, and how it is with the connection."""

from collections.abc import Iterable, Sequence

from tokenix.tui.widgets.drawn import Drawn, Piece


class Headline(Drawn):
    """Left: the program and the machine. Right: whether what is shown is now. Between them, where
    there is room: the views and their keys, or the keys and the name of the view in front."""

    DEFAULT_CSS = "Headline { height: 1; background: $panel; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._parts: tuple[Sequence[Piece], Sequence[Piece], Sequence[Piece]] = ((), (), ())

    def show(self, left: Sequence[Piece], views: Sequence[Piece], right: Sequence[Piece]) -> None:
        if self._parts != (left, views, right):
            self._parts = (left, views, right)
            self.redraw()

    def draw(self, width: int, height: int) -> Iterable[Sequence[Piece]]:
        left, views, right = self._parts
        room = width - _length(left) - _length(right)
        if room < _length(views) + 4:
            views = [piece for piece in views if piece[0][0].isdigit() or piece[1].endswith("!")]
        if room < _length(views) + 1:
            return [[*left, (" " * max(1, room), "text"), *right]]
        before = (room - _length(views)) // 2
        after = room - _length(views) - before
        return [[*left, (" " * before, "text"), *views, (" " * after, "text"), *right]]


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(text) for text, _ in pieces)
