"""One plan: the phases of the policy in their order, over one ledger of frames.

                      progress                      fcfs                retract
    refuse_late       1  cannot be in time
    resume_due        2  earliest deadline first
    resume_queue                                    3  by arrival       1  by arrival
    admit             3  shortest first             4  by arrival       2  by arrival
    resume_early      4  with what is left
    decode            5  growth, last resort        1  growth           4  if nothing prefills
    prefill           6  rest of the budget         2, 5                3

Pure: reads the world, writes only the draft it returns.
"""

import math
from collections.abc import Callable

from tokenix.sched import admission, batch, decode, reader, resume, seats
from tokenix.sched.draft import Draft
from tokenix.sched.policy import Policy
from tokenix.sched.world import World

TICK_S = 1e-3
"""Shortest time after which planning again may change anything."""

PHASES: dict[str, Callable[[Draft], None]] = {
    "refuse_late": admission.refuse_late,
    "resume_due": resume.resume_due,
    "resume_queue": resume.resume_queue,
    "admit": admission.admit,
    "reseat": seats.reseat,
    "resume_early": resume.resume_early,
    "decode": decode.run_decodes,
    "prefill": batch.run_prefills,
}


def draft_plan(world: World, policy: Policy) -> Draft:
    """Decide one step."""
    draft = Draft.open(world, policy)
    for phase in policy.phases:
        PHASES[phase](draft)
    never_idle(draft)
    unblock(draft)
    return draft


def is_idle(draft: Draft) -> bool:
    """Whether nothing runs and nothing is on its way that would change that."""
    busy = draft.count_sequences() or draft.resume or draft.pause or draft.world.queues.moving
    return not busy and draft.ledger.outgoing == 0


def never_idle(draft: Draft) -> None:
    """One process always runs: an idle device brings back who is paused, due or not."""
    if is_idle(draft) and draft.count_paused():
        resume.resume_first(draft)
        decode.run_decodes(draft)
        batch.run_prefills(draft)


def unblock(draft: Draft) -> None:
    """Nothing runs, and no single pause would help (say all pages are shared by two blocked
    processes each): pause one all the same, so that its partner's pages can become free."""
    queues = draft.world.queues
    waiting = len(queues.waiting) - len(draft.admit) - len(draft.refuse)
    if not is_idle(draft) or not (queues.ready or draft.count_paused() or waiting):
        return
    held = list(queues.held.values())
    blocked = draft.ready()
    if not held and len(blocked) < 2:
        return
    key = draft.policy.last_resort_key
    victim = max(held or blocked, key=lambda task: key(task, draft.world))
    draft.do_pause(victim, "all are blocked")


def wake_time_s(draft: Draft) -> float | None:
    """When time alone may change the decision; None if only events can. What runs ends in an
    event; should the kernel find that nothing can run after all, it asks again."""
    world = draft.world
    if draft.count_sequences():
        return world.now_s + TICK_S
    if draft.pause or draft.refuse or draft.loaded:
        return world.now_s
    times = []
    if "resume_due" in draft.policy.phases:
        slacks = [resume.slack_s(draft, task) for task in draft.paused()]
        times += [world.now_s + slack for slack in slacks if slack > 0]
    if draft.policy.patience:
        readers = [task for task in draft.newcomers() if reader.tier_of(task.entity) == 0]
        times += [admission.give_up_s(world, task) for task in readers]
    soonest_s = min(times, default=math.inf)  # a fork that was seen already never gives up
    return max(soonest_s, world.now_s + TICK_S) if soonest_s < math.inf else None
