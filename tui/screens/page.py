"""The base of the screens beside the first one: headline, body, footer; shown anew with every look.

A page asks for what a look does not bring, while it is in front: one question of each kind at a
time, so that a slow answer delays the next question and nothing else.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from textual import on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from tokenix.tui.messages import Looked
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import View
from tokenix.tui.widgets.foot import Foot
from tokenix.tui.widgets.headline import Headline

if TYPE_CHECKING:
    from tokenix.tui.app import TopApp

Answer = TypeVar("Answer")

SHORT_LINES, NARROW_CELLS = 34, 110
"""A terminal of fewer gets the class `small`."""


class Page(Screen[None]):
    """`body` makes its widgets, `show` fills them from a look, `question` asks for more."""

    DEFAULT_CSS = """
    Page .panel { border: round $border; border-title-color: $foreground 70%;
                  border-title-style: bold; border-subtitle-color: $foreground 50%;
                  height: 1fr; width: 1fr; padding: 0 1; }
    Page.small .panel { border: none; border-top: solid $border; padding: 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: set[str] = set()

    @property
    def top(self) -> "TopApp":
        return cast("TopApp", self.app)

    def body(self) -> ComposeResult:
        """Its widgets."""
        raise AssertionError("a page has a body")

    def show(self, look: Snapshot) -> None:
        """The newest look."""
        raise AssertionError("a page shows looks")

    def question(self) -> None:
        """Ask for what the look did not bring."""

    def compose(self) -> ComposeResult:
        yield Headline()
        yield from self.body()
        yield Foot()

    def on_mount(self) -> None:
        self._show()

    def on_screen_resume(self) -> None:
        self._show()

    def on_resize(self) -> None:
        small = self.size.height < SHORT_LINES or self.size.width < NARROW_CELLS
        self.set_class(small, "small")

    @on(Looked)
    def _looked(self) -> None:
        self._show()

    def _show(self) -> None:
        self.query_one(Headline).show(*self.top.headline())
        if self.top.snapshot is not None:
            self.show(self.top.snapshot)
            self.question()

    def inquire(
        self, what: str, work: Callable[[View], Answer], then: Callable[[Answer | OSError], Any]
    ) -> None:
        """Ask, unless the same question is not answered yet. `then` gets the answer, or why there
        is none, if the page is still there."""
        if what in self._asked:
            return
        self._asked.add(what)

        def answered(found: Answer | OSError) -> None:
            self._asked.discard(what)
            if self.is_attached:
                then(found)

        self.top.ask(work, answered, answered)


def titled(widget: Widget, title: str) -> Widget:
    """A panel with its title."""
    widget.border_title = title
    widget.add_class("panel")
    return widget
