"""Pictures of screens as text, to compare with those that people have looked at.

A picture is the text of the screen and, below, a letter for the ink of each cell: `.` for the one
that is most common, others in the order in which they appear, `A` for the first. The letters are
those of the dark theme; others have the same text, in inks that can be read (`check_inks`).

    TOKENIX_PICTURES=write pytest tests/tui/test_pictures.py      makes them anew: look at them
    TOKENIX_PICTURES=svg pytest tests/tui/test_pictures.py        leaves SVGs in tests/tui/svg
"""

import difflib
import os
import string
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.color import Color
from rich.style import Style

from tokenix.tui.app import TopApp
from tokenix.tui.themes import DARK

FOLDER = Path(__file__).with_name("pictures")
WAY = os.environ.get("TOKENIX_PICTURES", "")
LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
NONE = Style()
REST_S = 20.0
LEAST_CONTRAST = 2.8
"""Of anything that is text: WCAG asks 3 of large text; hints may be a little fainter."""
FAINT = set("·╌─│╭╮╰╯▁▔▏▕⠀ ") | {chr(code) for code in range(0x2580, 0x25A0)}
"""Frames, empty places and bars are no text."""


def cells(app: TopApp) -> list[list[tuple[str, Style]]]:
    """Lines of the screen, a character and its style for each cell."""
    lines = []
    for segments in app.screen._compositor.render_strips():
        shown = segments
        for line_filter in app._filters:
            shown = shown.apply_filter(line_filter, app.screen.background_colors[1])
        lines.append([(char, style or NONE) for text, style, _ in shown for char in text])
    return lines


def words_of(lines: list[list[tuple[str, Style]]]) -> str:
    return "\n".join("".join(char for char, _ in line).rstrip() for line in lines) + "\n"


def inks_of(lines: list[list[tuple[str, Style]]]) -> str:
    inks = Counter(_ink(char, style) for line in lines for char, style in line)
    (most, _), *_ = inks.most_common(1)
    letters = {most: "."}
    drawn = []
    for line in lines:
        for char, style in line:
            ink = _ink(char, style)
            letters.setdefault(ink, LETTERS[(len(letters) - 1) % len(LETTERS)])
        drawn.append("".join(letters[_ink(char, style)] for char, style in line).rstrip("."))
    return "\n".join(drawn) + "\n"


def _ink(char: str, style: Style) -> tuple[object, ...]:
    """What can be seen of a style: of an empty cell only its ground."""
    ground = style.bgcolor and style.bgcolor.name
    if char == " " and not style.reverse:
        return (ground, style.underline)
    return (ground, style.color and style.color.name, style.bold, style.underline, style.reverse)


def check(app: TopApp, name: str) -> None:
    """The screen looks as it did when the picture of that name was made."""
    path = FOLDER / f"{name}.txt"
    lines = cells(app)
    text, inked = words_of(lines), app.theme == DARK.name
    found = f"{text}\n{inks_of(lines)}" if inked else text
    if WAY == "svg":
        folder = FOLDER.with_name("svg")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}-{app.theme}.svg").write_text(app.export_screenshot())
    if WAY == "write" and inked:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    expected = path.read_text() if inked else path.read_text()[: len(text)]
    changes = difflib.unified_diff(expected.split("\n"), found.split("\n"), "before", "now", n=1)
    assert found == expected, f"{path.name}:\n" + "\n".join(changes)


async def check_settled(pilot: Any, app: TopApp, name: str) -> None:
    """As `check`, when the screen has come to rest: on a busy machine a layout may take a while."""
    end_s = time.monotonic() + REST_S
    if WAY:
        await pilot.pause(1.0)
    while True:
        await pilot.pause()
        try:
            return check(app, name)
        except AssertionError:
            if time.monotonic() > end_s:
                raise
            await pilot.pause(0.05)


def check_inks(app: TopApp) -> None:
    """Text can be read; without colour there is none."""
    for char, style in (cell for line in cells(app) for cell in line):
        if app.no_color:
            assert style.color is None or style.color.is_default, (char, style)
            assert style.bgcolor is None or style.bgcolor.is_default, (char, style)
        elif char not in FAINT and len(app.screen_stack) == 1 and style.color and style.bgcolor:
            seen = contrast(style.color, style.bgcolor)
            assert seen >= LEAST_CONTRAST, (char, str(style), seen, app.theme)


def contrast(one: Color, other: Color) -> float:
    """Of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Color) -> float:
    parts = [part / 255 for part in colour.get_truecolor()]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
