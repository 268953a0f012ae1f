"""Who is refused, who waits and who enters: the rules of `progress`, one table or story each."""

import dataclasses

import pytest

from tokenix.mm.ids import Pid
from tokenix.sched.admission import can_never_fit
from tokenix.sched.entity import Qos, Reader
from tokenix.sched.plan import Plan
from tokenix.sched.queues import Queue
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import (
    FakeTask,
    memory,
    newcomer,
    paused,
    prefilling,
    scheduler,
    stream,
)

NOW = 100.0


def plan(sched: Scheduler, free: int = 0, total: int = 100, **fields: object) -> Plan:
    return sched.plan(memory(total, free, **fields), NOW)


# ---- E2BIG ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "frames", "context", "fits"),
    [
        (16 * 9 - 1, 10, 1000, True),
        (16 * 9, 10, 1000, True),
        (16 * 9 + 1, 10, 1000, False),
        (16 * 9, 9, 1000, False),
        (999, 1000, 1000, True),
        (1000, 1000, 1000, True),
        (1001, 1000, 1000, False),
    ],
)
def test_what_can_never_fit(tokens: int, frames: int, context: int, fits: bool) -> None:
    for prompt in (1, tokens // 2, tokens - 1):
        reason = can_never_fit(prompt, tokens - prompt, 16, frames, context)
        assert (reason is None) == fits
        assert reason is None or ("shorten" in reason and str(prompt) in reason)


@pytest.mark.parametrize("policy", ["progress", "fcfs", "retract"])
def test_exactly_the_pool_is_admitted_when_alone(policy: str) -> None:
    sched = scheduler(policy, waiting=[newcomer(1, 16 * 99)])
    assert plan(sched, free=99).admit == ()
    assert plan(sched, free=100).admit == (1,)


# ---- EAGAIN ---------------------------------------------------------------------------------


def check(sched: Scheduler, task: FakeTask) -> bool:
    return sched.check_arrival(task, memory(), NOW) is not None


def test_refused_at_arrival_if_late_already() -> None:
    sched = scheduler(waiting=[newcomer(i, 2000) for i in range(1, 6)])
    assert check(sched, newcomer(9, 2000)), "10,000 tokens ahead at 10,000/s are more than 1 s"
    refusal = sched.check_arrival(newcomer(9, 2000), memory(), NOW)
    assert refusal is not None and refusal.retry_after_s == pytest.approx(1.0)
    assert not check(sched, newcomer(9, 1000)), "shortest first: nobody is ahead of it"


def test_prefills_in_progress_are_ahead_with_what_is_left() -> None:
    for done, refused in ((0, True), (9_000, False)):
        sched = scheduler(ready=[prefilling(1, 12_000, done)])
        assert check(sched, newcomer(9, 13_000 if not refused else 12_500)) is False
        sched = scheduler(ready=[prefilling(i, 12_000, done) for i in (1, 2)])
        assert check(sched, newcomer(9, 12_500)) is refused


def test_a_long_prompt_may_take_twice_what_it_takes_alone() -> None:
    assert not check(scheduler(), newcomer(1, 500_000))


def test_an_idle_slow_device_refuses_nobody() -> None:
    sched = scheduler()
    sched.rates.step_s, sched.rates.prefill_tokens_per_s = 3.0, 20.0
    assert not check(sched, newcomer(1, 10))


def test_batch_is_refused_by_the_length_of_the_queue_only() -> None:
    sched = scheduler(waiting=[newcomer(i, 50_000, qos=Qos.BATCH) for i in range(1, 5)])
    assert not check(sched, newcomer(9, 50_000, qos=Qos.BATCH))
    sched.tunables = dataclasses.replace(sched.tunables, queue_limit=4)
    assert check(sched, newcomer(9, 50_000, qos=Qos.BATCH))
    assert not check(scheduler("fcfs", waiting=list(sched.waiting.values())), newcomer(9))  # type: ignore[arg-type]


def test_batch_waits_behind_chat_and_not_the_other_way() -> None:
    sched = scheduler(waiting=[newcomer(i, 2000, qos=Qos.BATCH) for i in range(1, 60)])
    assert not check(sched, newcomer(99, 2000))


def test_in_the_queue_refused_when_it_cannot_make_it_any_more() -> None:
    waiting = [
        newcomer(1, 1000, 99.2),
        newcomer(2, 1000, 99.0),
        newcomer(3, 64, 90.0, qos=Qos.BATCH),
    ]
    sched = scheduler(waiting=waiting, ready=[stream(9)])
    made = plan(sched)
    assert [r.pid for r in made.refuse] == [2]
    assert made.refuse[0].retry_after_s > 0
    for gone in (waiting[1], sched.ready[Pid(9)]):
        sched.remove(gone)
    made = plan(sched)
    assert made.wake_s == pytest.approx(99.2 + 1.0 - 0.1 - 0.01), "when the next one gives up"


def test_fcfs_and_retract_never_refuse() -> None:
    for policy in ("fcfs", "retract"):
        sched = scheduler(policy, waiting=[newcomer(1, 1000, 1.0)], ready=[stream(9)])
        assert plan(sched).refuse == ()
        assert not check(sched, newcomer(2, 100_000))


# ---- order ----------------------------------------------------------------------------------


def admitted(waiting: list[FakeTask], tunables: Tunables | None = None) -> list[int]:
    sched = scheduler(waiting=waiting)
    sched.tunables = tunables or sched.tunables
    return list(plan(sched, free=5000, total=5000).admit)


def test_shortest_first_then_arrival_then_pid() -> None:
    waiting = [
        newcomer(1, 300),
        newcomer(2, 200, 99.9),
        newcomer(3, 200, 99.8),
        newcomer(4, 200, 99.8),
    ]
    assert admitted(waiting) == [3, 4, 2, 1]


def test_classes_come_in_order_and_nice_shifts_size() -> None:
    waiting = [
        newcomer(1, 10, qos=Qos.IDLE),
        newcomer(2, 20, qos=Qos.BATCH),
        newcomer(3, 30),
        newcomer(4, 40, nice=-20),
        newcomer(5, 50, qos=Qos.INTERACTIVE),
    ]
    assert admitted(waiting) == [5, 4, 3, 2, 1]


def test_a_hard_maximum_wait_beats_shortest_first() -> None:
    long = newcomer(1, 60_000, 94.0)
    assert admitted([newcomer(2, 64), long]) == [1, 2]
    assert admitted([newcomer(2, 64), newcomer(1, 60_000, 96.0)]) == [2, 1]


def test_batch_enters_only_when_no_reader_was_refused_memory() -> None:
    waiting = [newcomer(1, 16 * 50), newcomer(2, 16, qos=Qos.BATCH)]
    sched = scheduler(waiting=waiting, ready=[stream(9, pages=60, lead_s=0.0)])
    assert plan(sched, free=40).admit == ()
    sched.remove(waiting[0])
    assert plan(sched, free=40).admit == (2,)


def test_batch_trickles_in_one_at_a_time_whatever_the_load() -> None:
    old = [newcomer(i, 64, 0.0, qos=Qos.BATCH) for i in (1, 2)]
    chat = [newcomer(i, 4000) for i in range(10, 20)]
    sched = scheduler(waiting=[*old, *chat])
    for task in old:
        task.entity.waiting_since_s = -100.0
    made = plan(sched, free=1000, total=1000)
    assert made.admit[0] == 1 and 2 not in made.admit


# ---- memory and time ------------------------------------------------------------------------


def test_no_frames_before_the_step_that_can_use_them() -> None:
    waiting = [newcomer(i, 1500) for i in (1, 2, 3)]
    assert plan(scheduler(waiting=waiting), 1000, 1000).admit == (1, 2)
    sched = scheduler(
        waiting=[newcomer(1, 1500), newcomer(2, 64)], ready=[prefilling(9, 3000, 500)]
    )
    assert plan(sched, 1000, 1000).admit == (2, 1), "a longer prefill is not ahead of it"
    sched = scheduler(waiting=[newcomer(1, 3000)], ready=[prefilling(9, 3000, 500)])
    assert plan(sched, 1000, 1000).admit == ()


def test_a_newcomer_takes_half_of_the_working_set_that_is_left() -> None:
    # D = 100/s, readers take 10/s: a stream of 600 pages counts 0.115 * 600 = 69 pages
    for pages, enters in ((125, True), (140, False)):
        ready = [stream(9, pages=600, lead_s=30.0), prefilling(8, 16 * 59)]
        sched = scheduler(waiting=[newcomer(1, 16 * pages)], ready=ready)
        sched.controllers.eta = 0.16
        assert bool(plan(sched, 400, 1000, in_s_per_page=0.0).admit) is enters


def test_whoever_fits_beside_all_enters_while_nobody_is_paused() -> None:
    # readers as fast as the device: the working set is everybody, and half of what is left is 100
    for pages, others, enters in ((198, [], True), (199, [], False), (150, [paused(2, 1)], False)):
        fast = Reader(tokens_per_s=200.0)
        ready = [stream(9, pages=800, lead_s=0.5, reader=fast)]
        new = newcomer(1, 16 * pages, reader=fast)
        sched = scheduler(waiting=[new], ready=ready, paused=others)
        assert (1 in plan(sched, 200, 1000).admit) is enters


def test_pages_alive_are_bounded_by_link_and_host_and_compute() -> None:
    for host, tp, again, enters in (
        (2000, 1e-5, 0.2, True),
        (2000, 1.0, 0.2, False),
        (3, 1e-5, 0.0, False),
        (3, 1e-5, 0.2, True),  # two pages too many are 32 tokens
        (3, 1e-5, 1e-4, False),
    ):
        others = [paused(i, pages=45, idle=45, lead_s=9.0) for i in range(2, 4)]
        sched = scheduler(waiting=[newcomer(1, 16)], ready=[stream(9)], paused=others)
        sched.tunables = dataclasses.replace(sched.tunables, recompute_share=again)
        made = plan(sched, cached_frames=90, host_slots=host, in_s_per_page=tp, in_queue_s=1.0)
        assert bool(made.admit) is enters


def test_everyone_due_within_its_prefill_fits_beside_it() -> None:
    for lead, enters in ((9.0, True), (1.0, False)):
        sched = scheduler(waiting=[newcomer(1, 16 * 40)], paused=[paused(2, 60, lead_s=lead)])
        assert (1 in plan(sched, 100, in_queue_s=1.0).admit) is enters


def test_one_process_always_runs() -> None:
    sched = scheduler(waiting=[newcomer(1, 16 * 90)])
    sched.controllers.eta = 0.5
    assert plan(sched, 100, host_slots=0, swap=False).admit == (1,)


def test_victims_keep_lead_over_the_whole_prefill() -> None:
    for prompt, lead, enters in ((160, 2.0, True), (1600, 1.4, False), (160, 1.3, False)):
        sched = scheduler(waiting=[newcomer(1, prompt)], ready=[stream(9, 200, lead, dirty=0)])
        assert bool(plan(sched, 0, 400).admit) is enters


def test_link_debt_doubles_what_victims_must_have() -> None:
    for missing, enters in ((0, True), (2000, False)):
        others = [paused(2, pages=missing, lead_s=30.0)] if missing else []
        sched = scheduler(
            waiting=[newcomer(1, 64)], ready=[stream(9, 50, 1.5, dirty=0)], paused=others
        )
        assert bool(plan(sched, 0, 5000, in_s_per_page=1e-3 if missing else 0.0).admit) is enters


def test_batch_displaces_nobody_but_idle() -> None:
    for qos, enters in ((Qos.STREAM, False), (Qos.BATCH, False), (Qos.IDLE, True)):
        sched = scheduler(
            waiting=[newcomer(1, 64, qos=Qos.BATCH)], ready=[stream(9, 50, 1e3, dirty=0, qos=qos)]
        )
        assert bool(plan(sched).admit) is enters


def test_running_sequences_are_bounded() -> None:
    sched = scheduler(waiting=[newcomer(1, 64)], ready=[stream(i, 1, 30.0) for i in range(2, 6)])
    sched.tunables = dataclasses.replace(sched.tunables, max_running=4)
    assert plan(sched, 500, 1000).admit == ()
    sched.enqueue(sched.ready[Pid(5)], Queue.HELD)
    assert plan(sched, 500, 1000).admit == (1,)
