"""The books that make plans quick say what counting everybody would say, whatever has happened."""

import copy
import random
from dataclasses import replace

import pytest
from msgspec import structs

from tokenix.mm.ids import Pid
from tokenix.sched.plan import Plan
from tokenix.sched.policies import POLICIES
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.sums import BLOCK, SortedSums
from tokenix.sched.view import MemoryView
from tokenix.tests.sched.fakes import Machine
from tokenix.tests.sched.test_liveness import small_world


def test_sorted_sums_are_sums_over_a_sorted_list() -> None:
    rng = random.Random(1)
    sums: SortedSums[tuple[int, int]] = SortedSums()
    plain: dict[tuple[int, int], int] = {}
    for step in range(20 * BLOCK):
        if plain and rng.random() < (0.3 if step < 10 * BLOCK else 0.7):
            key = rng.choice(list(plain))
            del plain[key]
            sums.remove(key)
        else:
            key = (rng.randint(0, 300), step)
            plain[key] = rng.randint(-5, 50)
            sums.add(key, plain[key])
        if step % 50 == 0:
            assert list(sums) == sorted(plain) and len(sums) == len(plain)
            bound = (rng.randint(-1, 301), 0)
            assert sums.below(bound) == sum(w for k, w in plain.items() if k < bound)
            assert list(sums.iter_from(bound)) == sorted(k for k in plain if k >= bound)


def ordered(plan: Plan) -> Plan:
    """Without the order of the decodes, which remembers who came first."""
    return replace(plan, decodes=tuple(sorted(plan.decodes)))


def watch(machine: Machine) -> list[int]:
    """Every plan of `machine` is compared with one from books that are made anew."""
    sched, compared = machine.sched, [0]
    decide = sched.plan

    def plan(memory: MemoryView, now_s: float) -> Plan:
        anew = copy.deepcopy(sched.queues)
        made = decide(memory, now_s)
        fresh = Scheduler(sched.policy, sched.tunables, sched.rates)
        fresh.controllers = copy.deepcopy(sched.controllers)
        fresh.queues = anew
        unknown = fresh.plan(structs.replace(memory, upsets=None), now_s)
        assert ordered(made) == ordered(unknown)
        compared[0] += 1
        return made

    sched.plan = plan  # type: ignore[method-assign]
    return compared


@pytest.mark.parametrize("policy", POLICIES)
def test_plans_from_books_are_plans_from_scratch(policy: str) -> None:
    compared = 0
    for seed in range(1000, 1030):
        machine = small_world(seed, policy)
        count = watch(machine)
        machine.finish()
        compared += count[0]
    assert compared > 300


def test_nothing_is_left_in_the_books_when_all_are_gone() -> None:
    for seed in range(2000, 2040):
        machine = small_world(seed, "progress")
        machine.finish()
        queues = machine.sched.queues
        machine.sched.plan(machine.view(), machine.now_s)
        assert queues.tally.alive_pages == 0 and not queues.tally.paces and not queues.tally.shares
        assert queues.dueline.mapped == queues.dueline.idle == queues.dueline.streams == 0
        assert not queues.waitlist.order and not queues.runlist.pids and not queues.home
        assert queues.waitlist.count_tokens_ahead((9, 9), 1 << 40) == 0


def test_a_task_that_is_put_twice_or_never_was_there_does_no_harm() -> None:
    machine = small_world(1, "progress")
    task = machine.tasks[0]
    machine.sched.remove(task)
    machine.sched.note_changed(task)
    assert Pid(1) not in machine.sched.queues.home
