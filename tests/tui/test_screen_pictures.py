"""The screens beside the table, as people have looked at them: two sizes, dark, light and without
colour. `pictures.py` says how they are made anew."""

import pytest

from tokenix.tests.tui.pictures import check_inks, check_settled
from tokenix.tests.tui.pilots import play, until, words
from tokenix.tests.tui.sights import seen
from tokenix.tests.tui.test_pictures import SIZES, THEMES
from tokenix.tests.tui.worlds import CONTROLS, crowd, look, process

BOUNDS = {
    "sched.level_band_s": 1.0, "sched.max_running": 256, "sched.step_limit_s": 0.5,
    "sched.eta_floor": 0.5, "rates.step_s": 0.05, "rates.steps_per_s": 19.0,
    "rates.prefill_tokens_per_s": 10_000.0,
}  # fmt: skip
SCENES = {
    "process": (("enter",), "newcomer 9"),
    "output": (("o",), "secret words"),
    "memory": (("escape", "2"), "0a31f2c4"),
    "scheduler": (("3",), "pass 813"),
    "controls": (("e", *"sched", "enter"), "write what it is to be"),
    "log": (("escape", "escape", "4", "a"), "ready → swapping-out"),
}
"""Name -> keys that lead there from the scene before, and words that say that all is there."""
FOOT = {
    "process": "esc Back", "output": "esc Back", "memory": "d Daemons", "scheduler": "p Policy",
    "controls": "p Policy", "log": "a All events",
}  # fmt: skip
"""Of the line of keys, which comes a little later than the rest."""


def looks():
    """Four seconds: process 1 ran, was paused, and runs."""
    for at in range(41):
        lead_s = 2.0 + at / 5 if at < 11 else 5.0 - at / 10 if at < 25 else at / 8 - 2.0
        state = "running" if at < 11 or at >= 25 else "swapped"
        first = process(1, state=state, lead_s=lead_s, preemptions=1, paused_s=1.3, queue_s=0.25)
        yield look(
            96.0 + at / 10, (first, *crowd(40)[1:]), controller__eta=0.9, reclaim__low=10.0,
            controller__working_set_pages=640.0, queues__ready=12.0, reclaim__high=20.0,
            reclaim__pages=at * 0.5, swap__pages_out=at * 2.0, writebehind__queue=7.0,
            swap__flight_out=16.0, swap__out_s_per_page=0.002, swap__in_s_per_page=0.0004,
        )  # fmt: skip


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_screens_look_as_they_did(size, theme, monkeypatch):
    if theme == "none":
        monkeypatch.setenv("NO_COLOR", "1")
        theme = "tokenix-dark"
    monkeypatch.setitem(CONTROLS, "sched.level_band_s", 1.0)
    for name, value in BOUNDS.items():
        monkeypatch.setitem(CONTROLS, name, value)

    async def story(app, pilot):
        for each in looks():
            app.history.take(each)
            app.tracks.take(each.time_s, each.processes)
        app.snapshot = app.history.last
        app.screen._show()
        for name, (keys, part) in SCENES.items():
            await pilot.press(*keys)
            if name in ("memory", "scheduler"):  # they compare looks
                for each in looks():
                    app.screen.show(each)
            for here in (part, FOOT[name]):
                await until(pilot, lambda here=here: here in words(app), here)
            await pilot.pause()
            await check_settled(pilot, app, f"{name}-{size[0]}x{size[1]}")
            check_inks(app)

    source = seen(look(95.0, (process(1, state="new", lead_s=None),)))
    play(source, story, size=size, theme=theme, refresh=600.0)
