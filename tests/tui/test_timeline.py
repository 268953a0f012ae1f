"""The life of a process in time, from events and from looks."""

import pytest

from tokenix.tests.tui.sights import event, life, text
from tokenix.tests.tui.worlds import process
from tokenix.tui.model import timeline
from tokenix.tui.model.tracks import KEPT, MOST, Sample, Tracks


def test_spans_follow_the_events():
    spans = timeline.spans_of_events(life(1, 10.0), 10.0, 14.0)
    assert [(span.start_s, span.end_s, span.state) for span in spans] == [
        (10.0, 10.25, "new"), (10.25, 11.0, "ready"), (11.0, 11.1, "swapping-out"),
        (11.1, 12.4, "swapped"), (12.4, 12.5, "swapping-in"), (12.5, 14.0, "ready"),
    ]  # fmt: skip


def test_of_what_the_trace_has_forgotten_the_first_event_tells_the_state():
    spans = timeline.spans_of_events([event(9, 5.0, 1, "state", old="ready", new="swapped")], 0, 8)
    assert [(span.state, span.end_s) for span in spans] == [("ready", 5.0), ("swapped", 8.0)]


def test_looks_tell_spans_too():
    samples = [
        Sample(1.0, "new", None), Sample(2.0, "running", 1.0), Sample(3.0, "ready", 2.0),
        Sample(4.0, "swapped", 1.0),
    ]  # fmt: skip
    assert timeline.spans_of_samples(samples, 6.0) == [
        (1.0, 2.0, "new"), (2.0, 4.0, "ready"), (4.0, 6.0, "swapped")
    ]  # fmt: skip
    assert timeline.spans_of_samples([], 6.0) == []


def test_the_strip_shows_what_most_of_a_cell_was():
    spans = timeline.spans_of_events(life(1, 0.0), 0.0, 4.0)
    states = timeline.states_at(spans, 0.0, 4.0, 8)
    assert states == ["new", "ready", "swapped", "swapped", "swapped", "ready", "ready", "ready"]
    assert text(timeline.strip(states)) == "░█▁▁▁███"
    assert timeline.states_at(spans, -4.0, 4.0, 4)[:2] == ["", ""]
    assert timeline.states_at([], 0.0, 1.0, 3) == ["", "", ""]


def test_leads_between_looks_are_those_before():
    samples = [Sample(1.0, "ready", 2.0), Sample(3.0, "ready", 6.0)]
    assert timeline.leads_at(samples, 0.0, 4.0, 4) == [2.0, 2.0, 6.0, 6.0]
    assert timeline.leads_at([], 0.0, 4.0, 2) == [None, None]


@pytest.mark.parametrize("height", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("width", [8, 40, 158])
def test_a_life_has_the_size_it_is_given(width, height):
    spans = timeline.spans_of_events(life(1, 0.0), 0.0, 4.0)
    samples = [Sample(at / 4, "ready", at / 2) for at in range(17)]
    lines = timeline.life(spans, samples, (0.0, 4.0), width, height)
    assert len(lines) == height
    assert all(len(text(pieces)) == width for pieces in lines)


@pytest.mark.parametrize(
    ("length_s", "ticks"),
    [
        (4.0, ["-4s", "-3s", "-2s", "-1s", "now"]),
        (0.5, ["now"]),
        (50.0, ["-45s", "-30s", "-15s", "now"]),
    ],
)
def test_ticks_are_at_round_times(length_s, ticks):
    (words, _), *_ = timeline.axis(100.0, 100.0 + length_s, 56)
    assert words.split() == ticks and len(words) == 56
    for tick in ticks[:-1]:
        ago_s = float(tick[1:-1])
        assert words.index(tick) == round((1 - ago_s / length_s) * 56)


def test_shares_of_a_life():
    spans = timeline.spans_of_events(life(1, 0.0), 0.0, 4.0)
    words = text(timeline.shares(spans))
    assert "runs 2.25s" in words and "paused 1.30s" in words and "waits 0.25s" in words


def test_tracks_remember_who_was_seen():
    tracks = Tracks()
    for at in range(3 * KEPT):
        tracks.take(float(at), [process(1, lead_s=float(at))])
    samples = tracks.of(1)
    assert KEPT // 2 < len(samples) <= KEPT
    assert [sample.time_s for sample in samples] == sorted(sample.time_s for sample in samples)
    assert samples[-1].lead_s == 3 * KEPT - 1 and samples[0].time_s < KEPT
    tracks.take(0.0, [process(2)])  # another machine
    assert not tracks.of(1) and len(tracks.of(2)) == 1
    tracks.take(1.0, [process(pid) for pid in range(10, MOST + 99)])
    assert not tracks.of(2) and tracks.of(10) and not tracks.of(MOST + 98)
