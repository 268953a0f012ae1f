"""Giants: who is one, who of them is aside, and what that means for the others."""

import math
from dataclasses import replace

import pytest

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Reader
from tokenix.sched.giants import SAMPLES, UsualSize, find_aside
from tokenix.sched.policies.progress import PROGRESS
from tokenix.sched.queues import Queue
from tokenix.sched.room import victim_bar
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import FakeTask, memory, newcomer, paused, scheduler, stream

NOW, FRAMES = 100.0, 1000
FAST = Reader(tokens_per_s=90.0)
"""The device does 100 steps per second."""


def giant(pid: int, pages: int, arrival_s: float, reader: Reader = FAST) -> FakeTask:
    return stream(pid, pages, arrival_s=arrival_s, reader=reader)


def sleeping(pid: int, pages: int, arrival_s: float, lead_s: float) -> FakeTask:
    return paused(pid, pages, lead_s=lead_s, arrival_s=arrival_s, reader=FAST)


def begun(task: FakeTask, at_s: float) -> FakeTask:
    task.entity.first_token_s = at_s
    return task


def made(usual_pages: int = 20, **queues: list[FakeTask]) -> Scheduler:
    sched = scheduler(**queues)
    for _ in range(SAMPLES):
        sched.queues.usual.note_ended(usual_pages)
    return sched


def aside(sched: Scheduler) -> list[int]:
    return list(find_aside(sched._world(memory(FRAMES, FRAMES), NOW)))


def test_the_usual_size_is_a_geometric_mean_of_enough_streams() -> None:
    usual = UsualSize()
    for _ in range(SAMPLES // 2):
        usual.note_ended(4)
        assert usual.pages == math.inf
        usual.note_ended(16)
    assert usual.pages == pytest.approx(8)
    usual.note_ended(1 << 20)
    assert usual.pages < 40


def test_streams_that_end_tell_it_and_prompts_do_not() -> None:
    sched = scheduler(ready=[stream(1, 30), stream(2, 30)], waiting=[newcomer(3)])
    sched.plan(memory(FRAMES, FRAMES), NOW)
    for queue in (sched.ready, sched.waiting):
        for task in list(queue.values()):
            sched.remove(task)
    assert sched.queues.usual.ended == 2
    assert sched.queues.usual.log_pages == pytest.approx(math.log(30))


def test_the_first_by_arrival_have_the_share() -> None:
    sched = made(ready=[giant(1, 300, 3.0), giant(2, 200, 1.0), giant(3, 280, 2.0)])
    assert aside(sched) == [1]


def test_the_first_is_never_aside() -> None:
    sched = made(ready=[giant(1, 800, 1.0), giant(2, 150, 2.0)])
    assert aside(sched) == [2]


@pytest.mark.parametrize(
    "other",
    [
        giant(2, 299, 2.0, Reader(tokens_per_s=10.0)),  # others have their turn while it is paused
        giant(2, 99, 2.0),  # a small part of the pool
        begun(giant(2, 299, 2.0), NOW - 4.0),  # may be over before anybody has waited for it
    ],
)
def test_who_is_no_giant(other: FakeTask) -> None:
    assert aside(made(ready=[giant(1, 450, 1.0), other])) == []


def test_where_all_are_large_none_is_a_giant() -> None:
    ready = [giant(1, 450, 1.0), giant(2, 299, 2.0)]
    assert aside(made(100, ready=ready)) == []
    assert aside(made(99, ready=ready)) == [2]
    assert aside(scheduler(ready=ready)) == []  # nothing is known yet


def test_newcomers_do_not_wait_for_those_aside() -> None:
    def plan(policy_sets_aside: bool) -> tuple[Pid, ...]:
        ready, waiting = [giant(1, 490, 1.0)], [newcomer(3)]
        sched = made(ready=ready, waiting=waiting, paused=[sleeping(2, 490, 2.0, lead_s=5.0)])
        sched.policy = replace(PROGRESS, sets_aside=policy_sets_aside)
        return sched.plan(memory(FRAMES, 300), NOW).admit

    assert plan(True) == (3,)
    assert plan(False) == ()


def test_those_aside_come_back_with_what_nobody_wants() -> None:
    late = sleeping(2, 450, 2.0, lead_s=-9.0)
    sched = made(ready=[giant(1, 450, 1.0)], paused=[late])
    plan = sched.plan(memory(FRAMES, 460), NOW)
    assert (plan.resume, plan.pause) == ((), ())
    assert sched.plan(memory(FRAMES, 500), NOW).resume == (2,)
    sched.remove(sched.ready[Pid(1)])
    assert sched.plan(memory(FRAMES, 460), NOW).resume == (2,)  # now it is the first


def test_those_aside_yield_to_whoever_grows() -> None:
    grows = stream(3, 10, lead_s=0.2, full=True)
    sched = made(ready=[giant(1, 450, 1.0), giant(2, 450, 2.0), grows])
    for task in sched.ready.values():
        task.entity.due_s = NOW + 0.2
    plan = sched.plan(memory(FRAMES), NOW)
    assert [pause.pid for pause in plan.pause] == [2]
    world = sched._world(memory(FRAMES), NOW)
    bar = victim_bar(sched.ready[Pid(2)], world, net=True)
    assert bar.lead_s == Tunables().hysteresis_s + Tunables().stall_tolerance_s


def test_other_policies_set_nobody_aside() -> None:
    ready = [giant(1, 450, 1.0), giant(2, 450, 2.0)]
    for name in ("fcfs", "qoe", "buffer"):
        sched = scheduler(name, ready=ready)
        for _ in range(SAMPLES):
            sched.queues.usual.note_ended(20)
        assert sched._world(memory(FRAMES), NOW).aside == {}


def test_one_that_shrinks_or_goes_is_large_no_more() -> None:
    one, two = giant(1, 450, 1.0), giant(2, 450, 2.0)
    sched = made(ready=[one, two])
    assert aside(sched) == [2]
    sched.enqueue(one, Queue.HELD)
    assert aside(sched) == []
