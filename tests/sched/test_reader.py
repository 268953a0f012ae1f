"""Readers: when the next token is due, what a pause may use, what a read teaches."""

import math

import pytest

from tokenix.sched import reader
from tokenix.sched.entity import Qos, Reader, ReaderKind, SchedEntity
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import entity

T = Tunables()
RATES = Rates(0.01, 10_000.0)
MEASURED = Reader(ReaderKind.MEASURED, 10.0)


def lead(made: SchedEntity, now_s: float) -> float:
    return reader.lead_s(made, now_s, T, RATES)


def test_paced_reads_from_the_first_token_on() -> None:
    made = entity(1)
    reader.note_delivered(made, 5.0, 1, T)
    assert made.first_token_s == 5.0 and made.due_s == pytest.approx(5.1)
    for _ in range(9):
        reader.note_delivered(made, 5.0, 1, T)
    assert lead(made, 5.0) == pytest.approx(1.0)
    assert lead(made, 5.5) == pytest.approx(0.5)


def test_a_late_token_shifts_the_later_ones_and_may_be_a_stall() -> None:
    made = entity(1)
    reader.note_delivered(made, 5.0, 1, T)
    reader.note_delivered(made, 5.5, 1, T)
    assert made.due_s == pytest.approx(5.6) and made.stalls == 0
    reader.note_delivered(made, 6.2, 1, T)
    assert made.due_s == pytest.approx(6.3) and made.stalls == 1


def test_before_the_first_token_the_target_is_the_lead() -> None:
    made = entity(1, arrival_s=3.0)
    made.waiting_since_s = 3.0
    assert lead(made, 3.4) == pytest.approx(0.6)


def test_hidden_tokens_are_progress_but_nobody_reads_them() -> None:
    made = entity(1, reader=Reader(ReaderKind.HIDDEN))
    reader.note_paused(made, 1.0, T)
    reader.note_delivered(made, 2.0, 5, T)
    assert made.first_token_s is None and made.delivered_tokens == 5
    assert made.pauses_without_progress == 0
    assert reader.before_first_token(made)


@pytest.mark.parametrize("qos", [Qos.BATCH, Qos.IDLE])
def test_batch_has_infinite_lead_but_is_owed_a_trickle(qos: Qos) -> None:
    made = entity(1, qos=qos)
    reader.note_paused(made, 10.0, T)
    assert lead(made, 10.0) == math.inf
    assert reader.owed_s(made, 10.0, T, RATES) == T.target_s(qos)
    reader.note_delivered(made, 20.0, 1, T)
    assert reader.owed_s(made, 21.0, T, RATES) == T.target_s(qos) - 1.0


def test_batch_with_a_deadline_has_its_slack() -> None:
    made = entity(1, qos=Qos.BATCH, deadline_s=100.0, max_tokens=1000)
    assert lead(made, 50.0) == pytest.approx(100.0 - 50.0 - 1000 / 100.0)


def test_measured_unread_text_is_lead_however_long_nobody_reads() -> None:
    made = entity(1, reader=MEASURED)
    for _ in range(20):
        reader.note_delivered(made, 1.0, 1, T)
    assert lead(made, 1.0) == pytest.approx(2.0)
    assert lead(made, 500.0) == pytest.approx(2.0)
    reader.note_read(made, 1.0, 20, T)
    assert lead(made, 2.0) == pytest.approx(1.0)
    assert lead(made, 4.0) == pytest.approx(-1.0)


def test_measured_learns_the_rate_only_while_text_was_there() -> None:
    made = entity(1, reader=MEASURED)
    reader.note_delivered(made, 0.0, 100, T)
    for second in range(1, 9):
        reader.note_read(made, float(second), 5, T)
    assert made.read_rate == pytest.approx(5.0, abs=0.6)
    slow = made.read_rate
    reader.note_read(made, 9.0, 60, T)
    faster = made.read_rate
    assert faster > slow
    reader.note_delivered(made, 60.0, 1, T)  # we stalled: that says nothing about the reader
    reader.note_read(made, 60.0, 1, T)
    assert made.read_rate == faster


def test_reads_beyond_what_was_delivered_do_not_count() -> None:
    made = entity(1)
    reader.note_read(made, 1.0, 5, T)
    assert made.read_tokens == 0
    due = made.due_s
    reader.note_delivered(made, 1.0, 1, T)
    reader.note_read(made, 1.0, 1, T)
    assert made.due_s != due and made.read_rate == 0.0, "a paced reader is not measured"


def test_two_pauses_without_progress_make_a_leader() -> None:
    made = entity(1)
    reader.note_paused(made, 1.0, T)
    assert not made.leader
    reader.note_paused(made, 2.0, T)
    assert made.leader
    reader.note_delivered(made, 3.0, 1, T)
    assert not made.leader and made.pauses_without_progress == 0


def test_a_new_turn_is_before_its_first_token() -> None:
    made = entity(1)
    reader.note_delivered(made, 1.0, 1, T)
    reader.restart_turn(made, 50.0)
    assert reader.before_first_token(made)
    assert lead(made, 50.0) == pytest.approx(T.target_stream_s)
    reader.note_delivered(made, 50.5, 1, T)
    assert made.stalls == 0 and made.due_s == pytest.approx(50.6)


def test_a_fork_gains_no_priority_and_inherits_no_blame() -> None:
    parent, child = entity(1), entity(2)
    reader.note_delivered(parent, 1.0, 30, T)
    parent.leader, parent.stalls, parent.pauses_without_progress = True, 3, 2
    reader.inherit(parent, child)
    assert lead(child, 1.0) == lead(parent, 1.0)
    assert not child.leader and child.stalls == 0 and child.pauses_without_progress == 0
    assert child.delivered_tokens - child.read_tokens == 0


def test_nice_shifts_patience_gently() -> None:
    waits = [reader.patience_s(entity(1, nice=nice), 0.1, T) for nice in (-20, 0, 19)]
    assert waits[0] == 2.0 and waits[1] == 1.0 and 0.5 < waits[2] < 0.55
