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
from tokenix.tui.model import palette
from tokenix.tui.model.columns import Column
from tokenix.tui.model.listing import Line, Listing
from tokenix.tui.widgets.drawn import cropped
from tokenix.tui.widgets.ink import Pen, pen_of

Shown = Sequence[tuple[Column, int]]
"""Columns and their widths."""
BRIGHT = frozenset({"pid", "output", "rate", "device"})
"""Columns that are looked at first."""
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
    def shown(self) -> Shown:
        return self.listing.fitting(max(1, self.size.width - 1))

    def show(self, cursor_moved: bool = True) -> None:
        """The listing has changed. If the cursor has not, what is in sight stays so."""
        self.virtual_size = Size(self.size.width, len(self.listing.lines) + 1)
        if cursor_moved:
            self._keep_cursor_in_sight()
        self.refresh()

    # ---- lines ----

    def render_lines(self, crop: Region) -> list[Strip]:
        """All lines of a look are new, and have no border or padding: what the base class looks up
        for each line is looked up once, which is a third of what drawing them costs."""
        pen, shown = pen_of(self), self.shown
        width = self.scrollable_size.width  # a line below the bar would be cut for it
        return cropped([self._line(y, pen, shown, width) for y in crop.line_range], crop)

    def _line(self, y: int, pen: Pen, shown: Shown, width: int) -> Strip:
        at = self.scroll_offset.y + y - 1
        if y and at == self.listing.cursor and self.listing.lines:
            pen = pen.at_cursor()
        if y == 0:
            segments = self._head(pen, shown)
        elif not self.listing.lines and y == 2:
            segments = [Segment(f"   {self.listing.emptiness}", pen("faint"))]
        elif at < len(self.listing.lines):
            segments = self._cells(self.listing.lines[at], pen, shown)
        else:
            return pen.blank(width)
        return Strip(segments).adjust_cell_length(width, pen.ground)

    def _head(self, pen: Pen, shown: Shown) -> list[Segment]:
        segments = []
        for column, width in shown:
            mine = column.name == self.listing.sorted_by and not self.listing.as_tree
            style = pen("text" if mine else "muted", bold=True) + Style(underline=mine)
            title = column.title.ljust(width) if column.left else column.title.rjust(width)
            if column.name == "command" and not self.listing.prompts:
                hint = " (p shows)"
                title = (column.title + hint if width > 16 else column.title).ljust(width)
            segments += [Segment(title, style), Segment(" ", pen.ground)]
        return segments[:-1]

    def _cells(self, line: Line, pen: Pen, shown: Shown) -> list[Segment]:
        """A row, in as few segments as it has changes of ink."""
        process = line.process
        segments: list[Segment] = []
        run, run_style = "", pen("muted")
        for (column, _), text in zip(shown, self.listing.cells(line, shown), strict=True):
            style = pen(_role(column.name, process))
            if style is not run_style:
                segments.append(Segment(run, run_style))
                run, run_style = "", style
            run += text + " "
        segments.append(Segment(run[:-1], run_style))
        return segments

    # ---- the cursor ----

    def move_to(self, line: int) -> None:
        self.listing.point(line)
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


def _role(column: str, process: ProcessStat) -> str:
    """In which ink a cell is written. The lead is red as long as its reader waits, and yellow as it
    is about to."""
    if column == "state":
        return palette.state_of(process.state, process.held).role
    if process.state == "zombie":
        return "muted"
    if column == "lead" and process.lead_s is not None:
        if process.lead_s < SOON_S:
            return "error" if process.lead_s < 0 else "warning"
        return "success" if process.state in ("running", "ready") else "primary"
    return "text" if column in BRIGHT else "muted"
