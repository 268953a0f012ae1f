"""Room for somebody: frames at once, frames on their way, or none; and whom to pause for it.

What must hold for every choice of victims (scenarios A2, A3, A15):

    only frames that can be reclaimed now count        no forward is in flight when we plan
    frames already on their way count before anyone    one shortage, one set of victims
    nobody is paused unless the sum suffices           never for nothing
    nobody is paused who is not needed                 minimal set, no victim without frames
    leaders are not paused                             two pauses without progress
    a page of a paused stream has a host slot          or much lead, and compute to spare

Held processes go first, then idle, then batch, then whoever has most lead net of the way back.
"""

import enum
import math
from typing import NamedTuple

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.policy import BarFor
from tokenix.sched.world import World

HELD_TIER = 3
"""Stopped processes come before every class."""


class Room(enum.Enum):
    NOW = "now"
    LATER = "later"
    """Enough is on its way; ask again when it has come."""
    NO = "no"


class Bar(NamedTuple):
    """A victim's key must be above this: its tier first, then its net lead in seconds."""

    tier: int
    lead_s: float


HELD_ONLY = Bar(HELD_TIER, -math.inf)
"""Displaces nobody who runs."""


class Victim(NamedTuple):
    bar: Bar
    task: Task


def make_room(draft: Draft, need: int, me: Task, bar: BarFor | None, reason: str) -> Room:
    """Room for `need` frames beside the idle pages that `me` has already; pauses for it whoever
    is above the bar, which is only asked for when there must be victims. None: HELD_ONLY."""
    ledger = draft.ledger
    mine = me.space.idle_resident if me.entity.pid in draft.world.queues.paused else 0
    short = need + mine - ledger.available
    if short <= 0:
        return Room.NOW
    if short <= ledger.outgoing:
        return Room.LATER
    above = HELD_ONLY if bar is None else bar(draft, me)
    victims = choose_victims(draft, short - ledger.outgoing, me, above)
    if not victims:
        return Room.NO
    for victim in victims:
        draft.do_pause(victim.task, reason)
    return Room.NOW if need + mine <= ledger.available else Room.LATER


def choose_victims(draft: Draft, short: int, me: Task, bar: Bar) -> list[Victim]:
    """The fewest of the best victims whose frames cover `short`; empty if all together do not."""
    host_left = draft.ledger.host_free
    chosen: list[Victim] = []
    gained = 0
    for victim in sorted(_candidates(draft, me, bar), key=_victim_order):
        if gained >= short:
            break
        pages = victim.task.space.exclusive
        if victim.bar.tier == 0 and pages > host_left:
            # Computing again burns compute exactly when there is none: only for much lead.
            again_s = recompute_s(draft, victim.task, pages - host_left)
            if victim.bar.lead_s - again_s <= bar.lead_s:
                continue
        host_left = max(0, host_left - pages)
        chosen.append(victim)
        gained += pages
    return _prune(chosen, gained - short) if gained >= short else []


def recompute_s(draft: Draft, task: Task, pages: int) -> float:
    """Lead that `task` must have for `pages` of it to be dropped and computed again, behind all
    that is to be computed again already; inf where that is not done."""
    world = draft.world
    share = world.tunables.recompute_share
    if not share:
        return math.inf
    tokens = min(pages * world.memory.page_tokens, task.length)
    return world.prefill_s(tokens + world.queues.dueline.todo_tokens) / share


def _victim_order(victim: Victim) -> tuple[float, ...]:
    return (-victim.bar.tier, -victim.bar.lead_s, victim.task.entity.pid)


def _prune(chosen: list[Victim], surplus: int) -> list[Victim]:
    """Leave out whom the others make superfluous, the least suitable first."""
    kept = list(chosen)
    for victim in reversed(chosen):
        if victim.task.space.exclusive <= surplus:
            surplus -= victim.task.space.exclusive
            kept.remove(victim)
    return kept


def _candidates(draft: Draft, me: Task, bar: Bar) -> list[Victim]:
    """All that may be paused for `me`, whatever they bring."""
    world = draft.world
    found = []
    for task in world.queues.held.values():
        if task.entity.pid not in draft.pause:
            found.append(Victim(Bar(HELD_TIER, held_lead_s(task, world)), task))
    if bar.tier < HELD_TIER:
        me_tier = reader.tier_of(me.entity)
        for task in draft.ready():
            if task is not me and may_pause(task, me_tier, world):
                found.append(Victim(victim_bar(task, world, draft.policy.net_leads), task))
    return [v for v in found if v.task.space.exclusive > 0 and v.bar > bar]


def may_pause(task: Task, me_tier: int, world: World) -> bool:
    """Whether a running process can be displaced at all by someone of `me_tier`."""
    entity = task.entity
    if entity.leader or world.queues.shares.behind[entity.qos]:
        return False
    if reader.tier_of(entity) == 0:
        return not reader.before_first_token(entity) and task.todo_tokens == 1
    resident_s = world.now_s - entity.resident_since_s
    return me_tier == 0 or resident_s >= world.tunables.batch_quantum_s


def victim_bar(task: Task, world: World, net: bool) -> Bar:
    """Tier, and lead; `net` of its way back over the share of the link that pauses may use. Those
    aside have enough for whoever grows or is due, but not for newcomers, whose bars are higher."""
    back_s = task.space.mapped * world.memory.in_s_per_page / world.tunables.victim_link_share
    back_s = back_s if net else 0.0
    lead_s = world.lead_s(task) - back_s
    if task.entity.pid in world.aside:
        lead_s = max(lead_s, world.tunables.hysteresis_s + world.tunables.stall_tolerance_s)
    return Bar(reader.tier_of(task.entity), lead_s)


def held_lead_s(task: Task, world: World) -> float:
    """Lead of a stopped process: what its reader has left to read, else nobody misses it."""
    lead = world.lead_s(task)
    return lead if lead > 0 else math.inf


def growth_bar(draft: Draft, task: Task) -> Bar:
    """Whoever has more lead than a process that grows yields to it."""
    tier = reader.tier_of(task.entity)
    return Bar(tier, max(0.0, draft.world.lead_s(task)))


def last_resort(draft: Draft, me: Task, need: int) -> Room:
    """A process that cannot grow: pause whoever the policy finds best, maybe `me` itself.

    Leaders only if there is nobody else. `me` pauses itself only when others go on; if it is the
    only candidate it keeps its frames and waits for them.
    """
    while True:
        short = need - draft.ledger.available
        if short <= 0:
            return Room.NOW
        if short <= draft.ledger.outgoing:
            return Room.LATER
        pool = _last_candidates(draft, me)
        if pool == [me] or not pool:
            return Room.NO
        victim = max(pool, key=lambda task: draft.policy.last_resort_key(task, draft.world))
        draft.do_pause(victim, f"last resort for {me.entity.pid}")
        if victim is me:
            return Room.NO


def _last_candidates(draft: Draft, me: Task) -> list[Task]:
    """Ready processes whose frames help, without leaders if possible. Prefills only where the
    policy says so, or if they lack frames themselves (A21)."""
    pool = []
    for task in draft.ready():
        whole = task.todo_tokens > 1 and not draft.world.lacks_frames(task)
        if task is me or (task.space.exclusive > 0 and (draft.policy.pause_prefills or not whole)):
            pool.append(task)
    humble = [task for task in pool if not task.entity.leader]
    return humble or pool
