"""`oracle-srpt`: shortest remaining processing time, by lengths that no server knows: the bound.

`max_tokens` is taken as the length of the output, which is right only for calls with `ignore_eos`.
"""

from tokenix.sched.entity import Task
from tokenix.sched.policy import ranked
from tokenix.sched.world import World


def remaining_s(task: Task, world: World) -> float:
    """Prefill and decodes still to come, as if it were alone."""
    outputs = max(0, task.length - task.entity.prompt_tokens)
    left = max(0, task.entity.max_tokens - outputs)
    return world.prefill_s(task.todo_tokens) + left / world.rates.steps_per_s


def rank_key(task: Task, world: World) -> tuple[float, ...]:
    """Shortest remaining time first."""
    return (remaining_s(task, world), task.entity.arrival_s, task.entity.pid)


ORACLE_SRPT = ranked("oracle-srpt", rank_key)
