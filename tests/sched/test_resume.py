"""Coming back: earliest deadline first, whole footprint, before newcomers; and early."""

import dataclasses
import math
from typing import Any

import pytest

from tokenix.sched.entity import Qos
from tokenix.sched.plan import Plan
from tokenix.sched.scheduler import Scheduler
from tokenix.tests.sched.fakes import memory, newcomer, paused, scheduler, stream

NOW = 100.0
BUSY: dict[str, Any] = {"in_queue_s": 0.02}
"""A link that is busy enough to forbid resumes ahead of time."""


def plan(sched: Scheduler, free: int = 0, total: int = 100, **fields: Any) -> Plan:
    return sched.plan(memory(total, free, **fields), NOW)


@pytest.mark.parametrize(
    ("lead", "tp", "queue", "due"),
    [
        (0.30, 0.0, 0.02, True),
        (0.34, 0.0, 0.02, False),
        (0.60, 0.03, 0.02, True),  # ten missing pages take 0.3 s
        (0.60, 0.0, 0.30, True),  # so long is the queue before it
        (0.64, 0.03, 0.02, False),
    ],
)
def test_due_when_the_way_back_uses_up_the_lead(
    lead: float, tp: float, queue: float, due: bool
) -> None:
    sched = scheduler(paused=[paused(1, 10, lead_s=lead)], moving=[stream(9)])
    made = plan(sched, 50, in_s_per_page=tp, in_queue_s=queue)
    assert (made.resume == (1,)) is due
    if not due:
        assert made.wake_s == pytest.approx(NOW + lead - 10 * tp - queue - 0.31)


def test_earliest_deadline_first_and_the_next_if_one_is_blocked() -> None:
    tasks = [paused(1, 30, lead_s=0.1), paused(2, 8, lead_s=0.2), paused(3, 8, lead_s=-1.0)]
    sched = scheduler(paused=tasks, ready=[stream(9, 1)])
    assert plan(sched, 60, **BUSY).resume == (3, 1, 2)
    assert plan(sched, 20, **BUSY).resume == (3, 2)
    assert sched.controllers.pressure


def test_all_or_nothing_with_a_page_to_grow() -> None:
    """A1: frames for the whole footprint and one page more, own clean pages included once."""
    for idle, free, cached, comes in (
        (0, 11, 0, True),
        (0, 10, 0, False),
        (4, 7, 4, True),
        (4, 6, 4, False),
        (4, 0, 11, True),
        (4, 0, 10, False),
        (10, 1, 10, True),
        (10, 0, 10, False),
    ):
        sched = scheduler(paused=[paused(1, 10, idle, lead_s=0.0)], ready=[stream(9, 1, 0.0)])
        made = plan(sched, free, cached_frames=cached, **BUSY)
        assert (made.resume == (1,)) is comes, (idle, free, cached)


def test_a_victim_has_a_second_more_lead_than_whoever_displaces_it() -> None:
    for lead, displaced in ((1.0, False), (1.5, True)):
        sched = scheduler(paused=[paused(1, 5, lead_s=0.2)], ready=[stream(9, 20, lead, dirty=0)])
        made = plan(sched, 0)
        assert bool(made.pause) is displaced and bool(made.resume) is displaced


def test_overdue_does_not_push_others_into_stalls_at_once_but_never_starves() -> None:
    for lead, displaced in ((-4.0, False), (-5.5, True)):
        sched = scheduler(paused=[paused(1, 5, lead_s=lead)], ready=[stream(9, 20, 0.5, dirty=0)])
        assert bool(plan(sched).pause) is displaced


def test_later_when_frames_are_on_their_way() -> None:
    sched = scheduler(paused=[paused(1, 10, lead_s=0.0)], ready=[stream(9, 20, 9.0)])
    made = plan(sched, 5, outgoing_frames=6)
    assert made.resume == () and made.pause == ()
    assert not sched.controllers.pressure


def test_due_resumes_come_before_newcomers() -> None:
    sched = scheduler(
        paused=[paused(1, 10, lead_s=0.0)], ready=[stream(9, 1, 0.0)], waiting=[newcomer(2, 16)]
    )
    made = plan(sched, 12)
    assert made.resume == (1,) and made.admit == ()


# ---- ahead of time --------------------------------------------------------------------------


