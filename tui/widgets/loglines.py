"""The lines of a log, of which only those on screen are made."""

from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tokenix.tui.model.events import Log, line
from tokenix.tui.widgets.drawn import strip
from tokenix.tui.widgets.ink import pen_of


class LogLines(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows a `Log`; stays at its end until it is scrolled up."""

    DEFAULT_CSS = """
    LogLines { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0;
               overflow-x: hidden; overflow-y: auto; }
    """

    def __init__(self, log: Log, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._log = log
        self.follows = True
        self.excuse = ""
        """Why there is nothing."""

    def show(self) -> None:
        """The log has changed."""
        self.virtual_size = Size(self.size.width, max(1, len(self._log.shown)))
        if self.follows:
            self.scroll_end(animate=False, immediate=True)
        self.refresh()

    def follow(self) -> None:
        self.follows = True
        self.show()

    def move(self, lines: int) -> None:
        """Up or down; at the end it follows again."""
        end = max(0, len(self._log.shown) - self.size.height)
        at = min(end, max(0, self.scroll_offset.y + lines))
        self.follows = at == end
        self.scroll_to(y=at, animate=False, immediate=True)

    def on_resize(self, _: events.Resize) -> None:
        self.show()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(3)

    def render_line(self, y: int) -> Strip:
        pen, width = pen_of(self), self.size.width
        at = self.scroll_offset.y + y
        shown = self._log.shown
        if at < len(shown):
            return strip(line(shown[at]), pen, width)
        if y == 0:
            words = self.excuse or "nothing notable has happened; a shows all events"
            return strip([(words, "faint")], pen, width)
        return pen.blank(width)
