"""Queues, estimators, controllers, and the relations between the tunables."""

import dataclasses

import pytest

from tokenix.mm.ids import Pid
from tokenix.sched.controllers import Controllers
from tokenix.sched.load import Load
from tokenix.sched.queues import Queue
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import newcomer, scheduler, stream

T = Tunables()


def test_a_task_is_in_one_queue() -> None:
    sched, task = scheduler(), stream(1)
    for queue in Queue:
        sched.enqueue(task, queue)
        sched.enqueue(task, queue)
        assert [q for q in Queue if Pid(1) in sched.queues.of(q)] == [queue]
    sched.remove(task)
    sched.remove(task)
    assert not any(sched.queues.of(q) for q in Queue)


def test_a_seat_is_kept_while_stopped_and_lost_when_paused() -> None:
    sched, one, two = scheduler(), stream(1), stream(2)
    sched.enqueue(one, Queue.READY)
    sched.enqueue(two, Queue.READY)
    sched.enqueue(one, Queue.HELD)
    sched.enqueue(one, Queue.READY)
    assert (one.entity.seat, two.entity.seat) == (1, 2)
    sched.enqueue(one, Queue.PAUSED)
    sched.enqueue(one, Queue.READY)
    assert one.entity.seat == 3


def test_waiting_begins_at_arrival() -> None:
    sched, task = scheduler(), newcomer(1, arrival_s=42.0)
    sched.enqueue(task, Queue.WAITING)
    assert task.entity.waiting_since_s == 42.0


# ---- rates ----------------------------------------------------------------------------------


def test_step_time_and_steps_per_second_are_two_numbers() -> None:
    rates = Rates(0.01, 10_000.0)
    for _ in range(400):
        rates.note_step(0.01, 0, 8, T)
        rates.note_step(0.15, 2000, 8, T)
    assert rates.step_s > 0.1, "what a deadline must wait for"
    assert rates.steps_per_s < 20
    for _ in range(100):
        rates.note_step(0.15, 2000, 8, T)
        for _ in range(15):
            rates.note_step(0.01, 0, 8, T)
    assert rates.steps_per_s > 2 / rates.step_s, "what a stream decodes is not 1 / step time"


def test_prefill_rate_learns_from_big_chunks() -> None:
    rates = Rates(0.01, 50_000.0)
    rates.note_step(0.01, 100, 2, T)
    assert rates.prefill_tokens_per_s == 50_000.0, "a small chunk says nothing on a fast device"
    for _ in range(100):
        rates.note_step(0.1, 900, 100, T)
    assert rates.prefill_tokens_per_s == pytest.approx(10_000.0, rel=0.05)


def test_prefill_rate_learns_from_small_chunks_on_slow_devices() -> None:
    rates = Rates(0.02, 50_000.0)
    for _ in range(100):
        rates.note_step(0.64, 64, 1, T)
    assert rates.prefill_tokens_per_s == pytest.approx(65 / 0.64, rel=0.3)


def test_an_instant_step_teaches_nothing() -> None:
    rates = Rates(0.01, 10_000.0)
    rates.note_step(0.0, 1000, 0, T)
    assert rates == Rates(0.01, 10_000.0)


# ---- controllers ----------------------------------------------------------------------------


def test_eta_falls_to_the_working_set_under_pressure_and_recovers_slowly() -> None:
    control = Controllers()
    control.note_step(0.0, 100, T)
    control.note_plan(True, Load(80.0, 0))
    control.note_step(0.5, 100, T)
    assert control.eta == 1.0, "once a second"
    control.note_step(1.0, 100, T)
    assert control.eta == pytest.approx(0.8)
    control.note_step(2.0, 100, T)
    assert control.eta == pytest.approx(0.81)
    for second in range(3, 60):
        control.note_step(float(second), 100, T)
    assert control.eta == 1.0, "never above what is there"


def test_eta_has_a_floor() -> None:
    control = Controllers()
    control.note_step(0.0, 100, T)
    for second in range(1, 5):
        control.note_plan(True, Load(51.0, 0))
        control.note_step(float(second), 100, T)
    assert control.eta == pytest.approx(0.51)
    control.note_plan(True, Load(10.0, 0))
    control.note_step(9.0, 100, T)
    assert control.eta == pytest.approx(0.51), "pressure with a small working set has other causes"


# ---- tunables -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"target_interactive_s": 0.0},
        {"target_stream_s": 0.5},
        {"step_floor_s": 1.0},
        {"max_running": 4096},
        {"newcomer_share": 0.0},
        {"retract_ratio_start": 0.05},
        {"step_min_prefill_tokens": 4096},
    ],
)
def test_contradicting_tunables_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        dataclasses.replace(T, **change)  # type: ignore[arg-type]


def test_tunables_take_effect_with_the_next_call() -> None:
    sched = scheduler()
    assert sched.place(stream(1, lead_s=1.5), 100.0).level == 3
    sched.tunables = dataclasses.replace(T, level_band_s=2.0)
    assert sched.place(stream(1, lead_s=1.5), 100.0).level == 2
