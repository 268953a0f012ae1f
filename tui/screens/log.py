"""The log of the kernel: notable events as they come, or all, narrowed down by words."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from tokenix.syscalls.types import TraceEvent
from tokenix.tui.model.events import Log
from tokenix.tui.screens.page import Page, titled
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.widgets.loglines import LogLines

BATCH = 1000
"""Events of one answer."""


class LogScreen(Page):
    DEFAULT_CSS = """
    LogScreen #search { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    LogScreen #search.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Find", priority=True, id="log.search"),
        Binding("a", "all", "All events", id="log.all"),
        Binding("f,end,G", "follow", "Follow", id="log.follow"),
        Binding("escape", "clear", "Show all", show=False, id="log.clear"),
        Binding("up", "scroll(-1)", "Up", show=False, id="log.up"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="log.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="log.page-up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="log.page-down"),
        Binding("home", "scroll(-1000000)", "First", show=False, id="log.first"),
        Binding("space", "app.freeze", "Freeze", id="log.freeze"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._log = Log()
        self._time_s = 0.0

    def body(self) -> ComposeResult:
        yield titled(LogLines(self._log, id="lines"), "Log")
        yield Input(placeholder="find: words, a pid, a kind of event", id="search")

    def on_mount(self) -> None:
        self._lines.focus()

    @property
    def _lines(self) -> LogLines:
        return self.query_one(LogLines)

    def show(self, look: Snapshot) -> None:
        if look.time_s < self._time_s:
            self._log.clear()
        self._time_s = look.time_s
        self._title()

    def _title(self) -> None:
        kinds = "all events" if self._log.all_kinds else "what is notable"
        words = f', with "{self._log.wanted}"' if self._log.wanted else ""
        self._lines.border_title = f"Log: {kinds}{words}"
        follows = "follows" if self._lines.follows else "stands still; f follows"
        self._lines.border_subtitle = (
            f"{len(self._log.shown)} of {len(self._log.events)}, {follows}"
        )

    def question(self) -> None:
        since = self._log.last
        if not self.top.frozen:
            self.inquire("log", lambda view: view.trace(since=since, limit=BATCH), self._take)

    def _take(self, found: tuple[TraceEvent, ...] | OSError) -> None:
        if isinstance(found, OSError):
            self._lines.excuse = found.strerror or str(found)
            self._lines.show()
            return
        self._lines.excuse = ""
        self._log.take(found)
        self._lines.show()
        self._title()
        if len(found) == BATCH:
            self.question()

    # ---- keys ----

    def action_all(self) -> None:
        """All events, or only what is notable."""
        self._log.show_all(not self._log.all_kinds)
        self._changed()

    def action_follow(self) -> None:
        self._lines.follow()
        self._title()

    def action_scroll(self, lines: int) -> None:
        self._lines.move(lines)
        self._title()

    def action_page(self, pages: int) -> None:
        self.action_scroll(pages * max(1, self._lines.size.height - 1))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Where words are written, a slash is one of their signs."""
        if action == "search" and isinstance(self.focused, Input):
            return None
        return super().check_action(action, parameters)

    def action_search(self) -> None:
        """At once (a binding of priority, and no `focus()`), for what is typed next in haste."""
        box = self.query_one("#search", Input)
        box.add_class("open")
        box.value = self._log.wanted
        self.set_focus(box)

    def action_clear(self) -> None:
        box = self.query_one("#search", Input)
        box.value = ""
        box.remove_class("open")
        self._log.search("")
        self._changed()
        self._lines.focus()

    @on(Input.Changed, "#search")
    def _search_changed(self, event: Input.Changed) -> None:
        self._log.search(event.value)
        self._changed()

    @on(Input.Submitted, "#search")
    def _search_done(self, event: Input.Submitted) -> None:
        if not event.value:
            self.query_one("#search", Input).remove_class("open")
        self._lines.focus()

    def _changed(self) -> None:
        self._lines.show()
        self._title()
