"""`mlfq`: as FastServe (Wu et al. 2023). A multi-level feedback queue by service received.

A newcomer skips the levels whose quantum its prefill exceeds. Quanta double from level to level;
whoever has used one up sinks. Those that do not fit are swapped out, the lowest level first, and
some frames are freed ahead of need. Who starves starts at the top again.
"""

from tokenix.sched.entity import Task
from tokenix.sched.policy import ranked
from tokenix.sched.tunables import Tunables
from tokenix.sched.world import World


def level_of(task: Task, tunables: Tunables) -> int:
    """0 is served first."""
    entity = task.entity
    level, quantum = 0, tunables.mlfq_quantum_tokens
    if entity.boost_tokens < 0:
        service = task.space.computed
        while quantum < entity.prompt_tokens and level < tunables.mlfq_levels:
            level, quantum = level + 1, 2 * quantum
    else:
        service = task.space.computed - entity.boost_tokens
    while service > quantum and level < tunables.mlfq_levels:
        service -= quantum
        level, quantum = level + 1, 2 * quantum
    return level


def starves(task: Task, world: World) -> bool:
    """Without frames for too long."""
    if task.space.active:
        return False
    entity = task.entity
    since_s = min(entity.paused_since_s, world.now_s)
    if since_s == world.now_s:
        since_s = entity.waiting_since_s
    return world.now_s - since_s > world.tunables.mlfq_starve_s


def rank_key(task: Task, world: World) -> tuple[float, ...]:
    """Level, then arrival; the starving before all."""
    level = -1 if starves(task, world) else level_of(task, world.tunables)
    return (level, task.entity.arrival_s, task.entity.pid)


MLFQ = ranked("mlfq", rank_key)
