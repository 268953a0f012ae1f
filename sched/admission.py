"""Who comes in: what can never fit is refused at spawn, what cannot be served in time is told so,
and the rest enters when memory, the link and the step have room for it."""

import math
from dataclasses import dataclass

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.plan import Refuse
from tokenix.sched.room import HELD_ONLY, Bar, Room, make_room
from tokenix.sched.world import World, count_pages


def can_never_fit(
    prompt_tokens: int,
    max_tokens: int,
    page_tokens: int,
    total_frames: int,
    context_tokens: int,
) -> str | None:
    """Why a process of this size can never be served (E2BIG), or None."""
    tokens = prompt_tokens + max_tokens
    if tokens > context_tokens:
        return (
            f"{prompt_tokens} prompt + {max_tokens} output tokens exceed the context of "
            f"{context_tokens} tokens; shorten the prompt or lower max_tokens"
        )
    frames = count_pages(tokens, page_tokens) + 1
    if frames > total_frames:
        return (
            f"{prompt_tokens} prompt + {max_tokens} output tokens need {frames} KV pages, the "
            f"device has {total_frames}; shorten the prompt or lower max_tokens"
        )
    return None


# ---- in time? (EAGAIN) ----------------------------------------------------------------------


def tokens_ahead(world: World, task: Task) -> int:
    """Prefill tokens that will be computed before those of `task`: the shorter ones of its
    class and those of more urgent classes."""
    mine = (*reader.rank_of(task.entity), task.todo_tokens)
    ahead = 0
    for queue in (world.queues.waiting, world.queues.ready):
        for other in queue.values():
            if other is task or other.todo_tokens <= 1:
                continue
            if (*reader.rank_of(other.entity), other.todo_tokens) <= mine:
                ahead += other.todo_tokens
    return ahead


def check_patience(world: World, task: Task) -> Refuse | None:
    """At arrival: it would be late already, whatever happens."""
    ahead_s = world.prefill_s(tokens_ahead(world, task))
    cost_s = world.prefill_s(task.todo_tokens)
    wait_s = ahead_s + cost_s + 2 * world.rates.step_s
    patience_s = world.patience_s(task)
    if wait_s <= patience_s:
        return None
    reason = f"first token in {wait_s:.1f} s, bound {patience_s:.1f} s"
    return Refuse(task.entity.pid, max(ahead_s, world.tunables.step_floor_s), reason)


def check_queue(world: World, task: Task) -> Refuse | None:
    """At arrival: batch and idle newcomers wait in a bounded queue."""
    if reader.tier_of(task.entity) == 0:
        return None
    queued = sum(1 for t in world.queues.waiting.values() if reader.tier_of(t.entity))
    if queued < world.tunables.queue_limit:
        return None
    retry_s = max(world.prefill_s(tokens_ahead(world, task)), world.tunables.step_floor_s)
    return Refuse(task.entity.pid, retry_s, f"{queued} batch processes wait already")


def refuse_late(draft: Draft) -> None:
    """In the queue: it cannot make it any more."""
    world = draft.world
    for pid, task in world.queues.waiting.items():
        if give_up_s(world, task) < world.now_s:
            ahead_s = world.prefill_s(tokens_ahead(world, task))
            retry_s = max(ahead_s, world.tunables.step_floor_s)
            waited = f"waited {world.waited_s(task):.1f} s for memory, too late to be in time"
            draft.refuse[pid] = Refuse(pid, retry_s, waited)


def give_up_s(world: World, task: Task) -> float:
    """The time after which a newcomer can no longer be served within its patience."""
    cost_s = world.prefill_s(task.todo_tokens) + world.rates.step_s
    return task.entity.waiting_since_s + world.patience_s(task) - cost_s


# ---- who enters now? ------------------------------------------------------------------------


def admit(draft: Draft) -> None:
    """Newcomers in the policy's order until one must wait."""
    if draft.pause and not draft.policy.admit_after_pause:
        return
    if not draft.policy.displace and draft.blocked:
        return
    world = draft.world
    for task in sorted(draft.waiting(), key=lambda t: draft.policy.newcomer_key(t, world)):
        if draft.count_running() >= world.tunables.max_running:
            return
        if not all(rule(draft, task) for rule in draft.policy.rules):
            return
        need = world.need(task)
        reason = f"newcomer {task.entity.pid}"
        if make_room(draft, need, task, newcomer_bar(draft, task), reason) is not Room.NOW:
            draft.blocked = True
            return
        draft.do_admit(task)


