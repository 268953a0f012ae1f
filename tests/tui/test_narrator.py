"""What a demonstration says, and that it has something to say."""

from tokenix.syscalls.types import TraceEvent
from tokenix.tests.daemon.daemons import poll
from tokenix.tests.tui.worlds import look, metrics, process
from tokenix.tui.demo import OPENING, Demo
from tokenix.tui.model import phrases
from tokenix.tui.model.narrator import Narrator


def event(time_s, pid, kind, **detail):
    return TraceEvent(1, time_s, pid, kind, tuple(detail.items()))


def test_what_is_paused_and_comes_back_is_told_in_words():
    narrator = Narrator(("Beginning.",))
    paused = event(5.0, 3, "pause", lead_s=9.21, clean=25, pages=26)
    back = event(9.0, 3, "pause-end", lead_s=0.41, paused_s=4.0)
    said = [note.text for note in narrator.listen((paused, back), look(10.0))]
    assert said == [
        "Beginning.",
        "3 is paused: its reader has 9.2 s of unread text. 25 of 26 pages were copied before, so "
        "its memory is free within a step.",
        "3 is back after 4.00s, 0.4 s before its reader would have noticed.",
    ]


def test_what_has_no_reader_is_not_told():
    narrator = Narrator(())
    events = [
        event(5.0, 3, "pause", clean=25, pages=26),
        event(6.0, 3, "pause-end", paused_s=1.0),
        event(7.0, 4, "pause-end", lead_s=-0.5, paused_s=1.0),
    ]
    assert narrator.listen(events, look(8.0)) == ()


def test_one_sentence_of_a_kind_in_a_while():
    narrator = Narrator(())
    events = [
        event(at, pid, "pause", lead_s=9.0, clean=1, pages=1)
        for pid, at in enumerate((1.0, 1.5, 3.0, 3.6), start=1)
    ]
    assert [note.time_s for note in narrator.listen(events, look(4.0))] == [1.0, 3.6]


def test_bursts_first_tokens_refusals_and_the_sum():
    narrator = Narrator(())
    asked = process(7, qos="interactive", ttft_s=None, output_tokens=0)
    spawns = [event(20.0, pid, "spawn") for pid in range(7, 12)]
    first = narrator.listen(spawns, look(20.0, [asked], metrics(stalls=2), frames__free=10.0))
    later = narrator.listen(
        [event(20.5, 8, "exit", reason="refused", error="overloaded; retry after 0.1 s")],
        look(20.6, [process(7, qos="interactive", ttft_s=0.08)]),
    )
    said = [note.text for note in later]
    assert said == [
        "5 requests come at once; memory is full: who has unread text makes room.",
        "Until now 0 pauses, and 2 tokens came visibly late.",
        "8 was refused: overloaded; retry after 0.1 s.",
        "Short question 7 had its first token after 0.08s: it did not wait for a stream to end.",
    ]
    assert first == later[:2]
    stopped = process(9, state="stopped", held=("signal",))
    (*_, sum_up) = Narrator(()).listen((), look(20.0, [stopped]))
    assert sum_up.text.endswith("nobody's text stood still, but for what was stopped by hand.")
    (quiet, *_) = Narrator(()).listen(spawns, look(1.0))
    assert quiet.text == "5 requests come at once; there is room."


def test_the_opening_can_be_read_in_80_columns():
    """It has three lines of 78 cells there."""
    said = Narrator(OPENING).listen((), look())
    shown = phrases.notes(said, 78, 3)
    text = " ".join(text for line in shown for text, _ in line)
    assert "Each line is a request" in text and "paused unseen" in text


def test_a_demonstration_shows_the_idea():
    """It pauses streams unseen, and short questions get on."""
    demo = Demo()
    try:
        texts = set()

        def told():
            texts.update(note.text for note in demo.pull().notes)
            return all(
                any(word in text for text in texts) for word in ("is paused", "come at once")
            )

        poll(told, "what it is about")
        assert {each.tenant for each in demo.pull().processes} >= {"acme", "globex", "initech"}
        assert demo.view().vmstat()["preemptions"] > 0
    finally:
        demo.close()
