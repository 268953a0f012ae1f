"""`qoe`: as Andes (Liu et al. 2024). Greedy by the quality of experience gained per KV token.

A process that waits for the horizon loses what its reader then stands still, as a share of the
time of its whole answer so far; one that is served loses nothing but its prefill. Who gains most
per token of KV gets the memory.
"""

import math

from tokenix.sched import reader
from tokenix.sched.entity import Task
from tokenix.sched.policy import ranked
from tokenix.sched.world import World


def gain_per_token(task: Task, world: World) -> float:
    """Loss if it waits less loss if it is served, over the KV tokens that it takes."""
    horizon_s = world.tunables.qoe_horizon_s
    entity = task.entity
    fresh = reader.tier_of(entity) == 0 and reader.before_first_token(entity)
    buffer_s = 0.0 if fresh else max(0.0, world.owed_s(task))
    waits_s = max(0.0, horizon_s - buffer_s)
    served_s = max(0.0, world.prefill_s(task.todo_tokens) - buffer_s)
    age_s = max(0.0, world.waited_s(task))
    return max(0.0, waits_s - served_s) / (age_s + horizon_s) / max(1, task.length)


def rank_key(task: Task, world: World) -> tuple[float, ...]:
    """Greatest gain first; without any, who came first. Whoever was brought in a moment ago stays:
    the limit on how often a process is paused."""
    resident_s = world.now_s - task.entity.resident_since_s
    if task.space.active and resident_s < world.tunables.qoe_keep_s:
        return (-math.inf, task.entity.arrival_s, task.entity.pid)
    return (-gain_per_token(task, world), task.entity.arrival_s, task.entity.pid)


QOE = ranked("qoe", rank_key)
