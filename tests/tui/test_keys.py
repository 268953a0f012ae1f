"""Every key, pressed in the program without a terminal."""

import errno
import re
import threading

import pytest
from textual.binding import Binding
from textual.widgets import Input, OptionList

from tokenix.tests.tui.pilots import play, toasts, until, words
from tokenix.tests.tui.worlds import Still, crowd, look, process
from tokenix.tui.app import TopApp
from tokenix.tui.model.narrator import Narrator
from tokenix.tui.screens.dialogs import Choice
from tokenix.tui.screens.help import Help
from tokenix.tui.screens.main import FORMS, MainScreen
from tokenix.tui.settings import Settings
from tokenix.tui.widgets.foot import Foot
from tokenix.tui.widgets.meters import Meters
from tokenix.tui.widgets.proctable import ProcessTable


def machine(number=30):
    return Still(look(processes=crowd(number)))


def keys_of(*classes):
    """Every key of some classes."""
    found = set()
    for owner in classes:
        for binding in Binding.make_bindings(owner.BINDINGS):
            found.add(binding.key)
    return found


CURSOR = [
    ("down", 1), ("j", 2), ("up", 1), ("end", 29), ("home", 0), ("G", 29), ("up", 28), ("home", 0),
    ("pagedown", None), ("pageup", 0),
]  # fmt: skip
ORDER = [
    ("greater_than_sign", "tenant", False), ("less_than_sign", "pid", False),
    ("full_stop", "tenant", False), ("comma", "pid", False), ("r", "pid", True),
]  # fmt: skip
ELSEWHERE = {
    "enter", "slash", "escape", "f9", "k", "f7", "f8", "f6", "o", "f5", "t", "space", "f", "s", "c",
    "p", "g",
}  # fmt: skip
"""Keys of the table that other tests press."""


def test_the_cursor_and_the_order():
    async def story(app, pilot):
        page = app.screen.query_one(ProcessTable).page()
        assert page > 10
        for key, line in CURSOR:
            await pilot.press(key)
            assert app.listing.cursor == (min(29, page) if line is None else line), key
        await pilot.press("end")
        assert app.screen.query_one(ProcessTable).scroll_offset.y == 30 - page
        for key, column, reverse in ORDER:
            await pilot.press(key)
            assert (app.listing.sorted_by, app.listing.reverse) == (column, reverse), key

    play(machine(), story)
    tested = {key for key, *_ in (*CURSOR, *ORDER)} | ELSEWHERE
    assert keys_of(MainScreen) == tested, "each key of the table is pressed by a test"


def test_the_menu_of_columns():
    async def story(app, pilot):
        for key, column in (("f6", "tenant"), ("o", "class")):
            await pilot.press(key)
            assert isinstance(app.screen, Choice)
            await pilot.press("down", "enter")
            assert (app.listing.sorted_by, app.listing.reverse) == (column, False)
            await pilot.press(key, "escape")
            assert isinstance(app.screen, MainScreen)
            assert app.listing.sorted_by == column

    play(machine(), story)


def test_tree_follow_prompts_and_meters():
    async def story(app, pilot):
        for key, shown in (("t", True), ("f5", False)):
            await pilot.press(key)
            assert app.listing.as_tree == shown
            assert (r"\_" in "".join(line.branch for line in app.listing.lines)) == shown
        await pilot.press("f")
        assert app.listing.follow
        assert "number 1." not in words(app)
        await pilot.press("p")
        assert app.listing.prompts
        meters, table = app.screen.query_one(Meters), app.screen.query_one(ProcessTable)
        assert "Write about number 1." in words(app)
        heights = []
        for _ in FORMS:
            await pilot.press("g")
            await pilot.pause()
            heights.append((meters.size.height, table.size.height))
        assert heights[0] == heights[3] and heights[0][0] > heights[1][0] == 4
        assert heights[2][1] > heights[1][1] > heights[0][1]

    play(machine(), story, size=(160, 50))


