"""Admission rules: whether a newcomer may come in now. Policies list the ones they want.

Each is one function of (draft, newcomer); what fits in memory is asked after them.
"""

import math

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.load import Horizon, Load, measure_load


def just_in_time(draft: Draft, task: Task) -> bool:
    """No frames before the step that can use them: shorter prefills fill this step already."""
    mine = (*reader.rank_of(task.entity), task.todo_tokens)
    ahead = 0
    for other in draft.runnable():
        todo = other.todo_tokens
        if todo <= 1 and other.entity.pid not in draft.admit:
            continue
        resumed = not reader.before_first_token(other.entity)
        if resumed or (*reader.rank_of(other.entity), todo) <= mine:
            ahead += todo
    return ahead < draft.world.tunables.step_tokens


def alive_limit(draft: Draft, mean_lead_s: float) -> float:
    """Pages that may be alive: the pool, and what the link can bring back within the mean lead,
    and what the host tier may hold."""
    memory, tunables = draft.world.memory, draft.world.tunables
    if not memory.swap:
        return memory.total_frames
    link = math.inf
    if memory.in_s_per_page > 0:
        link = tunables.link_share * max(1.0, mean_lead_s) / memory.in_s_per_page
    return memory.total_frames + min(link, tunables.host_paused_share * memory.host_slots)


def current_load(draft: Draft) -> Load:
    """The load, newcomers of this plan included."""
    if draft.load is None:
        draft.load = measure_load(draft.world)
        for other in draft.admit.values():
            draft.load.add(draft.world.need(other), draft.world.stream_residency(other))
    return draft.load


def within_working_set(draft: Draft, task: Task) -> bool:
    """The newcomer takes at most its share of the working set and of the pages alive."""
    load = current_load(draft)
    if draft.alone():
        return True
    world = draft.world
    claim = world.need(task) / world.tunables.newcomer_share
    resident = load.resident_pages + world.stream_residency(task) * claim
    if resident > world.eta * world.memory.total_frames:
        return False
    return load.alive_pages + claim <= alive_limit(draft, load.mean_lead_s)


def within_horizon(draft: Draft, task: Task) -> bool:
    """Everyone who must be resident before the newcomer can be paused fits beside it."""
    if draft.alone():
        return True
    world, tunables = draft.world, draft.world.tunables
    prefill_s = tunables.horizon_prefills * world.prefill_s(task.todo_tokens)
    horizon_s = prefill_s + 2 * world.rates.step_s + tunables.margin_s + tunables.hysteresis_s
    needed = world.need(task) + sum(world.need(other) for other in draft.admit.values())
    if draft.horizon is None:
        draft.horizon = measure_horizon(draft)
    return needed + draft.horizon.pages_before(horizon_s) <= world.memory.total_frames


def measure_horizon(draft: Draft) -> Horizon:
    """When each process that is alive must be resident, newcomers of this plan apart."""
    world = draft.world
    always = 0
    times: list[tuple[float, int]] = []
    for other in (*draft.ready(), *draft.loaded.values(), *draft.arriving()):
        if reader.tier_of(other.entity) == 0:
            if reader.before_first_token(other.entity):
                always += other.space.mapped
            else:
                times.append((world.lead_s(other), other.space.mapped))
    for other in (*draft.paused(), *draft.leaving(), *draft.displaced()):
        times.append((world.owed_s(other) - world.restore_s(other), world.footprint(other)))
    return Horizon.of(always, times)


def budget_left(draft: Draft, task: Task) -> bool:
    """The step has tokens left (fcfs, retract)."""
    return draft.tokens_left() > 0
