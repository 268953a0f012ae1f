"""The scheduler's policies by name: what `sysctl policy` can be set to."""

from typing import Final

from tokenix.sched.policies import POLICIES as _POLICIES

POLICIES: Final = tuple(_POLICIES)
"""The default first."""
