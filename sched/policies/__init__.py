"""The scheduling policies by name."""

from tokenix.sched.policies.fcfs import FCFS
from tokenix.sched.policies.progress import PROGRESS
from tokenix.sched.policies.retract import RETRACT
from tokenix.sched.policy import Policy

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (PROGRESS, FCFS, RETRACT)}
"""What `boot(policy=...)` accepts; the first is the default."""

__all__ = ["FCFS", "POLICIES", "PROGRESS", "RETRACT", "Policy"]
