"""Small windows that ask one thing."""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkType

Answer = TypeVar("Answer")
T = TypeVar("T")

WINDOW_CSS = """
    align: center middle;
    background: $background 60%;
    & > Vertical { width: auto; max-width: 76; height: auto; max-height: 90%; padding: 1 2;
                   border: round $primary; background: $surface; }
    & Label { width: auto; max-width: 70; }
    & OptionList { width: 66; max-width: 100%; height: auto; max-height: 16;
                   border: none !important; background: $surface; margin-top: 1; padding: 0; }
    & .hint { color: $text-muted; margin-top: 1; }
"""


class Window(ModalScreen[Answer]):
    """Lies over a screen and is left once: a second Enter or click may come before the first was
    heard of, and must not leave what is below."""

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Palette(CommandPalette):
    """Textual's palette of commands. Keys may come too late, as to a `Window`, and before it has
    drawn its list."""

    def dismiss(self, result: object = None) -> AwaitComplete:
        return super().dismiss(None) if self.is_active else AwaitComplete()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "command_list" and not self.query_one(CommandList).size:
            return False
        return super().check_action(action, parameters)

    def run_worker(self, work: WorkType[T], *args: Any, **options: Any) -> Worker[T]:
        """A search that finds its list gone, since the palette was left, ends nothing else."""
        return super().run_worker(work, *args, **{**options, "exit_on_error": False})


class Choice(Window[str | None]):
    """One of several things, by its id; None: none of them."""

    DEFAULT_CSS = f"Choice {{ {WINDOW_CSS} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Back", show=False)
    ]

    def __init__(self, title: str, options: Sequence[tuple[str, str]], first: str = "") -> None:
        """`options`: id and words of each; `first` is under the cursor."""
        super().__init__()
        self._title, self._options, self._first = title, options, first

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._title, markup=False)
            yield OptionList(
                *(Option(words, id=name) for name, words in self._options), markup=False
            )
            yield Label("Enter chooses, Escape leaves", classes="hint")

    def on_mount(self) -> None:
        names = [name for name, _ in self._options]
        if self._first in names:
            self.query_one(OptionList).highlighted = names.index(self._first)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


class Confirm(Window[bool]):
    """Yes or no, before something that cannot be undone."""

    DEFAULT_CSS = f"Confirm {{ {WINDOW_CSS} & > Vertical {{ border: round $error; }} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", "Yes"),
        Binding("n,escape,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            yield Label("y: yes   n: no", classes="hint")
