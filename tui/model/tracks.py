"""What each process has done since it was first seen: its states and its reader's lead, sampled
with every look, so that a screen that opens later can show what was before."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tokenix.syscalls.types import Pid, ProcessStat

MOST: Final = 500
"""Processes that are followed; of a crowd those that were seen first."""
KEPT: Final = 480
"""Samples of each. Of those that are older than half of them, every second goes."""


class Sample(NamedTuple):
    time_s: float
    state: str
    lead_s: float | None


class Tracks:
    """Samples by pid, oldest first."""

    def __init__(self) -> None:
        self._samples: dict[Pid, list[Sample]] = {}
        self._last_s = 0.0

    def take(self, time_s: float, processes: Iterable[ProcessStat]) -> None:
        """The processes of the next look. A time before the last one is another machine, or another
        place in a recording: what was known is forgotten."""
        if time_s < self._last_s:
            self._samples.clear()
        self._last_s = time_s
        known = self._samples
        seen: dict[Pid, list[Sample]] = {}
        for process in processes:
            samples = known.get(process.pid)
            if samples is None:
                if len(seen) >= MOST:
                    continue
                samples = []
            samples.append(Sample(time_s, process.state, process.lead_s))
            if len(samples) > KEPT:
                half = KEPT // 2
                samples[:half] = samples[:half:2]
            seen[process.pid] = samples
        self._samples = seen

    def of(self, pid: Pid) -> Sequence[Sample]:
        """None of them, if it was not followed."""
        return self._samples.get(pid, ())
