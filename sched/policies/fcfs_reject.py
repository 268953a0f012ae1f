"""`fcfs+reject`: as `fcfs`, but nobody is queued behind more prefill than the device does within
the first-token target. The strongest simple baseline."""

import dataclasses

from tokenix.sched import admission
from tokenix.sched.policies.fcfs import FCFS

FCFS_REJECT = dataclasses.replace(
    FCFS, name="fcfs+reject", arrival_checks=(admission.check_backlog,)
)
