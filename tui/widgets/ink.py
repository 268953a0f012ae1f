"""Colours by role, as the theme has them."""

from typing import TYPE_CHECKING, Final

from rich.style import Style
from textual.color import Color

if TYPE_CHECKING:
    from textual.app import App
    from textual.theme import Theme

MUTED, FAINT = 0.66, 0.48
"""How much of the text's colour is left of it."""

ANSI: Final = {
    "text": Style(),
    "muted": Style(dim=True),
    "faint": Style(dim=True),
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
    primary secondary success warning error accent`."""

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


def _roles(theme: "Theme") -> dict[str, Style]:
    colours = theme.to_color_system().generate()
    text, ground = Color.parse(colours["foreground"]), Color.parse(colours["background"])
    roles = {
        "text": text,
        "muted": ground.blend(text, MUTED),
        "faint": ground.blend(text, FAINT),
    }
    for name in ("primary", "secondary", "success", "warning", "error", "accent"):
        roles[name] = Color.parse(colours[name])
    return {name: Style(color=colour.rich_color) for name, colour in roles.items()}


def _cursor(theme: "Theme") -> Style:
    colours = theme.to_color_system().generate()
    ground = Color.parse(colours["background"]).blend(Color.parse(colours["primary"]), 0.28)
    return Style(bgcolor=ground.rich_color, bold=True)
