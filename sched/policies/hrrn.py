"""`hrrn`: highest response ratio next. Newcomers by (waited + cost) / cost, so that short ones go
first and long ones do not starve; otherwise as `fcfs`."""

import dataclasses

from tokenix.sched.entity import Task
from tokenix.sched.policies.fcfs import FCFS
from tokenix.sched.world import World


def ratio_key(task: Task, world: World) -> tuple[float, ...]:
    """Greatest response ratio first."""
    cost_s = world.prefill_s(task.todo_tokens) + world.rates.step_s
    waited_s = max(0.0, world.waited_s(task))
    return (-(waited_s + cost_s) / cost_s, task.entity.arrival_s, task.entity.pid)


def always(task: Task, world: World) -> float:
    """Ratios grow at different speeds: every plan asks again."""
    return world.now_s


HRRN = dataclasses.replace(
    FCFS, name="hrrn", newcomer_key=ratio_key, newcomer_until_s=always, resume_key=ratio_key
)
