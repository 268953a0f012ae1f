"""The calls of a machine that was recorded, as screens ask them: answered from the recording, as
of the look that is shown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from tokenix.tui.beside import Recall, missing

if TYPE_CHECKING:
    from tokenix.tui.replay import Replay

NOT_NOW = "a machine that was, which cannot be acted on"


class Recalled:
    """Keeps `tui.source.View`. OSError ENODATA: it was not recorded."""

    def __init__(self, replay: "Replay", recall: Recall) -> None:
        self._replay = replay
        self._recall = recall

    # ---- from looks ----

    def ps(self, pids: Sequence[int] = ()) -> tuple[ProcessStat, ...]:
        found = self._replay.pull().processes
        return tuple(each for each in found if each.pid in pids) if pids else found

    def ps_after(self, after: int = 0, pids: Sequence[int] = ()) -> Listing:
        return Listing(tuple(each for each in self.ps(pids) if each.pid > after))

    def vmstat(self) -> dict[str, float]:
        return self._replay.pull().figures

    def metrics(self) -> MetricsReport:
        return self._replay.pull().metrics

    def stat(self, pid: Pid) -> ProcessStat:
        for each in self.ps((pid,)):
            return each
        raise missing(f"no process {pid} at this moment")

    # ---- from beside them ----

    def plan(self) -> PlanReport:
        return self._recall.plan(self._replay.line)

    def prefixes(self, limit: int = 64) -> tuple[PrefixNode, ...]:
        found = self._recall.latest_maps(self._replay.line).prefixes
        if found is None:
            raise missing("no prefixes")
        return found[:limit]

    def framemap(self, tier: str = "frames") -> PlaceMap:
        for found in self._recall.latest_maps(self._replay.line).maps:
            if found.tier == tier:
                return found
        raise missing(f"no map of the {tier}: they were too many, or there were none")

    def trace(
        self, pid: Pid | None = None, since: int = 0, limit: int = 1000
    ) -> tuple[TraceEvent, ...]:
        found = self._recall.events(self._replay.line, since)
        return tuple(event for event in found if pid is None or event.pid == pid)[:limit]

    # ---- what was not recorded ----

    def maps(self, pid: Pid) -> PageMap:
        raise missing("no page maps of processes")

    def tail(self, pid: Pid, limit: int = 64) -> tuple[int, ...]:
        raise missing("no outputs")

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        raise missing("no outputs")

    def sysctl(self, name: str = "", value: float | str | bool | None = None) -> Any:
        if value is not None:
            raise missing(NOT_NOW)
        controls = self._replay.pull().controls
        return controls.get(name) if name else controls

    def kill(self, pid: Pid, signal: Signal = Signal.TERM) -> None:
        raise missing(NOT_NOW)

    def nice(self, pid: Pid, nice: int) -> int:
        raise missing(NOT_NOW)
