"""The meters above the table, one widget: Textual has a task and a cache for each."""

from tokenix.tui.model import meters
from tokenix.tui.model.gauges import Gauges
from tokenix.tui.model.history import History
from tokenix.tui.widgets.drawn import Drawn
from tokenix.tui.widgets.words import Lines


class Meters(Drawn):
    """Four panels. With the class `brief`, four lines; with `none`, nothing."""

    DEFAULT_CSS = """
    Meters { height: 12; }
    Meters.brief { height: 4; }
    Meters.none { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: tuple[Gauges, History] | None = None

    def show(self, gauges: Gauges, history: History) -> None:
        """The figures of a new look."""
        self._of = gauges, history
        self.redraw()

    def draw(self, width: int, height: int) -> Lines:
        if self._of is None:
            return ()
        gauges, history = self._of
        if self.has_class("brief"):
            return [[(" ", "text"), *line] for line in meters.brief(gauges, width - 2)]
        return meters.full(gauges, history, width, height)
