"""What one look at a machine brings.

A record of plain values: it is what the model reads, what `--json` prints and a line of a
recording.
"""

from typing import Any

import msgspec

from tokenix.syscalls.types import MetricsReport, ProcessStat


class Note(msgspec.Struct, frozen=True):
    """A sentence about what happens, in a demonstration."""

    time_s: float
    role: str
    """Of the ink (`widgets/ink.py`)."""
    text: str


class Snapshot(msgspec.Struct, frozen=True):
    """A machine at one moment. Processes by pid."""

    time_s: float
    """The kernel's clock: since its boot."""
    taken_s: float
    """Seconds since 1970, by the clock of whoever looked."""
    machine: str
    """Model, and where it runs; for the title."""
    figures: dict[str, float]
    """`vmstat`: gauges and counters by dotted name."""
    metrics: MetricsReport
    """Latencies, tokens and ends per class and tenant, since boot."""
    controls: dict[str, Any]
    """`sysctl`: every control variable."""
    processes: tuple[ProcessStat, ...]
    notes: tuple[Note, ...] = ()
    """What a demonstration has said lately, oldest first."""
