"""Colours by role, as the theme has them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.app import App
    from textual.theme import Theme
    from textual.widget import Widget

MUTED, FAINT, TITLE = 0.66, 0.48, 0.7
"""How much of the text's colour is left of it."""

ANSI: Final = {
    "text": Style(),
    "muted": Style(dim=True),
    "faint": Style(dim=True),
    "title": Style(),
    "border": Style(dim=True),
    "primary": Style(color="blue"),
    "secondary": Style(color="cyan"),
    "success": Style(color="green"),
    "warning": Style(color="yellow"),
    "error": Style(color="red"),
    "accent": Style(color="magenta"),
}
"""For themes made of the terminal's own colours."""


class Ink:
    """Styles by role: `ink("success")`, `ink("text", bold=True)`. Roles are `text muted faint
    title border primary secondary success warning error accent`."""

    def __init__(self, theme: "Theme", plain: bool) -> None:
        self.name = theme.name
        self._roles = ANSI if theme.ansi or plain else _roles(theme)
        self.cursor = Style(reverse=True) if theme.ansi or plain else _cursor(theme)
        """Of the line that is chosen."""
        self._made: dict[tuple[str, bool], Style] = {}

    def __call__(self, role: str, bold: bool = False) -> Style:
        style = self._made.get((role, bold))
        if style is None:
            style = self._roles[role] + Style(bold=True) if bold else self._roles[role]
            self._made[role, bold] = style
        return style


_made: Final[dict[tuple[str, bool], Ink]] = {}
"""By the name of the theme, and whether it is to be without colour."""


def ink_of(app: "App[object]") -> Ink:
    """That of the app's theme; without colour where NO_COLOR is set."""
    key = app.theme, app.no_color
    ink = _made.get(key)
    if ink is None:
        ink = _made[key] = Ink(app.current_theme, app.no_color)
    return ink


class Pen:
    """An ink on a widget's ground, as it reaches the terminal: what Textual does to the style of
    each piece of each line is done once to each style."""

    def __init__(
        self, ink: Ink, ground: Style, filters: Sequence[LineFilter], background: Color
    ) -> None:
        self._ink = ink
        self._below = ground
        self._filters, self._background = filters, background
        self._made: dict[tuple[str, bool], Style] = {}
        self.ground = self._seen(ground)
        """Of cells with nothing in them."""

    def __call__(self, role: str, bold: bool = False) -> Style:
        style = self._made.get((role, bold))
        if style is None:
            style = self._made[role, bold] = self._seen(self._below + self._ink(role, bold))
        return style

    def blank(self, width: int) -> Strip:
        return Strip.blank(width, self.ground)

    def at_cursor(self) -> "Pen":
        """For the line that is chosen."""
        return _pen(self._ink, self._below + self._ink.cursor, self._filters, self._background)

    def _seen(self, style: Style) -> Style:
        line = [Segment(" ", style)]
        for each in self._filters:
            line = each.apply(line, self._background)
        return line[0].style or style


def pen_of(widget: "Widget") -> Pen:
    """The same one as long as its look is the same."""
    return _pen(
        ink_of(widget.app),
        widget.rich_style,
        tuple(widget.get_line_filters()),
        widget.background_colors[1],
    )


_pen: Final = lru_cache(64)(Pen)


def _roles(theme: "Theme") -> dict[str, Style]:
    colours = theme.to_color_system().generate()
    text, ground = Color.parse(colours["foreground"]), Color.parse(colours["background"])
    roles = {
        "text": text,
        "muted": ground.blend(text, MUTED),
        "faint": ground.blend(text, FAINT),
        "title": ground.blend(text, TITLE),
    }
    for name in ("primary", "secondary", "success", "warning", "error", "accent", "border"):
        roles[name] = Color.parse(colours[name])
    return {name: Style(color=colour.rich_color) for name, colour in roles.items()}


def _cursor(theme: "Theme") -> Style:
    colours = theme.to_color_system().generate()
    ground = Color.parse(colours["background"]).blend(Color.parse(colours["primary"]), 0.28)
    return Style(bgcolor=ground.rich_color, bold=True)
