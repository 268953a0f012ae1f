"""What a recording holds beside looks, and that it comes back at its moment."""

import errno
import json

import pytest
from msgspec.structs import replace

from tokenix.syscalls.types import Pid
from tokenix.tests.tui.pilots import play, shown, words
from tokenix.tests.tui.sights import FRAMES, NODES, PLAN, event, seen
from tokenix.tests.tui.test_recording import Clock
from tokenix.tests.tui.worlds import Still, crowd, look
from tokenix.tui.beside import MAPS_S
from tokenix.tui.recording import Recorder
from tokenix.tui.replay import Replay


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def record(path, number=10, prompts=False, **figures):
    """Looks a second apart; with each there is a pause, and the plan is of its time."""
    source = seen(*(look(100.0 + at, crowd(20), **figures) for at in range(number)))
    source.machine.events = []
    recorder = Recorder(source, path, prompts)
    for at in range(number):
        source.machine.events.append(
            event(at + 1, 100.0 + at, at % 3 + 1, "pause", reason=f"r{at}")
        )
        source.machine.plan = lambda at=at: replace(PLAN, steps=at)
        recorder.pull()
    recorder.close()
    return source


def test_plans_events_and_maps_come_back(tmp_path, clock):
    record(tmp_path / "looks")
    replay = Replay(tmp_path / "looks")
    view = replay.view()
    for at in (0, 1, 5, 9):
        clock.now_s = 100.0 + at
        assert view.plan().steps == at == replay.line
        assert [each.seq for each in view.trace()] == [*range(1, at + 2)]
        assert [each.seq for each in view.trace(Pid(1))] == [*range(1, at + 2, 3)]
        assert [each.seq for each in view.trace(since=at)] == [at + 1]
        assert view.framemap().codes == FRAMES and view.framemap("host").total == 500
        assert view.prefixes() == NODES and view.prefixes(2) == NODES[:2]
        assert len(view.ps()) == 20 and view.stat(Pid(3)).pid == 3
        assert view.vmstat()["time_s"] == 100.0 + at
    replay.skip(-8)
    assert view.plan().steps == 1 and len(view.trace()) == 2


def test_maps_are_asked_for_now_and_then(tmp_path):
    source = record(tmp_path / "looks", number=9)
    assert source.machine.asked.count("frames") == -(-9 // MAPS_S)
    assert source.machine.asked.count("trace") == 9


def test_large_tiers_are_not_recorded(tmp_path):
    source = record(tmp_path / "looks", frames__total=1e6)
    assert "frames" not in source.machine.asked and "host" in source.machine.asked
    with pytest.raises(OSError, match="no map of the frames") as problem:
        Replay(tmp_path / "looks").view().framemap()
    assert problem.value.errno == errno.ENODATA


def test_what_is_not_permitted_is_not_asked_again(tmp_path):
    source = Still(*(look(100.0 + at, crowd(2)) for at in range(5)))
    asked = []
    source.machine.plan = lambda: asked.append(1) or source.machine.prefixes()
    recorder = Recorder(source, tmp_path / "looks", False)
    for _ in range(5):
        recorder.pull()
    recorder.close()
    assert len(asked) == 1
    view = Replay(tmp_path / "looks").view()
    assert view.trace() == ()
    for call in (view.plan, view.prefixes, view.framemap):
        with pytest.raises(OSError, match="the recording holds no"):
            call()


@pytest.mark.parametrize("prompts", [False, True])
def test_ends_have_no_prompts_in_them_unless_asked_for(tmp_path, prompts):
    source = seen(look(1.0))
    source.machine.events = [event(1, 1.0, 1, "exit", reason="stop", name="my secret")]
    recorder = Recorder(source, tmp_path / "looks", prompts)
    recorder.pull()
    recorder.close()
    assert ("secret" in (tmp_path / "looks").read_text()) == prompts


def test_another_machine_begins_anew(tmp_path):
    source = seen(look(100.0), look(5.0))
    source.machine.events = [event(50, 99.0, 1, "pause")]
    recorder = Recorder(source, tmp_path / "looks", False)
    recorder.pull()
    source.machine.events = [event(1, 4.0, 1, "pause")]
    recorder.pull()
    recorder.close()
    lines = map(json.loads, (tmp_path / "looks").read_text().splitlines()[1:])
    assert [[each["seq"] for each in line["beside"]["events"]] for line in lines] == [[50], [1]]


@pytest.mark.parametrize(
    "call",
    [
        lambda view: view.maps(Pid(1)), lambda view: view.tail(Pid(1)),
        lambda view: view.detokenize((1,)), lambda view: view.kill(Pid(1)),
        lambda view: view.nice(Pid(1), 1), lambda view: view.sysctl("policy", "fcfs"),
        lambda view: view.stat(Pid(999)),
    ],
)  # fmt: skip
def test_what_a_recording_does_not_hold(tmp_path, call):
    record(tmp_path / "looks", number=1)
    view = Replay(tmp_path / "looks").view()
    with pytest.raises(OSError, match="the recording holds") as problem:
        call(view)
    assert problem.value.errno == errno.ENODATA
    assert view.sysctl("policy") == "progress" and "policy" in view.sysctl()
    assert [each.pid for each in view.ps_after(17).processes] == [18, 19, 20]
    assert view.metrics().series


def test_screens_of_a_recording(tmp_path):
    record(tmp_path / "looks", number=30)

    async def story(app, pilot):
        for key, *parts in (
            ("2", "300 in use, clean", "0a31f2c4"), ("3", "who is due first", "newcomer 1"),
            ("4", "reason r0"),
        ):  # fmt: skip
            await pilot.press(key)
            await shown(app, pilot, *parts)
        await pilot.press("1", "enter")
        await shown(app, pilot, "no page maps of processes", "reason r0")
        await pilot.press("o")
        await shown(app, pilot, "holds no outputs")
        assert "secret" not in words(app)

    play(Replay(tmp_path / "looks", speed=1 / 16), story, size=(160, 50))


def test_back_in_a_recording_the_events_to_come_are_not_known(tmp_path):
    record(tmp_path / "looks", number=30)
    replay = Replay(tmp_path / "looks", speed=1 / 16)
    replay.skip(20)

    async def story(app, pilot):
        await pilot.press("enter")
        await shown(app, pilot, "reason r18")
        for _ in range(3):
            await pilot.press("left_square_bracket")
        await shown(app, pilot, "reason r3")
        assert "reason r18" not in words(app)

    play(replay, story, size=(160, 50))
