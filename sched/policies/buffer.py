"""`buffer`: as TokenFlow (Chen et al. 2025) published it. Streams whose readers have a safe buffer
make room for newcomers, the largest buffer first, and come back when it runs low. Newcomers in
order of arrival, nobody is refused."""

from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.policies.fcfs import arrival_key
from tokenix.sched.policies.progress import decode_key, last_resort_key, resume_key
from tokenix.sched.policy import Policy
from tokenix.sched.room import Bar, growth_bar
from tokenix.sched.world import World


def safe_bar(draft: Draft, task: Task) -> Bar:
    """Whoever has a safe buffer yields."""
    return Bar(0, draft.world.tunables.buffer_pause_s)


def low_buffer_s(world: World) -> float:
    return world.tunables.buffer_resume_s


BUFFER = Policy(
    name="buffer",
    phases=("resume_due", "admit", "resume_early", "decode", "prefill"),
    newcomer_key=arrival_key,
    resume_key=resume_key,
    decode_key=decode_key,
    prefill_key=arrival_key,
    last_resort_key=last_resort_key,
    newcomer_bar=safe_bar,
    resume_bar=safe_bar,
    growth_bar=growth_bar,
    net_leads=False,
    due_lead_s=low_buffer_s,
    displace=True,
)
