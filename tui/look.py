"""One look at a running machine, by its calls."""

import time
from collections.abc import Sequence

from tokenix.syscalls.types import Pid
from tokenix.tui.roll import Roll
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import View


class Looker:
    """Looks at one machine again and again."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._roll = Roll()
        self._watched: Sequence[Pid] = ()

    def watch(self, pids: Sequence[Pid]) -> None:
        self._watched = pids

    def look(self, view: View) -> Snapshot:
        """OSError: it does not answer."""
        taken_s = time.time()
        figures = view.vmstat()
        return Snapshot(
            time_s=figures["time_s"],
            taken_s=taken_s,
            machine=self._machine,
            figures=figures,
            metrics=view.metrics(),
            controls=view.sysctl(),
            processes=self._roll.take(view, self._watched),
        )
