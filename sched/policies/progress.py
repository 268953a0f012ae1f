"""`progress`: admit what can be served in time, pause whoever is furthest ahead of its reader."""

import math

from tokenix.sched import admission, reader, resume, room, rules
from tokenix.sched.entity import Task
from tokenix.sched.policy import Policy
from tokenix.sched.world import World


def longest_wait_s(task: Task, world: World) -> float:
    """After so long it goes before all of its tier."""
    return world.tunables.max_wait_targets * world.tunables.target_s(task.entity.qos)


def newcomer_key(task: Task, world: World) -> tuple[float, ...]:
    """Shortest first within a class and the tenants that had least; whoever waited too long before
    all of its tier."""
    entity = task.entity
    tier, qos, lag = reader.rank_of(entity)
    tier = 0 if entity.pid == world.trickle else tier
    if world.waited_s(task) > longest_wait_s(task, world):
        return (tier, -1, entity.waiting_since_s, entity.pid)
    size = task.todo_tokens / reader.weight_of(entity)
    return (tier, qos, lag, size, entity.arrival_s, entity.pid)


def newcomer_until_s(task: Task, world: World) -> float:
    """When its wait becomes too long."""
    limit_s = longest_wait_s(task, world)
    if world.waited_s(task) > limit_s:
        return math.inf
    return max(world.now_s, task.entity.waiting_since_s + limit_s)


def resume_key(task: Task, world: World) -> tuple[float, ...]:
    """Earliest deadline first."""
    return (world.owed_s(task), task.entity.pid)


def decode_key(task: Task, world: World) -> tuple[float, ...]:
    """Least lead first."""
    return (reader.tier_of(task.entity), world.lead_s(task), task.entity.pid)


def prefill_key(task: Task, world: World) -> tuple[float, ...]:
    """Streams that are computed again, then shortest remaining first; overdue ones before all."""
    entity = task.entity
    tier, qos, _ = reader.rank_of(entity)
    if not reader.before_first_token(entity):
        return (tier, 0, world.lead_s(task), entity.pid)
    patience_s = world.patience_s(task)
    if patience_s == math.inf:  # batch: it is never refused, and must not starve either
        patience_s = world.tunables.target_s(entity.qos)
    if world.waited_s(task) > world.tunables.max_wait_targets * patience_s:
        return (tier, 1, entity.waiting_since_s, entity.pid)
    size = task.todo_tokens / reader.weight_of(entity)
    return (tier, 2, qos, size, entity.arrival_s, entity.pid)


def last_resort_key(task: Task, world: World) -> tuple[float, ...]:
    """Those aside, then most lead is paused first."""
    entity = task.entity
    lead_s = math.inf if entity.pid in world.aside else world.lead_s(task)
    return (reader.tier_of(entity), lead_s, entity.pid)


PROGRESS = Policy(
    name="progress",
    phases=("refuse_late", "resume_due", "admit", "resume_early", "decode", "prefill"),
    newcomer_key=newcomer_key,
    resume_key=resume_key,
    decode_key=decode_key,
    prefill_key=prefill_key,
    last_resort_key=last_resort_key,
    newcomer_until_s=newcomer_until_s,
    rules=(rules.just_in_time, rules.within_working_set, rules.within_horizon),
    arrival_checks=(admission.check_patience, admission.check_queue),
    newcomer_bar=admission.newcomer_bar,
    resume_bar=resume.resume_bar,
    growth_bar=room.growth_bar,
    displace=True,
    patience=True,
    sets_aside=True,
    lead_chunks=True,
)
