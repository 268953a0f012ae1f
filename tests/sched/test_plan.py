"""Properties of every plan, whatever the world: promises are covered, victims are sound, the
planner only looks, and the same world gives the same plan."""

import copy
import random
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.plan import PauseMode, Plan
from tokenix.sched.policies import POLICIES
from tokenix.sched.queues import Queue
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.view import MemoryView
from tokenix.sched.world import World, count_pages
from tokenix.tests.sched.fakes import (
    PAGE,
    FakeTask,
    memory,
    newcomer,
    paused,
    prefilling,
    scheduler,
    stream,
)

NOW = 100.0
READERS = [Reader(), Reader(ReaderKind.MEASURED, 5.0), Reader(ReaderKind.BATCH)]


def random_world(seed: int, policy: str) -> tuple[Scheduler, MemoryView]:
    """Some of everything, with frames that add up."""
    rng = random.Random(seed)
    sched = scheduler(policy)
    used = idle_total = 0
    for pid in range(1, rng.randint(2, 16)):
        fields: dict[str, Any] = {"qos": rng.choice(list(Qos)), "reader": rng.choice(READERS)}
        pages, lead = rng.randint(1, 12), rng.uniform(-6, 12)
        kind = rng.choice(["waiting", "prefill", "ready", "ready", "held", "paused", "moving"])
        if kind == "waiting":
            task = newcomer(pid, rng.randint(1, 16 * pages), rng.uniform(90, 100), **fields)
        elif kind == "prefill":
            task = prefilling(pid, 16 * pages, rng.randint(0, 16 * pages - 2), **fields)
        elif kind == "paused":
            idle = rng.randint(0, pages)
            task = paused(pid, pages, idle, lead, **fields)
            idle_total += idle
        else:
            dirty = rng.randint(0, pages)
            full = rng.random() < 0.5
            task = stream(pid, pages, lead, dirty=dirty, full=full, **fields)
        task.entity.leader = rng.random() < 0.2
        used += task.space.mapped - task.space.missing - task.space.idle_resident
        sched.enqueue(task, Queue("ready" if kind == "prefill" else kind))
    free, extra, outgoing = rng.randint(0, 12), rng.randint(0, 6), rng.choice([0, 0, 3])
    free = max(free, 14 - used - idle_total)  # each fits alone
    view = memory(
        used + free + idle_total + extra + outgoing,
        free,
        cached_frames=idle_total + extra,
        outgoing_frames=outgoing,
        host_free_slots=rng.choice([0, 10, 1000]),
        in_s_per_page=rng.choice([0.0, 1e-4, 0.05]),
        swap=rng.random() < 0.8,
    )
    return sched, view


def new_task(sched: Scheduler, pid: int) -> FakeTask:
    for queue in Queue:
        for known, task in sched.queues.of(queue).items():
            if known == pid:
                assert isinstance(task, FakeTask)
                return task
    raise AssertionError(pid)


def frames_promised(sched: Scheduler, made: Plan) -> int:
    """Frames the plan takes, counted without the planner's own ledger."""
    taken = 0
    for pid in (*made.admit, *made.resume):
        task = new_task(sched, pid)
        resident = task.space.mapped - task.space.missing
        whole = max(count_pages(task.length, PAGE) + 1, task.space.mapped)
        taken += whole - resident + task.space.idle_resident
    for run in made.run:
        task = new_task(sched, run.pid)
        if run.pid not in made.admit and run.pid not in made.resume:
            after = count_pages(task.space.computed + run.tokens, PAGE)
            taken += max(0, after - task.space.mapped)
    return taken


