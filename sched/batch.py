"""Prefill with the rest of the step's tokens; several partial prefills may share a step."""

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import Room, last_resort, make_room


def run_prefills(draft: Draft) -> None:
    """Fill `draft.run` with chunks, in the policy's order."""
    others = draft.world.queues.runlist.others.values()
    tasks = [
        task
        for task in (*others, *draft.loaded.values(), *draft.admit.values())
        if _wants_prefill(draft, task)
    ]
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
    return (
        pid not in draft.run
        and pid not in draft.pause
        and (task.todo_tokens > 1 or pid in draft.admit)
    )


def grow_for(draft: Draft, task: Task, tokens: int) -> int:
    """How many of the next `tokens` tokens have frames. Newcomers and resumed processes brought
    theirs; a process with new input behind its old KV grows here, or yields."""
    world, ledger = draft.world, draft.ledger
    frames = world.growth(task, tokens)
    reason = f"growth of {task.entity.pid}"
    room = make_room(draft, frames, task, draft.policy.growth_bar, reason)
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
    tokens = draft.count_tokens()
    left = tunables.step_tokens - tokens
    if not draft.policy.lead_chunks:
        return left
    step_s = max(tunables.step_floor_s, tightest_lead_s(draft, tunables.step_limit_s))
    bound = int(step_s * draft.world.rates.prefill_tokens_per_s) - draft.count_sequences()
    return max(tunables.step_min_prefill_tokens, min(left, bound))


def tightest_lead_s(draft: Draft, limit_s: float) -> float:
    """Least lead among the decodes of this step that someone reads, at most `limit_s`."""
    world = draft.world
    tightest = limit_s
    decodes = list(world.queues.runlist.decodes.values()) if draft.decoding else []
    for task in (*decodes, *(t for pid, t in draft.loaded.items() if draft.run.get(pid) == 1)):
        entity = task.entity
        if entity.due_s - world.now_s >= tightest or reader.before_first_token(entity):
            continue  # the lead is no shorter than what is left until the deadline
        if entity.pid not in draft.resting:
            tightest = min(tightest, world.lead_s(task))
    return tightest
