"""Keys that come faster than they are heard of, or at a bad moment: nothing of it ends the program,
answers twice, or leaves more than one screen."""

import random

import pytest
from textual import events
from textual.command import CommandList
from textual.widgets import Input, OptionList
from textual.worker import WorkerFailed

from tokenix.tests.tui.pilots import play, until
from tokenix.tests.tui.sights import seen
from tokenix.tests.tui.worlds import looks
from tokenix.tui.app import TopApp
from tokenix.tui.screens.dialogs import Choice, Palette
from tokenix.tui.screens.main import MainScreen
from tokenix.tui.screens.process import ProcessScreen

KEYS = (
    "enter", "escape", "tab", "shift+tab", "up", "down", "left", "right", "home", "end", "pageup",
    "pagedown", "f1", "f5", "f6", "f7", "f8", "f9", "backspace", "delete", "space",
    *"1234kscrtfpgoznbdaeyjGx", "slash", "question_mark", "comma", "full_stop", "plus",
    "minus", "left_square_bracket", "ctrl+p", "ctrl+p",
)  # fmt: skip
SIZES = ((80, 24), (160, 50), (1, 1), (3, 2), (20, 5), (300, 80), (200, 4), (8, 60))
GARBAGE = "a\nb\x1b[31m 日本 k y \t"


def test_a_choice_is_made_once():
    source = seen(*looks())

    async def story(app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ProcessScreen), "its screen")
        await pilot.press("k")
        await until(pilot, lambda: isinstance(app.screen, Choice), "signals")
        options = app.screen.query_one(OptionList)
        options.highlighted = 2
        for _ in range(3):
            options.action_select()
        await until(pilot, lambda: source.machine.done, "a signal")
        await pilot.pause()
        assert isinstance(app.screen, ProcessScreen), "what is below is not left"
        assert source.machine.done == [("kill", 1, "STOP")]

    play(source, story)


def test_a_palette_is_left_once_and_may_be_asked_before_it_has_drawn():
    async def story(app, pilot):
        app.action_command_palette()
        app.action_command_palette()
        for key in ("pageup", "pagedown", "end"):
            post(app, key)
        await until(pilot, lambda: isinstance(app.screen, Palette), "the palette")
        palette = app.screen
        await pilot.pause()
        palette.dismiss()
        palette.dismiss()
        await until(pilot, lambda: isinstance(app.screen, MainScreen), "what was below")

    play(seen(*looks()), story)


def test_a_search_of_a_palette_that_is_gone_ends_nothing():
    async def story(app, pilot):
        app.action_command_palette()
        await until(pilot, lambda: isinstance(app.screen, Palette), "the palette")
        palette = app.screen
        await until(pilot, lambda: palette.query(CommandList), "its list")
        await palette.query_one(CommandList).remove()
        search = palette._gather_commands("theme")
        with pytest.raises(WorkerFailed):
            await search.wait()
        await pilot.pause()
        palette.dismiss()
        await until(pilot, lambda: isinstance(app.screen, MainScreen), "what was below")

    assert play(seen(*looks()), story).failure is None


@pytest.mark.parametrize("view", ["1", "4"])
def test_what_is_looked_for_may_be_typed_in_haste(view):
    """Of `/49k/2` no letter is a key of the screen."""

    async def story(app, pilot):
        await pilot.press(view)
        await pilot.pause()
        screen = app.screen
        for key in ("slash", "4", "9", "k", "slash", "2"):
            post(app, key)
        await until(pilot, lambda: isinstance(app.focused, Input) and app.focused.value, "a word")
        await until(pilot, lambda: app.focused.value == "49k/2", "all of it")
        assert app.screen is screen

    play(seen(*looks()), story)


@pytest.mark.parametrize("world", range(3))
def test_no_keys_end_it(world, seed):
    """In bursts, amid new sizes and pastes; those that end it are not among them."""
    chance = random.Random(seed + world)
    played = []

    async def story(app, pilot):
        for _ in range(20):
            for _ in range(chance.randint(1, 6)):
                played.append(chance.choice(KEYS))
                post(app, played[-1])
            what = chance.random()
            if what < 0.2:
                await pilot.resize_terminal(*chance.choice(SIZES))
            elif what < 0.3:
                app.post_message(events.Paste(GARBAGE * chance.randint(1, 50)))
            if chance.random() < 0.4:
                await pilot.pause()
            assert app.failure is None, played[-20:]
        await pilot.resize_terminal(80, 24)
        for _ in range(8):
            await pilot.press("escape")
        await until(pilot, lambda: type(app.screen) in TopApp.MODES.values(), "a view")

    app = play(seen(*looks()), story, refresh=0.1)
    assert app.failure is None, played[-20:]


def post(app, key):
    """Press it, and wait for nothing."""
    names = {"space": " ", "slash": "/", "question_mark": "?", "comma": ",", "full_stop": "."}
    app.post_message(events.Key(key, names.get(key, key if len(key) == 1 else None)))