def frames_gained(sched: Scheduler, view: MemoryView, made: Plan) -> tuple[int, int]:
    """(at once, after copies) by the pauses of the plan."""
    now = later = 0
    host = view.host_free_slots if view.swap else 0
    for pause in made.pause:
        space = new_task(sched, pause.pid).space
        clean = space.exclusive - space.exclusive_dirty
        copied = min(space.exclusive_dirty, max(0, host - clean))
        copied = copied if pause.mode is PauseMode.SWAP else 0
        host = max(0, host - clean - copied)
        now += space.exclusive - copied
        later += copied
    return now, later


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_plans_are_sound(policy: str, seed: int) -> None:
    sched, view = random_world(seed, policy)
    before = copy.deepcopy(sched)
    made = sched.plan(view, NOW)
    # The planner only looks.
    for queue in Queue:
        old, new = before.queues.of(queue), sched.queues.of(queue)
        assert list(old) == list(new)
        assert [astuple(t.entity) for t in old.values()] == [
            astuple(t.entity) for t in new.values()
        ]
    assert sched.plan(view, NOW) == made
    # Promises are covered.
    now, later = frames_gained(sched, view, made)
    assert frames_promised(sched, made) <= view.free_frames + view.cached_frames + now
    # Names are where they must be, once.
    pids = [*(p.pid for p in made.pause), *made.resume, *made.admit, *(r.pid for r in made.refuse)]
    assert len(pids) == len(dict.fromkeys(pids))
    assert all(p.pid in sched.ready or p.pid in sched.held for p in made.pause)
    assert all(pid in sched.paused for pid in made.resume)
    assert all(pid in sched.waiting for pid in made.admit)
    runs = [run.pid for run in made.run]
    gone = [p.pid for p in made.pause]
    assert len(runs) == len(dict.fromkeys(runs)) and not [pid for pid in runs if pid in gone]
    for run in made.run:
        assert run.pid in sched.ready or run.pid in made.admit or run.pid in made.resume
        assert 1 <= run.tokens <= new_task(sched, run.pid).todo_tokens
    assert sum(run.tokens for run in made.run) <= max(sched.tunables.step_tokens, 64 + len(runs))
    # Victims are sound.
    for pause in made.pause:
        victim = new_task(sched, pause.pid)
        blocked = pause.reason == "all are blocked"
        itself = pause.reason == f"last resort for {pause.pid}"
        assert victim.space.exclusive > 0 or blocked or itself
        if victim.entity.leader and pause.pid in sched.ready and policy == "progress":
            assert pause.reason.startswith("last resort") or blocked
    if not view.swap:
        assert all(p.mode is PauseMode.RECOMPUTE for p in made.pause)
    # Something runs, or something will change.
    if sched.ready or sched.waiting or sched.paused:
        coming = sched.moving or view.outgoing_frames or later
        assert made.run or made.resume or made.wake_s is not None or coming


@pytest.mark.parametrize("policy", POLICIES)
def test_keys_end_with_the_pid_and_tell_all_apart(policy: str) -> None:
    sched, view = random_world(7, policy)
    world = World(sched.queues, view, NOW, sched.tunables, sched.rates, 1.0, 0.7)
    tasks = [stream(i) for i in range(1, 5)] + [newcomer(i) for i in range(5, 9)]
    keys = sched.policy
    for key in (
        keys.newcomer_key,
        keys.resume_key,
        keys.decode_key,
        keys.prefill_key,
        keys.last_resort_key,
    ):
        for task in tasks:
            assert key(task, world)[-1] == task.entity.pid
            assert key(task, world) == key(copy.deepcopy(task), world)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_of_queues_does_not_matter_to_progress(policy: str) -> None:
    if policy != "progress":
        return
    for seed in range(200):
        sched, view = random_world(seed, policy)
        turned = scheduler(policy)
        for queue in Queue:
            for task in reversed(list(sched.queues.of(queue).values())):
                turned.enqueue(task, queue)
        one, other = sched.plan(view, NOW), turned.plan(view, NOW)
        assert (one.pause, one.resume, one.admit) == (other.pause, other.resume, other.admit)
        assert sorted(one.run, key=lambda r: r.pid) == sorted(other.run, key=lambda r: r.pid)
