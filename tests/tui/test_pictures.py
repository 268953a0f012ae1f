"""Every screen of ours, as people have looked at it: two sizes, dark, light and without colour."""

import errno

import pytest

from tokenix.tests.tui.pictures import check_inks, check_settled
from tokenix.tests.tui.pilots import play, until, words
from tokenix.tests.tui.worlds import Still, crowd, look, metrics
from tokenix.tui.snapshot import Note

SIZES = [(80, 24), (160, 50)]
THEMES = ["tokenix-dark", "tokenix-light", "none"]
NOTES = (
    Note(3.0, "text", "9 long streams want more memory than there is."),
    Note(
        65.0, "primary",
        "12 is paused: its reader has 9.2 s of unread text. 25 of 26 pages were copied before, so "
        "its memory is free within a step.",
    ),
    Note(66.0, "success", "12 is back after 7.64s, 0.3 s before its reader would have noticed."),
)  # fmt: skip


def looks(notes=()):
    """A minute of a busy machine."""
    return [
        look(
            100.0 + at,
            crowd(40),
            metrics((at * 3, at, at // 4, 0), prompt_tokens=at * 100, cached_tokens=at * 30),
            notes,
            output_tokens=at * 150 + at % 7 * 40,
            computed_tokens=at * 400 + at % 5 * 300,
            swap__pages_out=at * 20,
            swap__pages_in=at * 17,
            processes__swapped=3 + at % 6,
            processes__new=at % 4,
        )
        for at in range(60)
    ]


SCENES = {
    "main": ((), ()),
    "find": ((), ("slash", *"globex")),
    "tree": ((), ("t", "down", "p")),
    "signal": ((), ("down", "k")),
    "confirm": ((), ("k", "enter")),
    "order": ((), ("o",)),
    "help": ((), ("question_mark",)),
    "frozen": ((), ("space",)),
    "notes": (NOTES, ()),
}
"""Name -> what a demonstration says, keys that lead there."""
EVERYWHERE = ("main", "tree", "signal", "notes")
"""Looked at in every theme; the others in the dark one."""


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_screens_look_as_they_did(size, theme, monkeypatch):
    if theme == "none":
        monkeypatch.setenv("NO_COLOR", "1")

    for notes in ((), NOTES):
        scenes = {
            name: keys
            for name, (said, keys) in SCENES.items()
            if said == notes and (theme == "tokenix-dark" or name in EVERYWHERE)
        }
        source = Still(look(99.0))

        async def story(app, pilot, notes=notes, scenes=scenes):
            for seen in looks(notes):
                app.history.take(seen)
            app.snapshot = app.history.last
            for name, keys in scenes.items():
                app.screen._show()
                await pilot.press(*keys)
                await pilot.pause()
                await check_settled(pilot, app, f"{name}-{size[0]}x{size[1]}")
                check_inks(app)
                await leave(app, pilot)

        play(source, story, size=size, theme=theme, refresh=600.0, sort="lead")


async def leave(app, pilot):
    """Back to the table as it was."""
    await pilot.press("escape")
    await pilot.press("escape", "home")
    if app.frozen:
        await pilot.press("space")
    if app.listing.as_tree:
        await pilot.press("t", "p")
    await pilot.pause()


def test_a_machine_that_is_gone_is_seen_in_80_columns():
    gone = ConnectionRefusedError(errno.ECONNREFUSED, "no kernel listens there")

    async def story(app, pilot):
        await until(pilot, lambda: "trying again" in words(app), "the loss")
        await check_settled(pilot, app, "gone-80x24")

    play(Still(look(99.0, crowd(5)), gone), story, size=(80, 24))