def test_find_narrows_the_table_as_it_is_typed():
    async def story(app, pilot):
        await pilot.press("slash", *"globex")
        assert {line.process.tenant for line in app.listing.lines} == {"globex"}
        await pilot.press("enter", "j")
        assert app.listing.cursor == 1, "the table has the keys again"
        assert app.screen.query_one("#search", Input).has_class("open"), "it is seen what is wanted"
        await pilot.press("escape")
        assert len(app.listing.lines) == 30
        await pilot.press("slash", *"q", "escape")
        assert len(app.listing.lines) == 30
        await pilot.press("slash", "enter")
        assert not app.screen.query_one("#search", Input).has_class("open")

    play(machine(), story)


# ---- the program ----


def test_freeze_keeps_what_is_shown():
    source = Still(look(1.0, [process(1)]))

    async def story(app, pilot):
        await pilot.press("space")
        source.looks = [look(9.0, [process(2)])]
        pulls = source.pulls
        await until(pilot, lambda: source.pulls > pulls + 2, "more looks")
        assert "frozen" in words(app)
        assert [line.process.pid for line in app.listing.lines] == [1]
        assert app.history.last.time_s == 9.0, "but the history goes on"
        await pilot.press("space")
        await until(pilot, lambda: app.snapshot.time_s == 9.0, "the look of now")

    play(source, story)


def test_the_pace_of_looks():
    async def story(app, pilot):
        for key, pace in (("minus", 1.0), ("plus", 0.5), ("equals_sign", 0.2), ("minus", 0.5)):
            await pilot.press(key)
            await pilot.pause()
            assert f"live {pace:g} s" in words(app)

    play(machine(), story, refresh=0.5)


def test_help_tells_every_key_and_goes():
    async def story(app, pilot):
        for key in ("question_mark", "f1"):
            await pilot.press(key)
            assert isinstance(app.screen, Help)
            shown = words(app)
            for name in ("table.signal", "Signal", "f9 k"):
                assert name in shown
            await pilot.press(key)
            assert isinstance(app.screen, MainScreen)

    play(machine(), story, size=(120, 60))


def test_the_palette_does_what_keys_do():
    async def story(app, pilot):
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"follow")
        await until(pilot, lambda: "Key: f" in words(app), "the command")
        await pilot.press("enter")
        await until(pilot, lambda: app.listing.follow, "what it does")

    play(machine(), story)


def test_a_picture_is_saved_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def story(app, pilot):
        await pilot.press("ctrl+s")
        await until(pilot, lambda: list(tmp_path.glob("tokenix-top-*.svg")), "the picture")
        assert "saved" in toasts(app)[0]

    play(machine(), story)


