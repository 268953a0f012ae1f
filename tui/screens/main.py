"""The first screen: meters, and the process table."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from tokenix.syscalls.types import ProcessStat
from tokenix.tui.messages import Looked
from tokenix.tui.model import columns, phrases
from tokenix.tui.model.gauges import gauges
from tokenix.tui.model.listing import Listing
from tokenix.tui.screens.acts import Acts, act_keys
from tokenix.tui.screens.dialogs import Choice
from tokenix.tui.snapshot import Note
from tokenix.tui.widgets.foot import Foot
from tokenix.tui.widgets.headline import Headline
from tokenix.tui.widgets.meters import Meters
from tokenix.tui.widgets.proctable import ProcessTable
from tokenix.tui.widgets.words import Words

SHORT_LINES, NARROW_CELLS = 34, 110
"""A terminal of fewer has the brief meters, unless other ones are chosen."""
FORMS = ("auto", "full", "brief", "none")


def _key(keys: str, action: str, words: str, name: str, show: bool = False) -> Binding:
    return Binding(keys, action, words, show=show, id=f"table.{name}")


class MainScreen(Acts):
    """Meters, table, footer; acts on the process under the cursor."""

    DEFAULT_CSS = """
    MainScreen #search { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    MainScreen #search.open { display: block; }
    MainScreen #notes { display: none; height: 7; border: round $accent 60%; padding: 0 1;
                        border-title-color: $accent; border-title-style: bold; }
    MainScreen #notes.some { display: block; }
    MainScreen.small #notes { height: 4; border: none; border-top: solid $accent 60%;
                              padding: 0 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "open", "Open", "open", True),
        Binding("slash", "search", "Find", priority=True, id="table.search"),
        *act_keys("table"),
        _key("f6,o", "order", "Sort", "order", True),
        _key("f5,t", "tree", "Tree", "tree", True),
        _key("space", "app.freeze", "Freeze", "freeze"),
        _key("r", "turn", "Reverse", "reverse"),
        _key("less_than_sign,comma", "beside(-1)", "Sort by the column before", "sort-left"),
        _key("greater_than_sign,full_stop", "beside(1)", "Sort by the next column", "sort-right"),
        _key("f", "follow", "Follow", "follow"),
        _key("p", "prompts", "Prompts", "prompts"),
        _key("g", "meters", "Meters", "meters"),
        _key("up", "move(-1)", "Up", "up"),
        _key("down,j", "move(1)", "Down", "down"),
        _key("pageup", "page(-1)", "Page up", "page-up"),
        _key("pagedown", "page(1)", "Page down", "page-down"),
        _key("home", "move(-1000000)", "First", "first"),
        _key("end,G", "move(1000000)", "Last", "last"),
        _key("escape", "clear", "Show all", "clear"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._form = FORMS[0]
        self._said: Sequence[Note] = ()
        """What a demonstration has said, as shown."""

    @property
    def listing(self) -> Listing:
        return self.top.listing

    def compose(self) -> ComposeResult:
        yield Headline()
        yield Meters()
        yield Words(id="notes")
        yield ProcessTable(self.listing, id="table")
        yield Input(placeholder="find: words of pid, tenant, class, state", id="search")
        yield Foot()

    def on_mount(self) -> None:
        self.query_one("#notes").border_title = "What happens"
        self._table.focus()
        self._show()

    def on_screen_resume(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self._shape()

    @property
    def _table(self) -> ProcessTable:
        return self.query_one(ProcessTable)

    @on(Looked)
    def _looked(self) -> None:
        self._show()

    def _show(self) -> None:
        """The newest look."""
        self.query_one(Headline).show(*self.top.headline())
        look = self.top.snapshot
        if look is None:
            return
        cursor = self.listing.cursor
        figures = gauges(look, self.top.history)
        self.listing.take(look.processes, sum(figures.states.values()) - len(look.processes))
        self.query_one(Meters).show(figures, self.top.history)
        if look.notes or self._said:
            self._show_notes(look.notes)
        self._table.show(self.listing.cursor != cursor)
        self.top.source.watch([line.process.pid for line in self._table.in_sight()])

    def _show_notes(self, notes: Sequence[Note]) -> None:
        self._said = notes
        words = self.query_one("#notes", Words)
        words.set_class(bool(notes), "some")
        words.show(lambda width, height: phrases.notes(notes, width, height))

    # ---- the table ----

    @on(ProcessTable.HeadClicked)
    def _head_clicked(self, event: ProcessTable.HeadClicked) -> None:
        self._change(lambda: self.listing.sort_by(event.column))

    @on(ProcessTable.Opened)
    def _opened(self, event: ProcessTable.Opened) -> None:
        self.top.open_process(event.process.pid)

    def action_open(self) -> None:
        self._with_chosen(lambda process: self.top.open_process(process.pid))

    def action_move(self, lines: int) -> None:
        self._table.move_to(self.listing.cursor + lines)

    def action_page(self, pages: int) -> None:
        self.action_move(pages * self._table.page())

    def action_turn(self) -> None:
        self._change(self.listing.turn)

    def action_tree(self) -> None:
        self._change(lambda: self.listing.fold(not self.listing.as_tree))

    def action_beside(self, steps: int) -> None:
        shown = [column.name for column, _ in self._table.shown]
        self._change(lambda: self.listing.sort_beside(steps, shown))

    def action_follow(self) -> None:
        self.listing.follow = not self.listing.follow
        what = "follows its process" if self.listing.follow else "stays at its line"
        self.notify(f"the cursor {what}", timeout=1.5)
        self._show()

    def action_prompts(self) -> None:
        self.listing.prompts = not self.listing.prompts
        self._table.show()

    def action_order(self) -> None:
        def chosen(name: str | None) -> None:
            if name is not None:
                self._change(lambda: self.listing.sort_by(name))

        options = [(c.name, f"{c.title:<8} {c.help}") for c in columns.COLUMNS]
        self.app.push_screen(Choice("Sort by", options, self.listing.sorted_by), chosen)

    def _change(self, change: Callable[[], None]) -> None:
        change()
        self._table.show()

    # ---- find ----

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Where words are written, a slash is one of their signs."""
        if action == "search" and isinstance(self.focused, Input):
            return None
        return super().check_action(action, parameters)

    def action_search(self) -> None:
        """At once (a binding of priority, and no `focus()`), for what is typed next in haste."""
        box = self.query_one("#search", Input)
        box.add_class("open")
        box.value = self.listing.wanted
        self.set_focus(box)

    def action_clear(self) -> None:
        box = self.query_one("#search", Input)
        box.value = ""
        box.remove_class("open")
        self._change(lambda: self.listing.search(""))
        self._table.focus()

    @on(Input.Changed, "#search")
    def _search_changed(self, event: Input.Changed) -> None:
        self._change(lambda: self.listing.search(event.value))

    @on(Input.Submitted, "#search")
    def _search_done(self, event: Input.Submitted) -> None:
        if not event.value:
            self.query_one("#search", Input).remove_class("open")
        self._table.focus()

    # ---- meters ----

    def action_meters(self) -> None:
        self._form = FORMS[(FORMS.index(self._form) + 1) % len(FORMS)]
        self._shape()
        self.notify(f"meters: {self._form}", timeout=1.5)

    def _shape(self) -> None:
        small = self.size.height < SHORT_LINES or self.size.width < NARROW_CELLS
        self.set_class(small, "small")
        form = ("brief" if small else "full") if self._form == "auto" else self._form
        meters = self.query_one(Meters)
        meters.set_class(form == "brief", "brief")
        meters.set_class(form == "none", "none")

    # ---- acts ----

    @property
    def chosen(self) -> ProcessStat | None:
        return self.listing.chosen

    def _act_on_chosen(self, do: Callable[[ProcessStat], None]) -> None:
        """The next key acts on the same process, wherever it is listed then."""
        self.listing.follow = True
        super()._act_on_chosen(do)

    def _with_chosen(self, do: Callable[[ProcessStat], None]) -> None:
        """With the process under the cursor, if there is one."""
        if self.chosen is not None:
            do(self.chosen)
