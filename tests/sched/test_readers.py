"""Readers that are not what they were declared to be, and tokens that nobody reads yet."""

import pytest

from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.reader import note_delivered, note_read, rate_of
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import entity
from tokenix.tests.sched.quick import Outcome, Quick, chat, quick_task

T = Tunables()


def chatting(true_rate: float, reads: bool) -> Outcome:
    """Chat whose clients say 10 tokens per second."""
    tasks = chat(1, 250, 9.0)
    for task in tasks:
        task.true_rate = true_rate
    return Quick("progress", tasks, 1000, 4000, page_s=2e-4, reads=reads).run()


@pytest.mark.parametrize("true_rate", [5.0, 10.0, 20.0])
def test_read_credits_correct_a_declared_rate(true_rate: float) -> None:
    done = chatting(true_rate, reads=True)
    assert done.stalled() == 0 and done.good() > 0.9


def test_without_credits_a_reader_of_twice_the_rate_waits() -> None:
    assert chatting(20.0, reads=False).stalled() > 0.2


def test_a_slow_reader_gives_its_lead_to_others() -> None:
    assert chatting(5.0, reads=True).pauses < chatting(5.0, reads=False).pauses


def follow(take: int, every_s: float, produced_per_s: float, seconds: float) -> float:
    """The rate that is believed of a client that takes `take` tokens, if there are, every so
    often."""
    who = entity(1)
    now_s = made = 0.0
    note_delivered(who, 0.0, 1, T)
    while now_s < seconds:
        now_s += every_s
        made += every_s * produced_per_s
        note_delivered(who, now_s, int(made), T)
        made -= int(made)
        note_read(who, now_s, take, T)
    return rate_of(who)


def test_a_proxy_that_takes_whatever_there_is_says_nothing() -> None:
    assert follow(10**6, 0.5, 60.0, 20.0) == 10.0


@pytest.mark.parametrize(("rate", "believed"), [(5.0, 5.0), (20.0, 20.0), (1.0, 4.0), (55.0, 25.0)])
def test_corrections_are_bounded(rate: float, believed: float) -> None:
    assert follow(1, 1 / rate, 60.0, 20.0) == pytest.approx(believed, rel=0.15)


def test_hidden_reasoning_is_served_as_before_the_first_token_and_comes_to_an_end() -> None:
    """Nobody reads it, so that it has no lead to be paused for; it must not crowd readers out."""
    hidden = Reader(ReaderKind.HIDDEN)
    tasks = chat(2, 150, 5.0)
    tasks += [quick_task(1000 + i, 400, 600, arrival_s=0.5 * i, reader=hidden) for i in range(30)]
    done = Quick("progress", tasks, 1000, 4000).run()
    seen = [task for task in tasks if task.entity.pid < 1000]
    assert not any(task.late_s > 0.5 for task in seen)
    thinking = [task for task in tasks[150:] if task.entity.pid not in done.refused]
    assert len(thinking) > 20 and all(task.outputs == 600 for task in thinking)


def test_batch_readers_fill_what_is_left_and_all_finish() -> None:
    tasks = chat(2, 150, 5.0, qos=Qos.INTERACTIVE)
    batch = Reader(ReaderKind.BATCH)
    tasks += [quick_task(1000 + i, 800, 400, reader=batch) for i in range(60)]
    machine = Quick("progress", tasks, 1000, 4000)
    done = machine.run()
    jobs = tasks[150:]
    assert all(task.outputs == 400 for task in jobs)
    assert all(task.late_s <= 0.5 for task in tasks[:150]) and done.pauses > 0
