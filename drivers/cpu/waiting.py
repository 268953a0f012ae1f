"""Waiting for a number in memory: awake for a moment, then asleep.

    waits      look .. look | sleepers + 1 | asleep while it is as last seen | sleepers - 1 | look
    changes    number + n | sleepers > 0: wake all

Threads of a pass wait for each other some microseconds, for which it does not pay to sleep. But
where another process holds the core of the one that is waited for, whoever stays awake, or only
offers its core around, uses up the time that the scheduler would give to its own process next: to
the one that it waits for. Asleep it costs nothing, and it is owed a core when it wakes.

Linux only: a futex, which sleeps only if the number is still what was seen, so no change is missed.
"""

import platform
from typing import Any

from numba.core import types

from tokenix.drivers.cpu.jit import bare
from tokenix.drivers.cpu.numbers import atomic_add, atomic_load

PATIENCE = 400_000
"""Looks before a thread goes to sleep: some 100 us."""

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_EVERYBODY = 1 << 30

_system_call: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@bare
def wait_for(at: int, least: int, sleepers: int) -> None:
    """Until the int64 at an address is at least so much. It only grows, and is below 2**31."""
    looks = 0
    while True:
        seen = atomic_load(at)
        if seen >= least:
            return
        looks += 1
        if looks > PATIENCE:
            atomic_add(sleepers, 1)
            seen = atomic_load(at)
            if seen < least:
                _system_call(_FUTEX, at, _WAIT_PRIVATE, seen, 0, 0, 0)
            atomic_add(sleepers, -1)


@bare
def wake(at: int, sleepers: int) -> None:
    """Whoever waits for the number at an address, which has just been changed."""
    if atomic_load(sleepers) > 0:
        _system_call(_FUTEX, at, _WAKE_PRIVATE, _EVERYBODY, 0, 0, 0)
