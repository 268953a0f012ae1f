"""The process table: lines of text, of which only those on screen are made."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tokenix.syscalls.types import ProcessStat
from tokenix.tui.model import columns, palette
from tokenix.tui.model.columns import LEAD_BAR, Column
from tokenix.tui.model.listing import Line, Listing
from tokenix.tui.widgets.ink import Ink, ink_of

SOON_S = 1.0
"""A reader with less to read than this is about to wait."""


class ProcessTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows a `Listing`; moves its cursor. The first line is the head."""

    DEFAULT_CSS = """
    ProcessTable { width: 1fr; height: 1fr; scrollbar-size-vertical: 1;
                   scrollbar-size-horizontal: 0; overflow-x: hidden; overflow-y: auto; }
    """

    class Opened(Message):
        """A process was chosen, by Enter or a second click."""

        def __init__(self, process: ProcessStat) -> None:
            super().__init__()
            self.process = process

    class HeadClicked(Message):
        """Of a column."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    hovered = reactive(-1)
    """Line under the mouse."""

    def __init__(self, listing: Listing, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.listing = listing

    @property
    def shown(self) -> list[tuple[Column, int]]:
        """Columns and their widths."""
        return columns.fitting(max(1, self.size.width - 1), self.listing.sorted_by)

    def show(self, cursor_moved: bool = True) -> None:
        """The listing has changed. If the cursor has not, what is in sight stays so."""
        self.virtual_size = Size(self.size.width, len(self.listing.lines) + 1)
        if cursor_moved:
            self._keep_cursor_in_sight()
        self.refresh()

    # ---- lines ----

    def render_line(self, y: int) -> Strip:
        ink, width, ground = ink_of(self.app), self.size.width, self.rich_style
        at = self.scroll_offset.y + y - 1
        if y == 0:
            segments = self._head(ink)
        elif at < len(self.listing.lines):
            segments = self._cells(self.listing.lines[at], ink)
        else:
            return Strip.blank(width, ground)
        if y and at == self.listing.cursor:
            ground += ink.cursor
        return Strip(segments).adjust_cell_length(width).apply_style(ground)

    def _head(self, ink: Ink) -> list[Segment]:
        segments = []
        for column, width in self.shown:
            mine = column.name == self.listing.sorted_by and not self.listing.as_tree
            style = ink("text" if mine else "muted", bold=True) + Style(underline=mine)
            title = column.title.ljust(width) if column.left else column.title.rjust(width)
            if column.name == "command" and not self.listing.prompts:
                title = "COMMAND (p shows)"[:width].ljust(width)
            segments += [Segment(title, style), Segment(" ")]
        return segments

    def _cells(self, line: Line, ink: Ink) -> list[Segment]:
        process = line.process
        shown = self.shown
        plain = ink("text")
        quiet = ink("muted")
        ended = process.state == "zombie"
        segments: list[Segment] = []
        for (column, _), text in zip(shown, self.listing.cells(line, shown), strict=True):
            match column.name:
                case "lead":
                    segments += _lead(process, text, ink)
                case "state":
                    role = palette.state_of(process.state, process.held).role
                    segments.append(Segment(text, ink(role)))
                case "pid" | "output" | "rate" | "device" if not ended:
                    segments.append(Segment(text, plain))
                case _:
                    segments.append(Segment(text, quiet))
            segments.append(Segment(" "))
        return segments

    # ---- the cursor ----

    def move_to(self, line: int) -> None:
        self.listing.move(line)
        self._keep_cursor_in_sight()
        self.refresh()

    def in_sight(self) -> Sequence[Line]:
        """The lines on screen."""
        first = self.scroll_offset.y
        return self.listing.lines[first : first + self.page()]

    def page(self) -> int:
        """Lines on one screen."""
        return max(1, self.size.height - 1)

    def _keep_cursor_in_sight(self) -> None:
        region = Region(0, self.listing.cursor, 1, 2)  # the head hides a line
        self.scroll_to_region(region, animate=False, force=True)

    def on_resize(self, _: events.Resize) -> None:
        self.show()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y == 0:
            self._click_head(event.x)
            return
        line = self.scroll_offset.y + event.y - 1
        if line >= len(self.listing.lines):
            return
        self.move_to(line)
        if event.chain == 2 and self.listing.chosen is not None:
            self.post_message(self.Opened(self.listing.chosen))

    def _click_head(self, x: int) -> None:
        at = 0
        for column, width in self.shown:
            at += width + 1
            if x < at:
                self.post_message(self.HeadClicked(column.name))
                return


def _lead(process: ProcessStat, text: str, ink: Ink) -> list[Segment]:
    """Bar and number: red as long as the reader waits, yellow as it is about to."""
    lead_s = process.lead_s
    role = (
        "muted" if lead_s is None
        else "error" if lead_s < 0
        else "warning" if lead_s < SOON_S
        else "success" if process.state in ("running", "ready")
        else "primary"
    )  # fmt: skip
    return [Segment(text[:LEAD_BAR], ink(role)), Segment(text[LEAD_BAR:], ink(role))]