def newcomer_bar(draft: Draft, task: Task) -> Bar:
    """Victims must keep their lead over the newcomer's whole prefill, and the link must be able
    to bring everybody back in twice the time. Batch displaces only idle, idle nobody."""
    if not draft.policy.displace:
        return HELD_ONLY
    world, tunables = draft.world, draft.world.tunables
    tier = reader.tier_of(task.entity)
    if tier and not is_trickle(world, task):
        return Bar(tier, math.inf)
    debt = sum(t.space.missing for t in (*draft.paused(), *draft.leaving()))
    link_s = draft.in_queue_s + debt * world.memory.in_s_per_page
    own_s = world.prefill_s(task.todo_tokens) + 2 * world.rates.step_s
    lead = own_s + tunables.margin_s + tunables.hysteresis_s + link_s / tunables.victim_link_share
    return Bar(0, lead)


def is_trickle(world: World, task: Task) -> bool:
    """The one batch process that has waited too long while no batch is alive: B12's minimum."""
    if reader.tier_of(task.entity) == 0:
        return False
    queues = world.queues
    for queue in (queues.ready, queues.paused, queues.moving):
        if any(reader.tier_of(t.entity) for t in queue.values()):
            return False
    batch = [t for t in queues.waiting.values() if reader.tier_of(t.entity)]
    oldest = min(batch, key=lambda t: (t.entity.waiting_since_s, t.entity.pid))
    limit = world.tunables.max_wait_targets * world.tunables.target_s(task.entity.qos)
    return task is oldest and world.waited_s(task) > limit


# ---- the rules of `progress` ----------------------------------------------------------------


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


@dataclass(slots=True)
class Load:
    """Pages of the living, for the working-set test."""

    resident_pages: float
    """Pages that must be resident, each process by its share of time."""
    alive_pages: int
    mean_lead_s: float


def measure_load(draft: Draft) -> Load:
    """Over all that run, are paused or move, newcomers of this plan included. A stopped process
    counts as long as its reader has something to read: after that it does not come back by
    itself."""
    world, queues = draft.world, draft.world.queues
    living = [t for q in (queues.ready, queues.paused, queues.moving) for t in q.values()]
    living += [t for t in queues.held.values() if math.isfinite(world.lead_s(t))]
    living = [t for t in living if t.entity.pid not in queues.held or world.lead_s(t) > 0]
    resident = sum(world.footprint(t) * world.residency(t) for t in living)
    alive = sum(world.footprint(t) for t in living)
    for task in draft.admit.values():
        resident += world.stream_residency(task) * world.need(task)
        alive += world.need(task)
    leads = [
        max(0.0, world.lead_s(t))
        for t in living
        if reader.tier_of(t.entity) == 0 and not reader.before_first_token(t.entity)
    ]
    return Load(resident, alive, sum(leads) / len(leads) if leads else 0.0)


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


def within_working_set(draft: Draft, task: Task) -> bool:
    """The newcomer takes at most its share of the working set and of the pages alive."""
    load = measure_load(draft)
    draft.working_set_pages = load.resident_pages
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
    occupied = world.need(task)
    for other in (*draft.runnable(), *draft.arriving()):
        if other.entity.pid in draft.admit:
            occupied += world.need(other)
        elif reader.tier_of(other.entity) == 0 and (
            reader.before_first_token(other.entity) or world.lead_s(other) < horizon_s
        ):
            occupied += other.space.mapped
    for other in (*draft.paused(), *draft.leaving()):
        if world.owed_s(other) - world.restore_s(other) < horizon_s:
            occupied += world.footprint(other)
    return occupied <= world.memory.total_frames


def budget_left(draft: Draft, task: Task) -> bool:
    """The step has tokens left (fcfs, retract)."""
    return draft.tokens_left() > 0
