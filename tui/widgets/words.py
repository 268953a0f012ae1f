"""Lines of words and bars that a function of the model makes."""

from collections.abc import Callable, Iterable, Sequence

from tokenix.tui.widgets.drawn import Drawn, Piece

Lines = Iterable[Sequence[Piece]]


class Words(Drawn):
    """Shows what the last function it was given makes of its width and height."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._make: Callable[[int, int], Lines] = lambda width, height: ()

    def show(self, make: Callable[[int, int], Lines]) -> None:
        self._make = make
        self.redraw()

    def draw(self, width: int, height: int) -> Lines:
        return self._make(width, height)
