"""The types that system calls give and take, for programs that annotate them.

User space imports from here and never from the layers below.
"""

from tokenix.kernel.answers import (
    Distribution,
    ExitReason,
    ImageInfo,
    MeterSeries,
    MetricsReport,
    Output,
    ProcessStat,
    ReadResult,
    Rusage,
    TurnEnd,
    WaitResult,
)
from tokenix.kernel.boot import Progress
from tokenix.kernel.calls import Signal
from tokenix.kernel.params import Params
from tokenix.kernel.trace import TraceEvent
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import Prompt, SpawnOptions, raise_if_failed, text_of

__all__ = [
    "Distribution",
    "ExitReason",
    "ImageInfo",
    "MeterSeries",
    "MetricsReport",
    "Output",
    "Params",
    "Pid",
    "ProcessStat",
    "Progress",
    "Prompt",
    "ReadResult",
    "Rusage",
    "Signal",
    "SpawnOptions",
    "Syscalls",
    "TraceEvent",
    "TurnEnd",
    "WaitResult",
    "raise_if_failed",
    "text_of",
]
