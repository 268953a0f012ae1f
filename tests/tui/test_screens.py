"""The screens beside the table: every key, what they ask, what they say if they get no answer."""

import errno

import pytest
from textual.widgets import Input, OptionList

from tokenix.tests.tui.pilots import play, shown, toasts, until, words
from tokenix.tests.tui.sights import Seen, event, seen
from tokenix.tests.tui.test_keys import keys_of
from tokenix.tests.tui.worlds import crowd, look, looks
from tokenix.tui.screens.controls import Controls
from tokenix.tui.screens.dialogs import Choice
from tokenix.tui.screens.log import LogScreen
from tokenix.tui.screens.main import MainScreen
from tokenix.tui.screens.memory import MemoryScreen
from tokenix.tui.screens.process import ProcessScreen
from tokenix.tui.screens.scheduler import SchedulerScreen
from tokenix.tui.widgets.loglines import LogLines

ACTS = {"f9", "k", "f7", "f8", "s", "c"}


def test_the_four_views():
    async def story(app, pilot):
        for key, screen, part in (
            ("2", MemoryScreen, "Frames of the device"), ("3", SchedulerScreen, "no token yet"),
            ("4", LogScreen, "what is notable"), ("1", MainScreen, "LEAD"),
        ):  # fmt: skip
            await pilot.press(key)
            await shown(app, pilot, part)
            assert isinstance(app.screen, screen)

    play(seen(*looks()), story)


# ---- memory ----


def test_memory_shows_tiers_and_daemons():
    source = seen(*looks())

    async def story(app, pilot):
        await pilot.press("2")
        await shown(
            app, pilot, "300 in use, clean", "60 held", "0a31f2c4", "└ 7be01c22", "reclaim",
            "write-behind", "device",
        )  # fmt: skip
        await pilot.press("t", "t")
        await shown(app, pilot, "there is none")
        await pilot.press("t", "space")
        assert app.frozen

    play(source, story, size=(160, 50))
    assert keys_of(MemoryScreen) == {"t", "d", "space"}


def test_where_room_is_short_memory_shows_one_thing_at_a_time():
    async def story(app, pilot):
        await pilot.press("2")
        await shown(app, pilot, "300 in use, clean", "0a31f2c4")
        assert "write-behind" not in words(app) and "60 held" not in words(app)
        await pilot.press("d")
        await shown(app, pilot, "write-behind")
        assert "0a31f2c4" not in words(app)
        await pilot.press("t")
        await shown(app, pilot, "60 held")
        assert "300 in use, clean" not in words(app)

    play(seen(*looks()), story, size=(80, 24))


def test_a_large_memory_is_mapped_seldom():
    """A map of a million pages is a quarter of a second of the kernel's time."""
    source = seen(look(99.0, crowd(3), frames__total=1e6))

    async def story(app, pilot):
        await pilot.press("2")
        await shown(app, pilot, "Host slots")
        source.looks += [look(100.0 + at, crowd(3), frames__total=1e6) for at in range(30)]
        await until(pilot, lambda: source.machine.asked.count("host") > 2, "many looks")
        assert source.machine.asked.count("frames") == 1

    play(source, story, size=(160, 50))


# ---- the scheduler ----


def test_the_scheduler_shows_lanes_plan_and_reasons():
    async def story(app, pilot):
        await pilot.press("3")
        await shown(
            app, pilot, "0 no token yet", "pass 813", "next to get frames", "who is due first",
            "newcomer 1, lead 7.2s", "working set", "P9 ",
        )  # fmt: skip

    play(seen(*looks()), story, size=(160, 50))


def test_where_room_is_short_decisions_take_the_place_of_the_plan():
    async def story(app, pilot):
        await pilot.press("3")
        await shown(app, pilot, "pass 813", "working set")
        assert "newcomer 1" not in words(app)
        await pilot.press("d")
        await shown(app, pilot, "newcomer 1, lead 7.2s")
        assert "pass 813" not in words(app)
        await pilot.press("d", "space")
        assert app.frozen

    play(seen(*looks()), story, size=(80, 24))
    assert keys_of(SchedulerScreen) == {"p", "e", "enter", "d", "space"}


def test_the_policy_is_switched():
    source = seen(*looks())

    async def story(app, pilot):
        await pilot.press("3", "p")
        assert isinstance(app.screen, Choice)
        await pilot.press("down", "enter")
        await until(pilot, lambda: source.machine.done, "the switch")
        assert source.machine.done == [("sysctl", "policy", "fcfs")]
        await until(pilot, lambda: toasts(app), "word of it")
        await pilot.press("p", "escape")
        assert isinstance(app.screen, SchedulerScreen)

    play(source, story)


@pytest.mark.parametrize("key", ["e", "enter"])
def test_control_variables_are_found_and_set(key):
    source = seen(*looks())

    async def story(app, pilot):
        await pilot.press("3", key)
        assert isinstance(app.screen, Controls)
        await pilot.press(*"target")
        await shown(app, pilot, "sched.target_interactive_s")
        await pilot.press("down", "down", "up", "enter")
        line = app.screen.query_one(Input)
        assert line.value == "120"
        line.value = "nonsense"
        await pilot.press("enter")
        await shown(app, pilot, "cannot be 'nonsense'")
        line.value = "2.5"
        await pilot.press("enter")
        await shown(app, pilot, "sched.target_idle_s is 2.5 now")
        assert source.machine.done == [("sysctl", "sched.target_idle_s", 2.5)]
        await pilot.press("enter", "escape")
        assert isinstance(app.screen, Controls)
        await pilot.press(*"moon", "enter", "down", "escape")
        assert isinstance(app.screen, SchedulerScreen)

    play(source, story)
    assert keys_of(Controls) == {"escape", "down", "up"}


