"""Lines are drawn when they change, and are shown again only then."""

import pytest
from textual.geometry import Region

from tokenix.tests.tui.pilots import play, until, words
from tokenix.tests.tui.worlds import Still, look
from tokenix.tui.model import frames
from tokenix.tui.model.frames import Panel
from tokenix.tui.widgets.ink import pen_of
from tokenix.tui.widgets.meters import Meters
from tokenix.tui.widgets.words import Words


def show(notes, lines):
    """The regions of the screen that are shown again."""
    found = []
    notes.refresh = lambda *regions, **how: found.extend(regions or ["all"])
    notes.show(lambda width, height: [[(text, "text")] for text in lines])
    del notes.refresh
    return found


def drawn_with(notes):
    (segment, *_) = notes.render_line(0)
    return segment.style


def test_only_lines_that_are_others_are_shown_again():
    async def story(app, pilot):
        notes = app.screen.query_one("#notes", Words)
        notes.add_class("some")
        notes.show(lambda width, height: [[(text, "text")] for text in ("one", "two", "three")])
        await until(pilot, lambda: "three" in words(app), "three lines")
        width = notes.size.width
        assert show(notes, ("one", "two", "three")) == []
        assert show(notes, ("one", "2", "three")) == [Region(0, 1, width, 1)]
        assert show(notes, ("one",)) == [Region(0, 1, width, 1), Region(0, 2, width, 1)]

        pen = pen_of(notes)
        app.theme = "tokenix-light"
        await until(pilot, lambda: drawn_with(notes) == pen_of(notes)("text"), "other colours")
        assert pen_of(notes) != pen
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: notes.render_line(0).cell_length == width - 40, "another width")

    play(Still(look(1.0)), story, size=(160, 50))


def test_the_meters_of_a_look_that_is_the_same_are_not_shown_again():
    async def story(app, pilot):
        meters = app.screen.query_one(Meters)
        before = pen_of(meters)
        assert "Tokens a second" in words(app)
        meters.redraw()
        assert not meters._repaint_regions
        assert pen_of(meters) is before

    play(Still(look(1.0)), story, size=(160, 50))


@pytest.mark.parametrize(
    ("width", "head", "cut"),
    [
        (20, "╭─ A  ─╮╭─  ─╮╭─  ─╮", True),
        (60, "╭─ A title ────────────╮╭─ B ────────────╮╭─  ─────────────╮", True),
        (237, "╭─ A title ──", False),
    ],
)
def test_panels_fill_the_width(width, head, cut):
    titles = (("A title", 1.35), ("B", 1.0), ("", 1.0))
    found = frames.beside([Panel(title, share, lines) for title, share in titles], width, 6)
    drawn = ["".join(text for text, _ in line) for line in found]
    assert {len(line) for line in drawn} == {width}
    assert drawn[0].startswith(head)
    assert len(drawn) == 6 and ("…" in drawn[1]) == cut


def lines(width, height):
    """More than there is room for; blanks that are cut are no loss."""
    return [[("it is said ", "text"), ("in words" + " " * 200, "muted")]] * (height + 3)