def test_early_with_spare_frames_and_an_idle_link() -> None:
    for free, queue, comes in ((13, 0.0, True), (12, 0.0, False), (13, 0.02, False)):
        sched = scheduler(paused=[paused(1, 10, lead_s=9.0)], ready=[stream(9, 1)])
        assert bool(plan(sched, free, in_queue_s=queue).resume) is comes


def test_early_takes_idle_pages_of_whoever_is_due_later_but_not_for_batch() -> None:
    for qos, cached, comes in (
        (Qos.STREAM, 20, True),
        (Qos.STREAM, 12, False),
        (Qos.BATCH, 20, False),
        (Qos.BATCH, 45, True),
    ):
        other = paused(2, 20, idle=min(20, cached), lead_s=20.0)
        first = paused(1, 10, lead_s=9.0, qos=qos)
        sched = scheduler(paused=[first, other], ready=[stream(9, 1)])
        assert (1 in plan(sched, 0, cached_frames=cached).resume) is comes


def test_early_not_when_a_newcomer_was_refused_memory_but_when_one_merely_waits() -> None:
    blocked = scheduler(
        paused=[paused(1, 2, lead_s=9.0)], ready=[stream(9, 1, 0.0)], waiting=[newcomer(2, 16 * 20)]
    )
    assert plan(blocked, 15).resume == ()
    bounded = scheduler(
        paused=[paused(1, 2, lead_s=9.0)], ready=[stream(9, 1, 0.0)], waiting=[newcomer(2, 16 * 20)]
    )
    bounded.controllers.eta = 0.1
    assert plan(bounded, 50).resume == (1,)


def test_streams_come_back_before_batch() -> None:
    tasks = [paused(1, 10, qos=Qos.BATCH), paused(2, 10, lead_s=9.0)]
    tasks[0].entity.due_s = NOW + 5.0
    sched = scheduler(paused=tasks, ready=[stream(9, 1)])
    assert plan(sched, 13).resume == (2,)


# ---- nobody is forgotten --------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["progress", "fcfs", "retract"])
def test_an_idle_device_brings_somebody_back_though_not_due(policy: str) -> None:
    sched = scheduler(policy, paused=[paused(1, 99, lead_s=50.0)])
    made = plan(sched, 100, **BUSY)
    assert made.resume == (1,)


def test_what_needs_no_loading_runs_in_the_same_step() -> None:
    task = paused(1, 10, idle=10, lead_s=0.0)
    made = plan(scheduler(paused=[task]), 1, cached_frames=10)
    assert made.resume == (1,) and [r.pid for r in made.run] == [1]
    again = paused(2, 0, lead_s=0.0)
    again.space = dataclasses.replace(again.space, computed=0, mapped=0)
    again.length = 100
    made = plan(scheduler(paused=[again]), 100)
    assert made.resume == (2,) and [(r.pid, r.tokens) for r in made.run] == [(2, 100)]


def test_batch_is_owed_a_trickle_and_displaces_batch_only_after_a_quantum() -> None:
    waits = paused(1, 5, qos=Qos.BATCH)
    waits.entity.due_s = NOW
    for resident, displaced in ((1.0, False), (6.0, True)):
        runs = stream(9, 20, qos=Qos.BATCH, dirty=0)
        runs.entity.resident_since_s = NOW - resident
        chat = stream(8, 20, lead_s=50.0, dirty=0)
        made = plan(scheduler(paused=[waits], ready=[runs, chat]))
        assert [p.pid for p in made.pause] == ([9] if displaced else [])
    made = plan(scheduler(paused=[waits], ready=[stream(8, 20, lead_s=50.0, dirty=0)]))
    assert [p.pid for p in made.pause] == [8], "no batch runs at all: one gets its turn"


def test_wake_is_in_the_future_and_none_without_reason() -> None:
    assert plan(scheduler()).wake_s is None
    made = plan(scheduler(paused=[paused(1, 10, lead_s=0.3101)], ready=[stream(9)]), 50, **BUSY)
    assert made.wake_s is None or made.wake_s >= NOW + 1e-3
    assert not math.isinf(made.wake_s or 0.0)
    fork = newcomer(1)  # its reader has seen text already: it never gives up
    fork.entity.delivered_tokens = 5
    assert plan(scheduler(waiting=[fork]), 0).wake_s is None
