"""One look at a running machine, by its calls."""

import time
from collections.abc import Sequence
from typing import Any, Final

from tokenix.syscalls.types import Pid
from tokenix.tui.roll import Roll
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import View

CONTROLS_S: Final = 2.0
"""Control variables seldom change, and there are many: they are asked for no more often."""


class Looker:
    """Looks at one machine again and again."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._roll = Roll()
        self._watched: Sequence[Pid] = ()
        self._controls: dict[str, Any] = {}
        self._controls_s = -CONTROLS_S
        """When they were asked for, by the kernel's clock."""

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
            controls=self._controls_at(figures["time_s"], view),
            processes=self._roll.take(view, self._watched),
        )

    def _controls_at(self, time_s: float, view: View) -> dict[str, Any]:
        if time_s - self._controls_s >= CONTROLS_S:
            self._controls, self._controls_s = view.sysctl(), time_s
        return self._controls
