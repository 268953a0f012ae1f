"""`fcfs`: first come first served, as vLLM v1. Out of memory: the last admitted is thrown away,
goes to the head of the queue and is computed again."""

from tokenix.sched import rules
from tokenix.sched.entity import Task
from tokenix.sched.plan import PauseMode
from tokenix.sched.policy import Policy
from tokenix.sched.world import World


def arrival_key(task: Task, world: World) -> tuple[float, ...]:
    """Order of arrival."""
    return (task.entity.arrival_s, task.entity.pid)


def seat_key(task: Task, world: World) -> tuple[float, ...]:
    """Order of rules."""
    return (task.entity.seat, task.entity.pid)


FCFS = Policy(
    name="fcfs",
    phases=("decode", "prefill", "resume_queue", "admit", "prefill"),
    newcomer_key=arrival_key,
    resume_key=arrival_key,
    decode_key=seat_key,
    prefill_key=seat_key,
    last_resort_key=seat_key,
    rules=(rules.budget_left,),
    pause_mode=PauseMode.RECOMPUTE,
    pause_prefills=True,
    admit_after_pause=False,
)
