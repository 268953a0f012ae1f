"""Where looks at a machine come from: a daemon, a machine in this process, or a recording.

All calls block, and any may come from any thread. OSError: the machine did not answer, or said no.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tokenix.syscalls.types import (
    Listing,
    MetricsReport,
    PageMap,
    Pid,
    PlaceMap,
    PlanReport,
    PrefixNode,
    ProcessStat,
    Signal,
    TraceEvent,
)
from tokenix.tui.snapshot import Snapshot


class View(Protocol):
    """The system calls that screens ask on demand, by the names of `Syscalls`."""

    def ps(self, pids: Sequence[int] = ()) -> tuple[ProcessStat, ...]: ...

    def ps_after(self, after: int = 0, pids: Sequence[int] = ()) -> Listing: ...

    def vmstat(self) -> dict[str, float]: ...

    def metrics(self) -> MetricsReport: ...

    def stat(self, pid: Pid) -> ProcessStat: ...

    def maps(self, pid: Pid) -> PageMap: ...

    def framemap(self, tier: str = "frames") -> PlaceMap: ...

    def prefixes(self, limit: int = 64) -> tuple[PrefixNode, ...]: ...

    def plan(self) -> PlanReport: ...

    def tail(self, pid: Pid, limit: int = 64) -> tuple[int, ...]: ...

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str: ...

    def trace(
        self, pid: Pid | None = None, since: int = 0, limit: int = 1000
    ) -> tuple[TraceEvent, ...]: ...

    def sysctl(self, name: str = "", value: float | str | bool | None = None) -> Any: ...

    def kill(self, pid: Pid, signal: Signal = Signal.TERM) -> None: ...

    def nice(self, pid: Pid, nice: int) -> int: ...


class Source(Protocol):
    """A machine to look at."""

    @property
    def can_act(self) -> bool:
        """False: nothing can be done to it (a recording)."""
        ...

    def pull(self) -> Snapshot:
        """One look. OSError: no machine answers now; the next pull tries again."""
        ...

    def watch(self, pids: Sequence[Pid]) -> None:
        """Those processes are on screen: the next looks are to have them as they are then."""
        ...

    def view(self) -> View:
        """The calls of the machine that the last pull has seen. OSError: there is none."""
        ...

    def close(self) -> None:
        """Let go of it, and wake whoever blocks in a call. Idempotent."""
        ...
