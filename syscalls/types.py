"""The types that system calls give and take, for programs that annotate them.

User space imports from here and never from the layers below. What belongs to booting a machine is
imported when it is first asked for, and so is not by a client of a socket.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenix.kernel.answers import (
    PLACE_STATES,
    Distribution,
    Due,
    ExitReason,
    ImageInfo,
    Listing,
    MeterSeries,
    MetricsReport,
    Output,
    PageCode,
    PageMap,
    PlaceCode,
    PlaceMap,
    PlanReport,
    PrefixNode,
    ProcessStat,
    Queued,
    ReadResult,
    Rusage,
    TurnEnd,
    WaitResult,
)
from tokenix.kernel.calls import Principal, Signal
from tokenix.kernel.state import State
from tokenix.kernel.trace import TraceEvent
from tokenix.mm.ids import Pid
from tokenix.syscalls.endings import raise_if_failed, text_of
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import Prompt, SpawnOptions

if TYPE_CHECKING:
    from tokenix.kernel.boot import Progress
    from tokenix.kernel.params import Params

__all__ = [
    "PLACE_STATES",
    "Distribution",
    "Due",
    "ExitReason",
    "ImageInfo",
    "Listing",
    "MeterSeries",
    "MetricsReport",
    "Output",
    "PageCode",
    "PageMap",
    "Params",
    "Pid",
    "PlaceCode",
    "PlaceMap",
    "PlanReport",
    "PrefixNode",
    "Principal",
    "ProcessStat",
    "Progress",
    "Prompt",
    "Queued",
    "ReadResult",
    "Rusage",
    "Signal",
    "SpawnOptions",
    "State",
    "Syscalls",
    "TraceEvent",
    "TurnEnd",
    "WaitResult",
    "raise_if_failed",
    "text_of",
]

_BOOTING = {"Params": "tokenix.kernel.params", "Progress": "tokenix.kernel.boot"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _BOOTING:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_BOOTING[name]), name)