def test_a_variable_is_taken_by_the_mouse():
    async def story(app, pilot):
        await pilot.press("3", "e")
        await pilot.pause()
        await pilot.click(OptionList, offset=(3, 1))
        await shown(app, pilot, "write what it is to be")

    play(seen(*looks()), story)


# ---- the log ----


def test_the_log_follows_and_can_be_scrolled():
    source = seen(*looks())
    source.machine.events = [event(at, at / 10, at % 7, "pause") for at in range(1, 200)]

    async def story(app, pilot):
        await pilot.press("4")
        await shown(app, pilot, "199 of 199, follows", "19.900")
        lines = app.screen.query_one(LogLines)
        for key, follows in (
            ("up", False), ("down", True), ("pageup", False), ("j", False), ("end", True),
            ("home", False), ("pagedown", False), ("G", True), ("up", False), ("f", True),
        ):  # fmt: skip
            await pilot.press(key)
            assert lines.follows == follows, key
        await pilot.press("home")
        await shown(app, pilot, "0.100", "stands still")
        source.machine.events.append(event(200, 20.0, 3, "pause"))
        await shown(app, pilot, "200 of 200")
        assert lines.scroll_offset.y == 0

    play(source, story)
    tested = {
        "slash", "a", "f", "end", "G", "escape", "up", "down", "j", "pageup", "pagedown", "home",
        "space",
    }  # fmt: skip
    assert keys_of(LogScreen) == tested


def test_the_log_is_narrowed_down():
    async def story(app, pilot):
        await pilot.press("4")
        await shown(app, pilot, "newcomer 9")
        assert "swapping-out" not in words(app)
        await pilot.press("a")
        await shown(app, pilot, "swapping-out", "all events")
        await pilot.press("slash", *"zzz", "enter")
        await shown(app, pilot, "0 of")
        await pilot.press("escape")
        await shown(app, pilot, "swapping-out")
        await pilot.press("slash", "enter", "a", "space")
        assert app.frozen and "swapping-out" not in words(app)

    play(seen(*looks()), story)


def test_a_mouse_wheel_scrolls_the_log():
    source = seen(*looks())
    source.machine.events = [event(at, at / 10, 1, "pause") for at in range(1, 200)]

    async def story(app, pilot):
        await pilot.press("4")
        await shown(app, pilot, "199 of 199")
        lines = app.screen.query_one(LogLines)
        await until(pilot, lambda: lines.scroll_offset.y == lines.max_scroll_y > 3, "its end")
        bottom = lines.scroll_offset.y
        lines.on_mouse_scroll_up(Wheel())
        await until(pilot, lambda: lines.scroll_offset.y == bottom - 3, "three lines up")
        assert not lines.follows
        lines.on_mouse_scroll_down(Wheel())
        assert lines.follows

    play(source, story)


class Wheel:
    def stop(self):
        """It goes no further."""


# ---- trouble ----


class Silent(Seen):
    """Answers nothing."""

    def plan(self):
        raise OSError(errno.ENODATA, "a recording holds no plans")

    def framemap(self, tier="frames"):
        raise OSError(errno.ENODATA, "a recording holds no maps")

    def prefixes(self, limit=64):
        raise OSError(errno.ENODATA, "a recording holds no prefixes")

    def trace(self, pid=None, since=0, limit=1000):
        raise PermissionError(errno.EPERM, "only root may trace all processes; name a pid")


def test_what_cannot_be_known_is_said_where_it_would_be():
    source = seen(*looks())
    source.machine = Silent()

    async def story(app, pilot):
        for key, *parts in (
            ("2", "holds no maps", "holds no prefixes", "write-behind"),
            ("3", "holds no plans", "no token yet"), ("4", "only root may trace all"),
        ):  # fmt: skip
            await pilot.press(key)
            await shown(app, pilot, *parts)
        assert not toasts(app)

    play(source, story, size=(160, 50))


def test_a_recording_is_not_set():
    source = seen(*looks())
    source.can_act = False

    async def story(app, pilot):
        await pilot.press("3", "p", "e", "enter")
        assert isinstance(app.screen, Controls) and app.screen._chosen is None
        assert any("recording" in word for word in toasts(app))

    play(source, story)


def test_another_machine_has_another_log():
    source = seen(look(100.0, crowd(2)))

    async def story(app, pilot):
        await pilot.press("4")
        await shown(app, pilot, "newcomer 9")
        source.machine.events = [event(1, 1.0, 3, "pause", reason="afresh")]
        source.looks.append(look(5.0, crowd(2)))
        await shown(app, pilot, "1 of 1", "afresh")

    play(source, story)


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
def test_no_size_does_harm(size):
    async def story(app, pilot):
        for key in ("2", "3", "4", "1", "enter", "o"):
            await pilot.press(key)
            await pilot.pause()
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert isinstance(app.screen, ProcessScreen)

    play(seen(*looks(number=200, count=20)), story, size=size)
