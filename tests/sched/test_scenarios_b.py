"""Group B: priority, fairness, starvation. Each test is named after how it failed elsewhere."""

import random

import pytest

from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos
from tokenix.sched.plan import Plan
from tokenix.sched.queues import Queue
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import memory, newcomer, paused, scheduler, stream
from tokenix.tests.sched.quick import Quick, QuickTask, chat, quick_task

NOW = 100.0


def plan(sched: Scheduler, free: int = 0, total: int = 100, now_s: float = NOW) -> Plan:
    return sched.plan(memory(total, free), now_s)


def quantile(tasks: list[QuickTask], share: float) -> float:
    times = sorted(t.first_s - t.entity.arrival_s for t in tasks if t.first_s is not None)
    return times[min(len(times) - 1, int(share * len(times)))]


def test_b1_urgent_does_not_wait_while_others_fill_the_memory() -> None:
    for qos in (Qos.STREAM, Qos.BATCH, Qos.IDLE):
        ready = [stream(i, 20, 9.0, dirty=0, qos=qos) for i in range(1, 6)]
        sched = scheduler(ready=ready, waiting=[newcomer(9, 64, qos=Qos.INTERACTIVE)])
        made = plan(sched)
        assert made.admit == (9,) and len(made.pause) == 1


def test_b2_thirty_low_priority_requests_do_not_double_the_latency_of_an_urgent_one() -> None:
    def first_token_s(low: int) -> float:
        tasks = [quick_task(i, 800, 300, qos=Qos.BATCH) for i in range(2, 2 + low)]
        tasks.append(quick_task(1, 300, 50, arrival_s=1.0, qos=Qos.INTERACTIVE))
        Quick("progress", tasks, 1000, 4000).run()
        found = tasks[-1].first_s
        assert found is not None
        return found - 1.0

    assert first_token_s(30) < max(2 * first_token_s(0), 0.15)


def test_b3_pausing_for_priority_leaves_everything_in_order() -> None:
    tasks = [quick_task(i, 600, 400, qos=Qos.IDLE) for i in range(1, 21)]
    tasks += [quick_task(i, 600, 60, arrival_s=0.1 * i, qos=Qos.INTERACTIVE) for i in range(21, 41)]
    machine = Quick("progress", tasks, 600, 2400)
    done = machine.run()
    assert done.pauses > 0 and not machine.living and machine.free == machine.frames
    assert machine.slots == machine.outgoing == 0


def test_b6_the_paused_keep_their_deadline_and_come_before_newcomers() -> None:
    old = stream(1, 20, lead_s=3.0, dirty=0)
    sched = scheduler(ready=[old])
    due_s = old.entity.due_s
    sched.note_paused(old, NOW)
    sched.enqueue(old, Queue.PAUSED)
    assert old.entity.due_s == due_s and old.entity.arrival_s == 0.0
    sched.enqueue(newcomer(2, 300), Queue.WAITING)
    old.space.active = False
    made = plan(sched, 21, now_s=NOW + 2.9)
    assert made.resume == (1,) and made.admit == ()


def test_b6_who_was_paused_twice_without_a_token_is_not_paused_a_third_time() -> None:
    task = stream(1, 20, 9.0, dirty=0)
    sched = scheduler(ready=[task], waiting=[newcomer(2, 64)])
    assert plan(sched).pause
    for _ in range(2):
        sched.note_paused(task, NOW)
        sched.note_resumed(task, NOW)
    assert plan(sched).pause == ()
    sched.note_delivered(task, NOW, 1)
    assert plan(sched).pause


def test_b7_a_newcomer_that_came_before_the_plan_is_in_the_plan() -> None:
    sched = scheduler(ready=[stream(1, 100, 9.0, dirty=0)])
    assert plan(sched).pause == ()
    sched.enqueue(newcomer(2, 64), Queue.WAITING)
    made = plan(sched)
    assert made.admit == (2,) and [pause.pid for pause in made.pause] == [1]


def test_b8_who_has_ended_is_nobodys_victim() -> None:
    gone, stays = stream(1, 50, 20.0, dirty=0), stream(2, 50, 9.0, dirty=0)
    sched = scheduler(ready=[gone, stays], waiting=[newcomer(3, 64)])
    assert [pause.pid for pause in plan(sched).pause] == [1]
    sched.remove(gone)
    assert [pause.pid for pause in plan(sched).pause] == [2]
    assert Pid(1) not in sched.queues.home


