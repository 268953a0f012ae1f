"""Every policy finishes every small world: nobody starves, nothing deadlocks, ledgers hold."""

import random

import pytest

from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.policies import POLICIES
from tokenix.sched.rates import Rates
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.sched.world import count_pages
from tokenix.tests.sched.fakes import Machine, SimTask, sim_task

READERS = [Reader(), Reader(tokens_per_s=40.0), Reader(ReaderKind.BATCH), Reader(ReaderKind.HIDDEN)]


def small_world(seed: int, policy: str) -> Machine:
    """A few tasks that each fit alone and hardly fit together."""
    rng = random.Random(seed)
    total = rng.randint(6, 24)
    new_input = rng.choice([0, 0, rng.randint(1, 16)])
    tasks: list[SimTask] = []
    holds = {}
    while len(tasks) < rng.randint(2, 7):
        prompt, outputs = rng.randint(1, 40), rng.randint(1, 60)
        if count_pages(prompt + outputs + new_input, 4) + 1 > total:
            continue
        task = sim_task(
            len(tasks) + 1,
            prompt,
            outputs,
            arrival_s=rng.choice([0.0, 0.0, rng.random()]),
            qos=rng.choice(list(Qos)),
            reader=rng.choice(READERS),
            nice=rng.randint(-20, 19),
        )
        tasks.append(task)
        if rng.random() < 0.2:
            holds[task.entity.pid] = (rng.randint(1, outputs), rng.random() * 5)
    sched = Scheduler(POLICIES[policy], Tunables(), Rates(0.01, 1000.0))
    return Machine(
        sched,
        tasks,
        total,
        host=rng.choice([0, total // 4, total, 4 * total, 100 * total]),
        page_s=rng.choice([1e-5, 1e-3, 0.1]),
        write_behind=rng.random() < 0.5,
        holds=holds,
        input_tokens=new_input,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_small_worlds_come_to_an_end(policy: str) -> None:
    for seed in range(400):
        machine = small_world(seed, policy)
        try:
            machine.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert not machine.sched.queues.ready
        assert machine.used() == 0
        if not POLICIES[policy].arrival_checks:
            assert not machine.refused
