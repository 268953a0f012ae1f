"""The scheduling policies by name."""

from tokenix.sched.policies.buffer import BUFFER
from tokenix.sched.policies.fcfs import FCFS
from tokenix.sched.policies.fcfs_reject import FCFS_REJECT
from tokenix.sched.policies.hrrn import HRRN
from tokenix.sched.policies.mlfq import MLFQ
from tokenix.sched.policies.progress import PROGRESS
from tokenix.sched.policies.qoe import QOE
from tokenix.sched.policies.retract import RETRACT
from tokenix.sched.policies.srpt import ORACLE_SRPT
from tokenix.sched.policy import Policy

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        PROGRESS, FCFS, FCFS_REJECT, RETRACT, MLFQ, QOE, BUFFER, HRRN, ORACLE_SRPT,
    )
}  # fmt: skip
"""What `boot(policy=...)` accepts; the first is the default."""

__all__ = ["FCFS", "POLICIES", "PROGRESS", "RETRACT", "Policy"]
