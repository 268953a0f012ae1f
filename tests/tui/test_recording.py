"""What is recorded is what is replayed, at any speed."""

import errno
import json

import msgspec
import pytest

from tokenix.tests.tui.pilots import play, toasts, until, words
from tokenix.tests.tui.worlds import Still, crowd, look, process
from tokenix.tui import replay as replaying
from tokenix.tui.recording import FORMAT, Recorder, read_lines
from tokenix.tui.replay import Replay


class Clock:
    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(replaying.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def record(path, *looks, prompts=False):
    recorder = Recorder(Still(*looks), path, prompts)
    for _ in looks:
        recorder.pull()
    recorder.close()
    return path


def ten_seconds(path):
    return record(path, *(look(float(at), [process(at + 1)]) for at in range(11)))


@pytest.mark.parametrize("name", ["looks.jsonl", "looks.jsonl.gz"])
def test_a_look_comes_back_as_it_was(tmp_path, name):
    seen = look(1.0, crowd(20))
    path = record(tmp_path / name, seen, prompts=True)
    assert Replay(path).pull() == seen


def test_prompts_are_not_recorded_unless_asked_for(tmp_path):
    path = record(tmp_path / "looks", look(processes=[process(1, name="my secret")]))
    assert "secret" not in path.read_text()
    assert Replay(path).pull().processes[0].name == ""


def test_what_is_seen_is_not_changed_by_recording(tmp_path):
    seen = look(processes=[process(1, name="my secret")])
    recorder = Recorder(Still(seen), tmp_path / "looks", False)
    assert recorder.pull() is seen
    recorder.close()
    recorder.pull()  # a late look is not written to a closed file
    assert len(read_lines(tmp_path / "looks")[0]) == 1


def test_it_plays_by_the_clock(tmp_path, clock):
    replay = Replay(ten_seconds(tmp_path / "looks"))
    assert replay.length_s == 10
    shown = []
    for passed_s in (0.0, 0.9, 0.2, 3.0, 100.0):
        clock.now_s += passed_s
        shown.append(replay.pull().time_s)
    assert shown == [0, 0, 1, 4, 10]


def test_speed_hold_and_skip(tmp_path, clock):
    replay = Replay(ten_seconds(tmp_path / "looks"), speed=4.0)
    clock.now_s += 1.0
    assert replay.position_s == 4
    replay.play(0.5)
    clock.now_s += 2.0
    assert replay.position_s == 5
    replay.hold(True)
    clock.now_s += 50.0
    assert replay.position_s == 5
    replay.skip(-3)
    assert replay.pull().time_s == 2
    replay.hold(False)
    clock.now_s += 2.0
    assert replay.position_s == 3
    replay.skip(-100)
    assert replay.position_s == 0
    replay.skip(100)
    assert replay.position_s == 10


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not say so"),
        ("hello\n", "does not say so"),
        ('{"format": "tokenix top 99"}\n{}\n', "of the format 'tokenix top 99'"),
        (f'{{"format": "{FORMAT}"}}\n', "no looks"),
        (f'{{"format": "{FORMAT}"}}\n{{"taken_s": 1.0', "no looks"),
        (f'{{"format": "{FORMAT}"}}\n{{"nothing": 1}}\n', "taken_s"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, text, why):
    path = tmp_path / "looks"
    path.write_text(text)
    with pytest.raises(OSError, match=why) as caught:
        Replay(path)
    assert caught.value.errno == errno.EINVAL


def test_a_compressed_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "looks.gz"
    path.write_text("hello")
    with pytest.raises(OSError, match="no recording"):
        Replay(path)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    path = ten_seconds(tmp_path / "looks")
    path.write_bytes(path.read_bytes()[:-40])
    assert Replay(path).length_s == 9


def test_a_line_that_is_damaged_is_named(tmp_path):
    path = ten_seconds(tmp_path / "looks")
    lines = path.read_text().split("\n")
    lines[3] = "gar" + lines[3]
    path.write_text("\n".join(lines))
    with pytest.raises(OSError, match="line 4 is damaged"):
        Replay(path)


def test_a_clock_that_was_put_back_does_not_matter(tmp_path):
    path = ten_seconds(tmp_path / "looks")
    head, *lines = path.read_text().strip().split("\n")
    path.write_text("\n".join([head, *reversed(lines), ""]))
    replay = Replay(path)
    assert (replay.length_s, replay.position_s) == (0, 0)
    assert replay.pull().time_s == 0, "the last one"


def test_a_damaged_look_is_said_while_it_plays(tmp_path):
    path = ten_seconds(tmp_path / "looks")
    lines = path.read_text().split("\n")
    lines[2] = '{"taken_s": ' + str(json.loads(lines[2])["taken_s"]) + "}"
    path.write_text("\n".join(lines))
    source = Replay(path, speed=1 / 16)

    async def story(app, pilot):
        source.skip(1)
        await until(pilot, lambda: "look 2 of the recording is damaged" in words(app), "why")
        source.skip(1)
        await until(pilot, lambda: "replay 0.0625x" in words(app), "the next look")

    play(source, story)


def test_a_look_that_is_damaged_is_an_error_and_the_others_are_not(tmp_path, clock):
    path = ten_seconds(tmp_path / "looks")
    lines = path.read_text().split("\n")
    broken = json.loads(lines[2])
    del broken["figures"]
    lines[2] = json.dumps(broken)
    path.write_text("\n".join(lines))
    replay = Replay(path)
    replay.pull()
    clock.now_s += 1.0
    with pytest.raises(OSError, match="look 2 of the recording is damaged"):
        replay.pull()
    clock.now_s += 1.0
    assert replay.pull().time_s == 2


def test_unknown_fields_of_later_versions_are_ignored(tmp_path):
    path = tmp_path / "looks"
    later = {**msgspec.to_builtins(look()), "mood": "good"}
    path.write_text(f'{{"format": "{FORMAT}"}}\n{json.dumps(later)}\n')
    assert Replay(path).pull() == look()


def test_keys_of_a_recording(tmp_path):
    source = Replay(ten_seconds(tmp_path / "looks"), speed=1 / 16)

    async def story(app, pilot):
        assert "replay 0.0625x" in words(app)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.snapshot.time_s == 5, "five seconds on")
        await pilot.press("left_square_bracket", "right_curly_bracket")
        await until(pilot, lambda: app.snapshot.time_s == 0, "and back")
        assert source.speed == 1 / 8
        await pilot.press("left_curly_bracket", "left_curly_bracket")
        assert source.speed == 1 / 16, "there is a least speed"
        await pilot.press("space")
        await until(pilot, lambda: "held" in words(app), "held")
        place = source.position_s
        await pilot.pause(0.3)
        assert source.position_s == place
        await pilot.press("space", "s")
        await until(pilot, lambda: toasts(app), "what cannot be done")
        assert toasts(app) == ["a recording cannot be acted on"]

    play(source, story)
