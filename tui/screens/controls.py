"""Control variables (`sysctl`): found by words, looked at, set."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from tokenix.cli.controls import value_of
from tokenix.tui.model import controls
from tokenix.tui.screens.dialogs import Window

if TYPE_CHECKING:
    from tokenix.tui.app import TopApp


class Controls(Window[None]):
    """Words narrow the list down; Enter takes a variable, Enter again sets it to what was written.
    What the machine says against it is shown, and it can be written anew."""

    DEFAULT_CSS = """
    Controls { align: center middle; background: $background 60%; }
    Controls > Vertical { width: 78; max-width: 100%; height: auto; max-height: 90%; padding: 0 1;
                          border: round $primary; background: $surface;
                          border-title-color: $primary; border-subtitle-color: $foreground 60%; }
    Controls Input, Controls Input:focus { height: 1; border: none; padding: 0;
                                           background: $panel; }
    Controls OptionList { height: 14; border: none; padding: 0; background: $surface; }
    Controls #said { width: 1fr; height: auto; max-height: 4; }
    Controls OptionList:focus { border: none; }
    Controls #said.error { color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="controls.back"),
        Binding("down", "move(1)", "Down", show=False, id="controls.down"),
        Binding("up", "move(-1)", "Up", show=False, id="controls.up"),
    ]

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._values = dict(values)
        self._chosen: str | None = None
        """The variable that is being set."""

    @property
    def top(self) -> "TopApp":
        return cast("TopApp", self.app)

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = "Control variables"
            window.border_subtitle = "Enter takes and sets, Escape goes back"
            yield Input(placeholder="find: words of the name", id="line")
            yield OptionList(id="list", markup=False)
            yield Label("", id="said", markup=False)

    def on_mount(self) -> None:
        self._list()
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()

    def _list(self, words: str = "") -> None:
        """Those that have these words in their names."""
        found = controls.found(self._values, words)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            Option(controls.line(name, self._values[name]), id=name) for name in found
        )
        options.highlighted = 0 if found else None

    def _say(self, words: str, error: bool = False) -> None:
        label = self.query_one("#said", Label)
        label.update(words)
        label.set_class(error, "error")

    # ---- keys ----

    def action_move(self, lines: int) -> None:
        options = self.query_one(OptionList)
        if self._chosen is None and options.option_count:
            at = (options.highlighted or 0) + lines
            options.highlighted = min(options.option_count - 1, max(0, at))

    def action_back(self) -> None:
        """From writing a value to the list, from the list out."""
        if self._chosen is None:
            self.dismiss(None)
        else:
            self._choose(None)

    @on(Input.Changed, "#line")
    def _changed(self, event: Input.Changed) -> None:
        if self._chosen is None:
            self._list(event.value)

    @on(Input.Submitted, "#line")
    def _submitted(self, event: Input.Submitted) -> None:
        if self._chosen is not None:
            self._set(self._chosen, event.value.strip())
            return
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            self._choose(options.get_option_at_index(options.highlighted).id)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        if self._chosen is None:
            self._choose(event.option.id)

    def _choose(self, name: str | None) -> None:
        """Begin to write its value; None: choose again."""
        if name is not None and not self.top.may_act():
            return
        self._chosen = name
        line = self.query_one(Input)
        with self.prevent(Input.Changed):
            line.value = "" if name is None else controls.shown(self._values[name])
        line.placeholder = "find: words of the name" if name is None else "its new value"
        line.cursor_position = len(line.value)
        line.focus()
        if name is None:
            self._list()
        else:
            self._say(f"{name} is {controls.shown(self._values[name])}; write what it is to be")

    # ---- setting ----

    def _set(self, name: str, text: str) -> None:
        value = value_of(text)

        def done(_: object) -> None:
            self._values[name] = value
            if self.is_attached:
                self._choose(None)
                self._say(f"{name} is {controls.shown(value)} now")

        def failed(problem: OSError) -> None:
            if self.is_attached:
                self._say(problem.strerror or str(problem), error=True)

        self.top.ask(lambda view: view.sysctl(name, value), done, failed)
