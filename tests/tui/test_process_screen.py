"""The screen of one process: every key, what it asks, what it says if it gets no answer."""

import threading

from tokenix.syscalls.types import Pid
from tokenix.tests.tui.pilots import play, shown, toasts, until, words
from tokenix.tests.tui.sights import seen
from tokenix.tests.tui.test_keys import keys_of
from tokenix.tests.tui.worlds import crowd, look, looks, process
from tokenix.tui.screens import acts
from tokenix.tui.screens.dialogs import Choice, Confirm
from tokenix.tui.screens.main import MainScreen
from tokenix.tui.screens.process import ProcessScreen

ACTS = {"f9", "k", "f7", "f8", "s", "c"}


def test_a_process_is_opened_and_left():
    async def story(app, pilot):
        for leave in ("escape", "backspace"):
            await pilot.press("enter")
            assert isinstance(app.screen, ProcessScreen)
            await shown(
                app, pilot, "process 1 of globex", "newcomer 9", "11 clean", "3 in file",
                "paused 1.", "16 tokens, 400 computed",
            )  # fmt: skip
            await pilot.press(leave)
            assert isinstance(app.screen, MainScreen)

    play(seen(*looks()), story)


def test_output_is_shown_only_if_asked_for():
    source = seen(*looks())

    async def story(app, pilot):
        await pilot.press("enter")
        await shown(app, pilot, "newcomer 9")
        assert "tail" not in source.machine.asked and "secret" not in words(app)
        await pilot.press("o")
        await shown(app, pilot, "The secret words.", "They go on.")
        await pilot.press("o")
        await until(pilot, lambda: "secret" not in words(app), "hiding it")

    play(source, story)


def test_the_span_of_time_and_the_processes_beside():
    async def story(app, pilot):
        await pilot.press("enter")
        for title in ("the last 60 s", "the last 15 s", "its whole life"):
            await pilot.press("z")
            await shown(app, pilot, title)
        for key, pid in (("n", 2), ("n", 3), ("b", 2), ("b", 1), ("b", 30)):
            await pilot.press(key)
            assert app.screen.pid == pid
            await shown(app, pilot, f"process {pid} of")

    play(seen(*looks()), story)
    tested = {"escape", "backspace", "o", "z", "n", "b"} | ACTS
    assert keys_of(ProcessScreen) == tested


def test_a_late_answer_about_another_process_is_dropped():
    source = seen(*looks())
    slow = threading.Event()

    def tail(pid, limit=64):
        if pid == 1:
            slow.wait(60)
        return (pid,) * 3

    source.machine.tail = tail

    async def story(app, pilot):
        await pilot.press("enter", "o", "n")
        await shown(app, pilot, "process 2 of", "They go on. 2 2 2")
        slow.set()
        await pilot.pause(0.3)
        assert "1 1 1" not in words(app) and "2 2 2" in words(app)

    play(source, story)


def test_acts_on_the_process_that_is_shown(monkeypatch):
    monkeypatch.setattr(acts, "WISH_S", 600.0)
    source = seen(*looks())

    async def story(app, pilot):
        app.open_process(Pid(5))
        await shown(app, pilot, "process 5 of")
        await pilot.press("s", "c", "f8", "f7")
        await pilot.press("k")
        assert isinstance(app.screen, Choice)
        await pilot.press("escape", "f9", "enter")
        assert isinstance(app.screen, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: len(source.machine.done) == 5, "what was done")
        assert source.machine.done == [
            ("kill", 5, "STOP"), ("kill", 5, "CONT"), ("nice", 5, 1), ("nice", 5, 0),
            ("kill", 5, "TERM"),
        ], "in the order of the keys"  # fmt: skip

    play(source, story)


def test_one_that_may_not_be_seen_says_so_once_and_in_its_place():
    async def story(app, pilot):
        app.open_process(Pid(13))
        await shown(app, pilot, "process 13 is another tenant's")
        await pilot.press("o")
        await pilot.pause(0.2)
        assert not toasts(app)

    play(seen(*looks()), story)


def test_one_that_ends_stays_as_it_was_last_seen():
    source = seen(look(100.0, crowd(3)))

    async def story(app, pilot):
        app.open_process(Pid(2))
        await shown(app, pilot, "process 2 of initech")
        source.looks.append(look(100.5, crowd(1)))
        await shown(app, pilot, "gone")
        app.open_process(Pid(77))
        await shown(app, pilot, "there is no process 77 any more")

    play(source, story)


def test_without_a_trace_looks_tell_of_its_life():
    source = seen(*looks())
    source.machine.events = []

    async def story(app, pilot):
        await pilot.press("enter")
        await shown(app, pilot, "paused 0.")

    ready, away = process(1, state="ready"), process(1, state="swapped")
    source.looks = [look(100.0 + at / 10, [ready if at < 5 else away]) for at in range(400)]
    play(source, story)
