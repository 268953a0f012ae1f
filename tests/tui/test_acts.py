"""What keys do to processes: which, in what order, and what is said."""

from tokenix.tests.tui.pilots import play, toasts, until, words
from tokenix.tests.tui.test_keys import machine
from tokenix.tests.tui.worlds import Still, crowd, look, process
from tokenix.tui.screens import acts
from tokenix.tui.screens.dialogs import Confirm
from tokenix.tui.screens.main import MainScreen

ACTS = [
    ("s", "kill 1 STOP"),
    ("c", "kill 1 CONT"),
    ("f7", "nice 1 -1"),
    ("down f8", "nice 2 1"),
    ("f9 down down enter", "kill 1 STOP"),
    ("k end enter", "kill 1 CONT"),
    ("k enter y", "kill 1 TERM"),
    ("k down enter enter", "kill 1 KILL"),
    ("down down s", "kill 3 STOP"),
]
TAKEN_BACK = ["k escape", "k q", "k enter n", "k enter escape", "k enter q"]


def test_acts_reach_the_machine():
    source = machine()
    done = source.machine.done

    async def story(app, pilot):
        for keys, act in ACTS:
            done.clear()
            app.clear_notifications()
            await pilot.press("home", *keys.split())
            await until(pilot, lambda: done, act)
            assert [" ".join(map(str, each)) for each in done] == [act]
            await until(pilot, lambda: toasts(app), "its report")
            assert isinstance(app.screen, MainScreen)

    play(source, story)


def test_acts_that_are_taken_back_do_nothing():
    source = machine()

    async def story(app, pilot):
        for keys in TAKEN_BACK:
            await pilot.press(*keys.split())
            await pilot.pause()
            assert isinstance(app.screen, MainScreen), keys
        await pilot.press("c")
        await until(pilot, lambda: source.machine.done, "the one act")

    play(source, story)
    assert source.machine.done == [("kill", 1, "CONT")]


def test_what_destroys_is_asked_twice_and_names_the_process():
    async def story(app, pilot):
        await pilot.press("k", "enter")
        assert isinstance(app.screen, Confirm)
        assert "process 1 of globex" in words(app)

    play(machine(), story)


def test_the_signal_goes_to_the_process_that_was_chosen_even_if_it_has_moved():
    later = look(2.0, [process(9, lead_s=50.0), *crowd(3)])
    source = Still(look(processes=crowd(3)))

    async def story(app, pilot):
        await pilot.press("k")
        source.looks = [later]
        await until(pilot, lambda: app.snapshot is later, "the next look")
        await pilot.press("end", "enter")
        await until(pilot, lambda: source.machine.done, "the act")

    play(source, story, sort="lead")
    assert source.machine.done == [("kill", 1, "CONT")]


def test_keys_in_a_row_act_on_one_process_wherever_it_is_listed_then():
    first, second = process(1, lead_s=9.0), process(2, lead_s=5.0)
    source = Still(look(processes=[first, second]))
    later = look(2.0, [process(1, lead_s=1.0), second])

    async def story(app, pilot):
        await pilot.press("s")
        source.looks = [later]
        await until(pilot, lambda: app.listing.lines[0].process.pid == 2, "the new order")
        await pilot.press("c")
        await until(pilot, lambda: len(source.machine.done) == 2, "both acts")
        await pilot.press("home", "s")
        await until(pilot, lambda: len(source.machine.done) == 3, "the act on who stands first")

    play(source, story, sort="lead")
    assert source.machine.done == [("kill", 1, "STOP"), ("kill", 1, "CONT"), ("kill", 2, "STOP")]


def test_nice_counts_from_the_key_before_and_acts_keep_their_order(monkeypatch):
    monkeypatch.setattr(acts, "WISH_S", 600.0)
    source = machine(3)

    async def story(app, pilot):
        await pilot.press("f8", "f8", "f8", "f7")
        await until(pilot, lambda: len(source.machine.done) == 4, "the acts")

    play(source, story, refresh=600.0)
    assert [value for _, _, value in source.machine.done] == [1, 2, 3, 2]


def test_what_is_not_permitted_is_said():
    async def story(app, pilot):
        await pilot.press("s")
        await until(pilot, lambda: toasts(app), "the error")
        assert toasts(app) == ["process 13 is another tenant's"]
        await until(pilot, lambda: "process 13 is another" in words(app), "it on the screen")

    play(Still(look(processes=[process(13)])), story)


def test_without_processes_no_key_does_harm():
    async def story(app, pilot):
        await pilot.press("s")
        await until(pilot, lambda: "no process is chosen" in words(app), "why nothing happens")
        await pilot.press("k", "enter", "f7", "end", "pageup", "t", "r", "f", "slash", "escape")
        assert isinstance(app.screen, MainScreen)

    play(Still(look()), story)