def test_b10_short_prompts_do_not_wait_behind_a_long_one() -> None:
    def short_p95_s(policy: str) -> float:
        tasks = [quick_task(1, 16_000, 10, arrival_s=0.0)]
        tasks += [quick_task(i, 200, 20, arrival_s=0.01 * i) for i in range(2, 40)]
        Quick(policy, tasks, 4000, 4000).run()
        return quantile(tasks[1:], 0.95)

    assert short_p95_s("progress") < short_p95_s("fcfs") / 2
    assert short_p95_s("progress") < 0.3


def test_b11_shortest_first_has_a_hard_maximum_wait() -> None:
    """Batch is never refused: a long prompt meets a steady flow of shorter ones."""
    tasks = [quick_task(1, 6000, 10, qos=Qos.BATCH)]
    tasks += [quick_task(i, 1000, 4, arrival_s=0.052 * i, qos=Qos.BATCH) for i in range(2, 4002)]
    machine = Quick("progress", tasks, 4000, 4000)
    machine.run(until_s=200.0)
    limit_s = machine.tunables.max_wait_targets * machine.tunables.target_batch_s
    assert tasks[0].first_s is not None and tasks[0].first_s < limit_s + 10.0


@pytest.mark.parametrize("qos", [Qos.BATCH, Qos.IDLE])
def test_b12_low_classes_get_a_trickle_under_any_load_of_chat(qos: Qos) -> None:
    tasks = chat(1, 900, 14.0, qos=Qos.INTERACTIVE)
    low = [quick_task(1000 + i, 400, 100, qos=qos) for i in range(20)]
    machine = Quick("progress", [*tasks, *low], 1200, 4800)
    done = machine.run(until_s=60.0)
    assert sum(task.outputs for task in low) > 0
    assert done.stalled() == 0


def test_b14_costs_count_and_not_requests() -> None:
    """Those of one tenant cost ten times as much as those of the other."""
    rng = random.Random(2)
    tasks = []
    for pid in range(1, 1201):
        big = pid % 6 == 0
        size = (rng.randint(900, 1500), 150) if big else (rng.randint(60, 140), 20)
        name = "big" if big else "small"
        tasks.append(quick_task(pid, *size, tenant=name, qos=Qos.BATCH))
    machine = Quick("progress", tasks, 600, 2400, tunables=Tunables(share_quantum_s=0.2))
    machine.run(until_s=0.1)
    while len({t.entity.tenant for t in machine.sched.waiting.values()}) == 2:
        machine.run(until_s=machine.now_s + 0.2)
    assert 0.5 < machine.had["big"] / machine.had["small"] < 2.0
    finished = [t.entity.tenant for t in tasks if t.outputs >= t.entity.max_tokens]
    assert finished.count("small") > 5 * finished.count("big")


@pytest.mark.parametrize("promised", [{"share_batch": 0.4}, {"share_interactive": 1.1}])
def test_b16_no_more_is_promised_than_there_is(promised: dict[str, float]) -> None:
    """Guaranteed shares of the classes, and the segments' share of the frames: at boot."""
    assert sum(Tunables().share_of(qos) for qos in Qos) <= 1
    with pytest.raises(AssertionError):
        Tunables(**promised)
    with pytest.raises(AssertionError, match="max_shm_share must be"):
        Params(max_shm_share=1.0)


def test_b18_a_batch_job_of_long_prompts_does_not_touch_chat() -> None:
    def chat_p95_s(jobs: int) -> tuple[float, float]:
        talk = chat(3, 300, 6.0, qos=Qos.INTERACTIVE)
        batch = [quick_task(1000 + i, 8000, 200, qos=Qos.BATCH) for i in range(jobs)]
        done = Quick("progress", [*talk, *batch], 2000, 8000).run(until_s=60.0)
        return quantile(talk, 0.95), done.stalled()

    alone_s, _ = chat_p95_s(0)
    with_job_s, stalled = chat_p95_s(60)
    assert with_job_s < alone_s + 0.3 and stalled == 0


def test_nobody_paused_is_forgotten_when_newcomers_never_end() -> None:
    waiting = [newcomer(i, 64) for i in range(10, 40)]
    late = paused(1, 30, lead_s=-20.0)
    sched = scheduler(paused=[late], waiting=waiting, ready=[stream(9, 60, 0.4, dirty=0)])
    assert [pause.pid for pause in plan(sched).pause] == [9]
