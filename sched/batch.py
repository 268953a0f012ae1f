"""Prefill with the rest of the step's tokens; several partial prefills may share a step."""

import math

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import Room, growth_bar, last_resort, make_room


def run_prefills(draft: Draft) -> None:
    """Fill `draft.run` with chunks, in the policy's order."""
    tasks = [task for task in draft.runnable() if _wants_prefill(draft, task)]
    if not tasks:
        return
    budget = prefill_budget(draft)
    tasks.sort(key=lambda task: draft.policy.prefill_key(task, draft.world))
    for task in tasks:
        if budget <= 0:
            break
        if task.entity.pid in draft.pause:
            continue
        tokens = min(task.todo_tokens, budget)
        if task.entity.pid in draft.world.queues.ready:
            tokens = grow_for(draft, task, tokens)
        if tokens:
            draft.run[task.entity.pid] = tokens
            budget -= tokens


def _wants_prefill(draft: Draft, task: Task) -> bool:
    pid = task.entity.pid
    return pid not in draft.run and (task.todo_tokens > 1 or pid in draft.admit)


def grow_for(draft: Draft, task: Task, tokens: int) -> int:
    """How many of the next `tokens` tokens have frames. Newcomers and resumed processes brought
    theirs; a process with new input behind its old KV grows here, or yields."""
    world, ledger = draft.world, draft.ledger
    frames = world.growth(task, tokens)
    reason = f"growth of {task.entity.pid}"
    room = make_room(draft, frames, task, growth_bar(draft, task), reason)
    if room is Room.NO:
        held_tokens = task.space.mapped * world.memory.page_tokens - task.space.computed
        possible = held_tokens + ledger.available * world.memory.page_tokens
        if possible <= 0:
            draft.pressure = True
            room = last_resort(draft, task, 1)
            possible = ledger.available * world.memory.page_tokens if room is Room.NOW else 0
        tokens = min(tokens, possible)
        frames = world.growth(task, tokens) if tokens else 0
    elif room is Room.LATER:
        return 0
    if frames:
        draft.do_grow(task, frames)
    return tokens


def prefill_budget(draft: Draft) -> int:
    """Tokens of prefill in this step: what is left of the budget, bounded by time.

    The step may last as long as the tightest lead among its decodes, at least the floor; and never
    longer than the limit, which matters on slow devices only.
    """
    tunables = draft.world.tunables
    left = tunables.step_tokens - sum(draft.run.values())
    if not draft.policy.lead_chunks:
        return left
    step_s = max(tunables.step_floor_s, min(tightest_lead_s(draft), tunables.step_limit_s))
    bound = int(step_s * draft.world.rates.prefill_tokens_per_s) - len(draft.run)
    return max(tunables.step_min_prefill_tokens, min(left, bound))


def tightest_lead_s(draft: Draft) -> float:
    """Least lead among the decodes of this step that someone reads; inf if nobody does."""
    queues = draft.world.queues
    tightest = math.inf
    for pid, tokens in draft.run.items():
        task = queues.ready.get(pid) or draft.loaded.get(pid)
        if task is None or tokens != 1 or reader.before_first_token(task.entity):
            continue
        tightest = min(tightest, draft.world.lead_s(task))
    return tightest
