"""Lines that do not fit: into an encoding that has neither bars nor frames, or into their width."""

import io

import pytest
from rich.style import Style
from textual.color import Color

from tokenix.tui import glyphs
from tokenix.tui.model import palette
from tokenix.tui.model.columns import bar
from tokenix.tui.themes import DARK
from tokenix.tui.widgets.drawn import strip
from tokenix.tui.widgets.ink import Ink, Pen


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("device ████▒▒·· 6/8", "device ####::.. 6/8"),
        ("╭─ Memory ─╮", "+- Memory -+"),
        ("⠀⡀⣤⣿", " .:#"),
        ("ready → swapped", "ready > swapped"),
        ("▼ 2.0M/s ▲ 0B/s", "v 2.0M/s ^ 0B/s"),
        ("naïve 日本", "na?ve ????"),
    ],
)
def test_a_text_keeps_its_shape(text, plain):
    assert glyphs.fitted(text, "ascii") == plain
    assert glyphs.fitted(text, "utf-8") == text
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    glyphs.fall_back(stream)
    stream.write(text)
    stream.flush()
    assert stream.buffer.getvalue() == plain.encode()


def test_kinds_of_pages_stay_apart():
    marks = {look.mark for look in palette.PAGES.values()}
    assert len({glyphs.stand_in(mark) for mark in marks}) == len(marks)
    lengths = [glyphs.fitted(bar(share / 8, 8), "ascii").count("#") for share in range(9)]
    assert lengths == sorted(lengths) and lengths[-1] == 8


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short   "),
        ("eight of", "eight of"),
        ("nine of i", "nine of…"),
        ("blank      ", "blank   "),
    ],
)
def test_a_line_that_is_cut_says_so(text, shown):
    pen = Pen(Ink(DARK, False), Style(), (), Color(0, 0, 0))
    line = strip([(text[:3], "text"), (text[3:], "muted")], pen, 8)
    assert (line.text, line.cell_length) == (shown, 8)


def test_what_cannot_be_read_is_no_matter_of_glyphs():
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", glyphs.ERRORS)
