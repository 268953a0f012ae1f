"""What the keys of a screen do, what colours and columns mean."""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen

from tokenix.tui.model import columns, palette
from tokenix.tui.screens.dialogs import Window
from tokenix.tui.widgets.drawn import Piece
from tokenix.tui.widgets.words import Words


class KeyLine(NamedTuple):
    key: str
    """The first of them, as Textual calls it."""
    keys: str
    """All of them, as people do."""
    words: str
    name: str
    """For the key map in the configuration file."""


def lines_of(screen: Screen[object]) -> list[KeyLine]:
    """What can be pressed on a screen, its own keys first; keys of one action together."""
    found: dict[str, list[Binding]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.id is not None:
            found.setdefault(binding.id, []).append(binding)
    lines = [
        KeyLine(
            each[0].key,
            " ".join(screen.app.get_key_display(binding) for binding in each),
            each[0].description,
            name,
        )
        for name, each in found.items()
    ]
    return sorted(lines, key=lambda line: line.name.startswith(("app.", "view.")))


class Help(Window[None]):
    """Any key that usually goes back does."""

    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > Vertical { width: 84; max-width: 100%; height: auto; max-height: 96%; padding: 0 1;
                      border: round $primary; background: $surface;
                      border-title-color: $primary; border-subtitle-color: $foreground 60%; }
    Help VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    Help Words { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "dismiss", "Back")
    ]

    def __init__(self, of: Screen[object]) -> None:
        super().__init__()
        self._lines = help_lines(lines_of(of))

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = "Keys"
            window.border_subtitle = "Escape goes back; names are those of [top.keys]"
            with VerticalScroll():
                words = Words()
                words.styles.height = len(self._lines)
                words.show(lambda width, height: self._lines)
                yield words

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def help_lines(keys: list[KeyLine]) -> list[list[Piece]]:
    """Keys, then what marks and columns mean."""
    lines: list[list[Piece]] = [
        [
            (f"{line.keys[:14]:<15}", "primary!"), (f"{line.words[:30]:<31}", "text"),
            (line.name, "faint"),
        ]
        for line in keys
    ]  # fmt: skip
    lines += [[], [("States", "text!")]]
    lines += _beside(
        [(f"{look.mark} ", look.role), (f"{look.word:<9}", look.role)]
        for look in palette.STATES.values()
    )
    lines += [[], [("Pages", "text!")]]
    lines += _beside(
        [(f"{look.mark} ", look.role), (f"{look.word:<9}", "text")]
        for look in palette.PAGES.values()
    )
    lines += [[], [("Columns", "text!")]]
    lines += [
        [(f"{column.title:<10}", "text"), (column.help, "muted")] for column in columns.COLUMNS
    ]
    return lines


def _beside(cells: Iterable[list[Piece]], number: int = 5) -> list[list[Piece]]:
    """Some on each line."""
    lines: list[list[Piece]] = []
    for at, cell in enumerate(cells):
        if at % number == 0:
            lines.append([])
        lines[-1] += [*cell, ("  ", "text")]
    return lines
