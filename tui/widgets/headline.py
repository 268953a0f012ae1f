"""The first line: what is looked at, and how it is with the connection."""

from collections.abc import Iterable, Sequence

from tokenix.tui.widgets.drawn import Drawn, Piece


class Headline(Drawn):
    """Left: the program and the machine. Right: whether what is shown is now."""

    DEFAULT_CSS = "Headline { height: 1; background: $panel; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._left: Sequence[Piece] = ()
        self._right: Sequence[Piece] = ()

    def show(self, left: Sequence[Piece], right: Sequence[Piece]) -> None:
        if (self._left, self._right) != (left, right):
            self._left, self._right = left, right
            self.redraw()

    def draw(self, width: int, height: int) -> Iterable[Sequence[Piece]]:
        used = sum(len(text) for text, _ in (*self._left, *self._right))
        return [[*self._left, (" " * max(1, width - used), "text"), *self._right]]
