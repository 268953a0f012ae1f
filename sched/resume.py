"""Bringing paused processes back: whole footprint and one page more, or not at all (A1)."""

import math

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import HELD_ONLY, Bar, Room, make_room


def by_owed(draft: Draft) -> list[Task]:
    """Paused processes, earliest deadline first."""
    world = draft.world
    return sorted(draft.paused(), key=lambda t: (world.owed_s(t), t.entity.pid))


def slack_s(draft: Draft, task: Task) -> float:
    """Seconds until its resume must begin; negative: it is due."""
    world = draft.world
    way_s = draft.in_queue_s + world.restore_s(task)
    return world.owed_s(task) - way_s - world.rates.step_s - world.tunables.margin_s


def resume_due(draft: Draft) -> None:
    """Those that are due, earliest deadline first, before anyone new. They may displace."""
    for task in by_owed(draft):
        if slack_s(draft, task) > 0:
            continue
        if draft.count_running() >= draft.world.tunables.max_running:
            return
        reason = f"resume of {task.entity.pid}"
        room = make_room(draft, draft.world.need(task), task, resume_bar(draft, task), reason)
        if room is Room.NOW:
            draft.do_resume(task)
        elif room is Room.NO:
            draft.pressure = True


def resume_bar(draft: Draft, task: Task) -> Bar:
    """Victims must have more lead by the hysteresis. Long overdue: more than its own (negative)
    lead is enough, so that nobody waits for ever. Batch takes streams only if no batch runs."""
    if not draft.policy.displace:
        return HELD_ONLY
    tunables = draft.world.tunables
    owed = draft.world.owed_s(task)
    patient = owed > -tunables.max_wait_targets * tunables.target_s(task.entity.qos)
    lead = (max(0.0, owed) if patient else owed) + tunables.hysteresis_s
    if reader.tier_of(task.entity) and any(reader.tier_of(other.entity) for other in draft.ready()):
        return Bar(1, -math.inf)
    return Bar(0, lead)


def resume_early(draft: Draft) -> None:
    """Ahead of time, with frames nobody else wants: not when a newcomer was refused memory."""
    world = draft.world
    reserve = int(world.tunables.early_spare * world.memory.total_frames)
    order = sorted(
        draft.paused(), key=lambda t: (reader.tier_of(t.entity), world.owed_s(t), t.entity.pid)
    )
    for task in order:
        if draft.blocked or draft.in_queue_s >= world.rates.step_s:
            return
        if draft.count_running() >= world.tunables.max_running:
            return
        need = world.need(task)
        if draft.ledger.spare < need + reserve:
            return
        if draft.ledger.available < need + task.space.idle_resident:
            return
        draft.do_resume(task)


def resume_queue(draft: Draft) -> None:
    """In the policy's order under its admission rules; the first that does not fit blocks all."""
    if draft.pause and not draft.policy.admit_after_pause:
        draft.blocked = True
        return
    world = draft.world
    for task in sorted(draft.paused(), key=lambda t: draft.policy.resume_key(t, world)):
        if not all(rule(draft, task) for rule in draft.policy.rules) or (
            make_room(draft, world.need(task), task, HELD_ONLY, f"resume of {task.entity.pid}")
            is not Room.NOW
        ):
            draft.blocked = True
            return
        draft.do_resume(task)


def resume_first(draft: Draft) -> None:
    """An idle device brings somebody back whether due or not: the earliest deadline that fits."""
    for task in by_owed(draft):
        bar = Bar(reader.tier_of(task.entity), math.inf)
        reason = f"resume of {task.entity.pid}"
        if make_room(draft, draft.world.need(task), task, bar, reason) is not Room.NO:
            if draft.ledger.available >= draft.world.need(task) + task.space.idle_resident:
                draft.do_resume(task)
            return
