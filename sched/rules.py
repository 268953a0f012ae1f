"""Admission rules: whether a newcomer may come in now. Policies list the ones they want.

Each is one function of (draft, newcomer); what fits in memory is asked after them.
"""

from tokenix.sched import reader
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.load import Horizon, Load, mean_lead_s, measure_load
from tokenix.sched.world import World


def just_in_time(draft: Draft, task: Task) -> bool:
    """No frames before the step that can use them: shorter prefills fill this step already."""
    mine = (*reader.rank_of(task.entity), task.todo_tokens)
    ahead = 0
    others = draft.world.queues.runlist.others.values()
    for other in (*others, *draft.loaded.values(), *draft.admit.values()):
        todo = other.todo_tokens
        if (todo <= 1 and other.entity.pid not in draft.admit) or other.entity.pid in draft.pause:
            continue
        resumed = not reader.before_first_token(other.entity)
        if resumed or (*reader.rank_of(other.entity), todo) <= mine:
            ahead += todo
    return ahead < draft.world.tunables.step_tokens


def may_live(draft: Draft, pages: float) -> bool:
    """Whether so many pages may be alive: the pool, and what the link can bring back from the host
    tier within the mean lead, and what can be computed again in that time for lack of slots."""
    memory, tunables = draft.world.memory, draft.world.tunables
    paged = pages - memory.total_frames
    if paged <= 0:
        return True
    copied = min(paged, tunables.host_paused_share * memory.host_slots)
    restore_s = copied * memory.in_s_per_page / tunables.link_share
    again_s = draft.world.prefill_s((paged - copied) * memory.page_tokens)
    if again_s:
        restore_s = max(restore_s, again_s / max(tunables.recompute_share, 1e-9))
    return restore_s <= 1.0 or restore_s <= mean_lead_s(draft.world)


def current_load(draft: Draft) -> Load:
    """The load, newcomers of this plan included."""
    if draft.load is None:
        draft.load = measure_load(draft.world)
        for other in draft.admit.values():
            draft.load.add(draft.world.need(other), draft.world.stream_residency(other))
    return draft.load


def within_working_set(draft: Draft, task: Task) -> bool:
    """The newcomer takes at most its share of the working set and of the pages alive; or nobody is
    paused and it fits beside all."""
    load = current_load(draft)
    if draft.alone() or fits_beside_all(draft, load, task):
        return True
    world = draft.world
    claim = world.need(task) / world.tunables.newcomer_share
    resident = load.resident_pages + world.stream_residency(task) * claim
    if resident > world.eta * world.memory.total_frames:
        return False
    return may_live(draft, load.alive_pages + claim)


def fits_beside_all(draft: Draft, load: Load, task: Task) -> bool:
    """All are resident, and with the newcomer each still has a page to grow. Small pools with
    readers as fast as the device live by this: there the working set is everybody, and a share of
    what is left would refuse what is there for the taking."""
    queues = draft.world.queues
    if queues.paused or queues.moving or draft.pause or draft.pressure:
        return False
    pages = load.alive_pages + draft.count_running() + draft.world.need(task)
    return pages <= draft.world.eta * draft.world.memory.total_frames


def within_horizon(draft: Draft, task: Task) -> bool:
    """Everyone who must be resident before the newcomer can be paused fits beside it."""
    if draft.alone():
        return True
    world, tunables = draft.world, draft.world.tunables
    prefill_s = tunables.horizon_prefills * world.prefill_s(task.todo_tokens)
    horizon_s = prefill_s + 2 * world.rates.step_s + tunables.margin_s + tunables.hysteresis_s
    needed = world.need(task) + sum(world.need(other) for other in draft.admit.values())
    needed += world.queues.dueline.count_needed(world, horizon_s)
    absent = {**draft.resume, **{p: t for p, t in world.aside.items() if p in world.queues.paused}}
    for other in absent.values():
        needed -= _needed_before(world, other, horizon_s)
    if draft.horizon is None:
        draft.horizon = measure_horizon(draft)
    return needed + draft.horizon.pages_before(horizon_s) <= world.memory.total_frames


def _needed_before(world: World, task: Task, horizon_s: float) -> int:
    """Its pages, if it must begin to come back before `horizon_s` from now."""
    start_s = world.owed_s(task) - world.restore_s(task)
    return world.footprint(task) if start_s < horizon_s else 0


def measure_horizon(draft: Draft) -> Horizon:
    """When each process that is alive must be resident, apart from newcomers of this plan, from
    those who are paused (see dueline.py) and from those aside."""
    world, aside = draft.world, draft.world.aside
    always = 0
    times: list[tuple[float, int]] = []
    for other in (*draft.ready(), *draft.loaded.values(), *draft.arriving()):
        if reader.tier_of(other.entity) == 0 and other.entity.pid not in aside:
            if reader.before_first_token(other.entity):
                always += other.space.mapped
            else:
                times.append((world.lead_s(other), other.space.mapped))
    for other in (*draft.leaving(), *draft.displaced()):
        if other.entity.pid in aside:
            continue
        times.append((world.owed_s(other) - world.restore_s(other), world.footprint(other)))
    return Horizon.of(always, times)


def budget_left(draft: Draft, task: Task) -> bool:
    """The step has tokens left (fcfs, retract)."""
    return draft.tokens_left() > 0
