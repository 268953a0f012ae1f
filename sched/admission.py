"""Who comes in: what can never fit is refused at spawn, what cannot be served in time is told so,
and the rest enters when memory, the link and the step have room for it."""

import math

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.plan import Refuse
from tokenix.sched.room import Bar, Room, make_room
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
    asked = f"{prompt_tokens} prompt + {max_tokens} output tokens"
    frames = count_pages(tokens, page_tokens) + 1
    if frames > total_frames:
        return (
            f"{asked} need {frames} KV pages (one to spare), the device has {total_frames}; "
            "shorten the prompt, lower max_tokens, or give the device more pages"
        )
    if tokens > context_tokens:
        return (
            f"{asked} exceed the context of {context_tokens} tokens; shorten the prompt or lower "
            "max_tokens"
        )
    return None


# ---- in time? (EAGAIN) ----------------------------------------------------------------------


def tokens_ahead(world: World, task: Task) -> int:
    """Prefill tokens that will be computed before those of `task`: the shorter ones of its
    class and those of more urgent classes."""
    rank, todo = reader.rank_of(task.entity), task.todo_tokens
    ahead = world.queues.waitlist.count_tokens_ahead(rank, todo)
    if task.entity.pid in world.queues.waiting and todo > 1:
        ahead -= todo
    for other in world.queues.runlist.others.values():
        left = other.todo_tokens
        if other is not task and left > 1 and (reader.rank_of(other.entity), left) <= (rank, todo):
            ahead += left
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
    """At arrival: the queue is bounded; batch and idle newcomers wait in it without end."""
    queued = len(world.queues.waiting)
    if queued < world.tunables.queue_limit:
        return None
    retry_s = max(world.prefill_s(tokens_ahead(world, task)), world.tunables.step_floor_s)
    return Refuse(task.entity.pid, retry_s, f"{queued} processes wait already")


def check_backlog(world: World, task: Task) -> Refuse | None:
    """At arrival: more work is queued than the bound, whoever it is for (`fcfs+reject`)."""
    tokens = world.queues.waitlist.count_tokens() + world.queues.dueline.todo_tokens
    backlog_s = world.prefill_s(tokens)
    bound_s = world.tunables.reject_bound_s
    if backlog_s <= bound_s:
        return None
    reason = f"{backlog_s:.1f} s of prefill are queued, bound {bound_s:.1f} s"
    return Refuse(task.entity.pid, backlog_s - bound_s, reason)


def refuse_late(draft: Draft) -> None:
    """In the queue: it cannot make it any more."""
    world = draft.world
    waiting = world.queues.waiting
    pids = world.queues.waitlist.peek_impatient(world.now_s, world.rates.step_s)
    late = [waiting[pid] for pid in pids if give_up_s(world, waiting[pid]) < world.now_s]
    if not late:
        return
    late.sort(key=lambda task: task.entity.pid)
    backlog_s = world.prefill_s(tokens_ahead(world, late[0]))
    retry_s = max(backlog_s, world.tunables.step_floor_s)
    for task in late:
        reason = f"waited {world.waited_s(task):.1f} s, too late to be in time"
        draft.refuse[task.entity.pid] = Refuse(task.entity.pid, retry_s, reason)


def give_up_s(world: World, task: Task) -> float:
    """The time after which a newcomer can no longer be served within its patience; never for a
    fork that continues what was already seen."""
    if task.entity.delivered_tokens:
        return math.inf
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
    for task in draft.newcomers():
        if draft.count_running() >= world.tunables.max_running:
            return
        if not draft.keep_ceiling(task):
            continue
        if not all(rule(draft, task) for rule in draft.policy.rules):
            return
        need = world.need(task)
        reason = f"newcomer {task.entity.pid}"
        if make_room(draft, need, task, draft.policy.newcomer_bar, reason) is not Room.NOW:
            draft.blocked = True
            return
        draft.do_admit(task)


def newcomer_bar(draft: Draft, task: Task) -> Bar:
    """Victims must keep their lead over the newcomer's whole prefill, and the link must be able
    to bring everybody back in twice the time: all their pages, for whoever is paused has lost
    them when a victim is needed. Batch displaces only idle, idle nobody."""
    world, tunables = draft.world, draft.world.tunables
    tier = reader.rank_of(task.entity)[0]
    if tier and task.entity.pid != world.trickle:
        return Bar(tier, math.inf)
    debt = draft.count_debt()
    link_s = draft.in_queue_s + debt * world.memory.in_s_per_page
    own_s = world.prefill_s(task.todo_tokens) + 2 * world.rates.step_s
    lead = own_s + tunables.margin_s + tunables.hysteresis_s + link_s / tunables.victim_link_share
    return Bar(0, lead)
