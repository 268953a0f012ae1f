"""`retract`: as SGLang. Prefill first; admission reserves a share of the outputs still to come;
out of memory: whoever has the fewest outputs is thrown away and computed again."""

from tokenix.sched import rules
from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.plan import PauseMode
from tokenix.sched.policies.fcfs import arrival_key, seat_key
from tokenix.sched.policy import Policy
from tokenix.sched.world import World


def outputs(task: Task) -> int:
    """Tokens generated so far."""
    return max(0, task.length - task.entity.prompt_tokens)


def fewest_outputs_key(task: Task, world: World) -> tuple[float, ...]:
    """Fewest outputs are paused first, then the longest prompt."""
    return (-outputs(task), task.entity.prompt_tokens, task.entity.pid)


def reserve_outputs(draft: Draft, task: Task) -> bool:
    """The sequence and a share of its outputs fit beside the same share of everyone else's."""
    running = draft.runnable()
    if not running:
        return True
    world = draft.world
    rest = draft.ledger.available * world.memory.page_tokens
    reserved = sum(expected_outputs(other, world) for other in running)
    return task.length + expected_outputs(task, world) + reserved <= rest


def expected_outputs(task: Task, world: World) -> float:
    """Tokens a process is expected to generate from now on."""
    rest = max(0, task.entity.max_tokens - outputs(task))
    return world.new_token_ratio * min(world.tunables.retract_clip_tokens, rest)


RETRACT = Policy(
    name="retract",
    phases=("resume_queue", "admit", "prefill", "decode"),
    newcomer_key=arrival_key,
    resume_key=arrival_key,
    decode_key=seat_key,
    prefill_key=seat_key,
    last_resort_key=fewest_outputs_key,
    rules=(rules.budget_left, reserve_outputs),
    pause_mode=PauseMode.RECOMPUTE,
    reserves_outputs=True,
    mixed=False,
    pause_prefills=True,
)