def test_a_picture_that_cannot_be_saved_is_said(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    async def story(app, pilot):
        await pilot.press("ctrl+s")
        await until(pilot, lambda: toasts(app), "the error")
        assert "no picture" in toasts(app)[0]

    play(machine(), story)


@pytest.mark.parametrize("key", ["q", "f10"])
def test_quit_lets_go_of_the_machine(key):
    source = machine()

    async def story(app, pilot):
        await pilot.press(key)
        await pilot.pause()

    app = play(source, story)
    assert source.closed.is_set()
    assert app.failure is None


def test_keys_of_the_program_are_all_pressed_here():
    assert keys_of(TopApp) >= {
        "1", "question_mark", "f1", "ctrl+s", "q", "f10", "plus", "equals_sign", "minus",
        "left_square_bracket", "right_square_bracket", "left_curly_bracket", "right_curly_bracket",
    }  # fmt: skip


def test_keys_can_be_others():
    source = machine()

    async def story(app, pilot):
        await pilot.press("k")
        assert isinstance(app.screen, MainScreen)
        await pilot.press("delete")
        assert isinstance(app.screen, Choice)

    play(source, story, keys={"table.signal": "delete"})


# ---- the mouse ----


def test_clicks_choose_sort_and_open():
    async def story(app, pilot):
        table = app.screen.query_one(ProcessTable)
        await pilot.click(table, offset=(5, 4))
        assert app.listing.cursor == 3
        await pilot.click(table, offset=(table.size.width // 2, 0))
        assert app.listing.sorted_by != "pid"
        await pilot.click(table, offset=(3, 0))
        assert app.listing.sorted_by == "pid"
        await pilot.click(table, offset=(5, table.size.height - 1))
        await pilot.press("k")
        await pilot.click(OptionList, offset=(3, 2))
        await pilot.pause()
        assert isinstance(app.screen, MainScreen)

    play(machine(), story)


def test_a_click_on_a_hint_presses_its_key():
    async def story(app, pilot):
        foot = app.screen.query_one(Foot)
        line = words(app).split("\n")[-1]
        await pilot.click(foot, offset=(line.index("Signal") + 2, 0))
        await until(pilot, lambda: isinstance(app.screen, Choice), "the menu of signals")
        await pilot.press("escape")
        await pilot.click(foot, offset=(0, 0))
        assert isinstance(app.screen, MainScreen)

    play(machine(), story)


def test_the_wheel_scrolls_and_the_cursor_can_be_elsewhere():
    async def story(app, pilot):
        table = app.screen.query_one(ProcessTable)
        table.scroll_down(animate=False)
        await pilot.pause()
        assert table.scroll_offset.y == 1
        assert app.listing.cursor == 0

    play(machine(), story)


# ---- the machine comes and goes ----


def test_a_machine_that_is_gone_is_said_and_comes_back():
    gone = ConnectionRefusedError(errno.ECONNREFUSED, "no kernel listens there")
    source = Still(look(50.0, [process(1)]), gone)

    async def story(app, pilot):
        await until(pilot, lambda: "trying again" in words(app), "the loss")
        assert "no kernel listens there" in words(app)
        assert [line.process.pid for line in app.listing.lines] == [1], "the last look stays"
        source.looks = [look(0.2, [process(7)])]
        await until(pilot, lambda: app.snapshot.time_s == 0.2, "the new machine")
        await pilot.pause()
        assert "live" in words(app) and "trying" not in words(app)
        assert len(app.history.series["out_per_s"]) < 5, "its history is its own"

    play(source, story)


class Silent(Still):
    """Answers once, then only when it is told to."""

    def __init__(self, *looks):
        super().__init__(*looks)
        self.go = threading.Event()

    def pull(self):
        if self.pulls:
            self.go.wait()
        return super().pull()

    def close(self):
        self.go.set()
        super().close()


def test_a_machine_that_does_not_answer_is_said_until_it_does():
    source = Silent(look(50.0, [process(1)]), look(60.0, [process(2)]))

    async def story(app, pilot):
        await until(pilot, lambda: "no answer for" in words(app), "the silence")
        await pilot.press("o")
        await until(pilot, lambda: re.search("no answer for [3-9]", words(app)), "how long it is")
        assert "live" not in words(app)
        source.go.set()
        await until(pilot, lambda: "live" in words(app), "the answer")
        assert [line.process.pid for line in app.listing.lines] == [2], "also below a dialog"

    play(source, story)


def test_an_error_of_ours_ends_the_program_without_a_report(capsys):
    """Textual would show what variables hold: the prompt of the process, here."""
    app = TopApp(Still(look(processes=[process(1, lead_s="my secret")])), Settings())
    app.run(headless=True)
    assert isinstance(app.failure, TypeError)
    said = capsys.readouterr()
    assert "secret" not in said.out + said.err


def test_every_key_of_ours_can_be_another():
    names = TopApp.action_names()
    assert {"table.signal", "app.quit", "view.log"} <= names
    assert "table.nothing" not in names


def test_small_and_large_screens():
    async def story(app, pilot):
        for size in ((80, 24), (40, 10), (200, 60), (20, 5), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            lines = words(app).split("\n")
            assert len(lines) == size[1]
            assert all(len(line) == size[0] for line in lines)
        assert re.search(r"PID .*STATE .*LEAD", words(app))

    play(machine(200), story)


def test_only_lines_on_screen_are_made(monkeypatch):
    made = []
    line = ProcessTable._line
    monkeypatch.setattr(
        ProcessTable, "_line", lambda self, y, *rest: (made.append(y), line(self, y, *rest))[1]
    )

    async def story(app, pilot):
        table = app.screen.query_one(ProcessTable)
        made.clear()
        table.show()
        await pilot.pause()
        assert len(made) <= 3 * table.size.height

    play(machine(3000), story, refresh=600.0)


# ---- a demonstration ----


def test_notes_stand_above_the_table():
    notes = Narrator(("This is said at the beginning.",)).listen((), look())

    async def story(app, pilot):
        assert "This is said at the beginning." in words(app)

    play(Still(look(notes=notes)), story)
    play(Still(look(notes=notes)), story, size=(80, 24))
