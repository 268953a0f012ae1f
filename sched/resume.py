"""Bringing paused processes back: whole footprint and one page more, or not at all (A1)."""

import math
from collections.abc import Iterator

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import Bar, Room, make_room


def slack_s(draft: Draft, task: Task) -> float:
    """Seconds until its resume must begin; negative: it is due."""
    world = draft.world
    way_s = draft.in_queue_s + world.restore_s(task)
    return world.owed_s(task) - way_s - world.rates.step_s - world.tunables.margin_s


def is_due(draft: Draft, task: Task, owed_s: float) -> bool:
    """Whether its resume must begin. The pages it misses are asked for only if they matter."""
    world = draft.world
    worst_s = world.prefill_s(max(0, task.todo_tokens - 1))
    worst_s += world.longest_copies_s(task.space.mapped)
    return owed_s <= worst_s + reserve_s(draft) and slack_s(draft, task) <= 0


def resume_due(draft: Draft) -> None:
    """Those that are due, earliest deadline first, before anyone new. They may displace."""
    world, policy = draft.world, draft.policy
    longest_s = world.queues.dueline.longest_restore_s(world)
    for owed_s, task in draft.owed():
        if task.entity.pid in world.aside:
            continue
        if policy.due_lead_s is not None:
            if owed_s > policy.due_lead_s(world):
                return
        elif owed_s > longest_s + reserve_s(draft):
            return  # nor are the later ones due
        elif not is_due(draft, task, owed_s):
            continue
        if draft.do_fetch(task):
            continue
        if not draft.keep_ceiling(task):
            continue
        if draft.count_running() >= world.tunables.max_running:
            return
        reason = f"resume of {task.entity.pid}"
        room = make_room(draft, world.need(task), task, policy.resume_bar, reason)
        if room is Room.NOW:
            draft.do_resume(task)
        elif room is Room.NO:
            draft.pressure = True


def reserve_s(draft: Draft) -> float:
    """Lead below which a resume that takes no time is due."""
    rounding_s = 1e-9
    return draft.in_queue_s + draft.world.rates.step_s + draft.world.tunables.margin_s + rounding_s


def resume_bar(draft: Draft, task: Task) -> Bar:
    """Victims must have more lead by the hysteresis. Long overdue: more than its own (negative)
    lead is enough, so that nobody waits for ever. Batch takes streams only if no batch runs."""
    tunables = draft.world.tunables
    owed = draft.world.owed_s(task)
    patient = owed > -tunables.max_wait_targets * tunables.target_s(task.entity.qos)
    lead = (max(0.0, owed) if patient else owed) + tunables.hysteresis_s
    if reader.tier_of(task.entity) and draft.unread_runs():
        return Bar(1, -math.inf)
    return Bar(0, lead)


def resume_early(draft: Draft) -> None:
    """Ahead of time, with frames nobody else wants: not when a newcomer was refused memory. Idle
    pages of those that are due later are such frames, for a reader."""
    world = draft.world
    reserve = int(world.tunables.early_spare * world.memory.total_frames)
    for task in _early_order(draft):
        if draft.blocked or draft.in_queue_s >= world.rates.step_s:
            return
        if task.space.deep and world.memory.fetch_queue_s == 0.0 and not draft.fetch:
            draft.do_fetch(task)
        if task.space.deep or not draft.keep_ceiling(task):
            continue  # its time comes
        if draft.count_running() >= world.tunables.max_running:
            return
        need, mine = world.need(task), task.space.idle_resident
        if draft.ledger.available < need + mine + reserve:
            return
        if reader.tier_of(task.entity) and draft.ledger.spare < need + reserve:
            return
        draft.do_resume(task)


def _early_order(draft: Draft) -> Iterator[Task]:
    """Those with readers first, earliest deadline first; those aside at last."""
    aside = draft.world.aside
    for tier in range(reader.TIERS):
        for _, task in draft.owed((tier,)):
            if task.entity.pid not in aside:
                yield task
    for _, task in draft.owed():
        if task.entity.pid in aside:
            yield task


def resume_queue(draft: Draft) -> None:
    """In the policy's order under its admission rules; the first that does not fit blocks all."""
    if draft.pause and not draft.policy.admit_after_pause:
        draft.blocked = True
        return
    world = draft.world
    for task in sorted(draft.paused(), key=lambda t: draft.policy.resume_key(t, world)):
        if draft.do_fetch(task):
            return
        if not draft.keep_ceiling(task):
            continue
        if not all(rule(draft, task) for rule in draft.policy.rules) or (
            make_room(draft, world.need(task), task, None, f"resume of {task.entity.pid}")
            is not Room.NOW
        ):
            draft.blocked = True
            return
        draft.do_resume(task)


def resume_first(draft: Draft) -> None:
    """An idle device brings somebody back whether due or not: the earliest deadline that fits."""
    deep = None
    for _, task in draft.owed():
        if task.space.deep:
            deep = deep or task
            continue
        if not draft.keep_ceiling(task):
            continue
        reason = f"resume of {task.entity.pid}"
        if make_room(draft, draft.world.need(task), task, _idle_bar, reason) is not Room.NO:
            if draft.ledger.available >= draft.world.need(task) + task.space.idle_resident:
                draft.do_resume(task)
            return
    if deep is not None:
        draft.do_fetch(deep)


def _idle_bar(draft: Draft, task: Task) -> Bar:
    """Classes below its own yield to it."""
    return Bar(reader.tier_of(task.entity), math.inf)
