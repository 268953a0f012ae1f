"""The processes of a machine, asked for some at a time.

A look asks for at most `ANSWERS` answers of `ps_after`, going round all processes, so that it holds
the kernel up for some milliseconds whatever their number. If that is not all of them, it also asks
for those that came since, and for those on screen: these are of now, others of up to a round ago
(with 5,000 processes and two looks a second, ten seconds).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tokenix.syscalls.types import Pid, ProcessStat
from tokenix.tui.source import View

ANSWERS: Final = 2
NOBODY: Final = Pid(0)


class Roll:
    def __init__(self) -> None:
        self._known: dict[Pid, ProcessStat] = {}
        self._round: set[Pid] = set()
        """Those met since the round began."""
        self._after = NOBODY

    def take(self, view: View, watched: Sequence[Pid]) -> tuple[ProcessStat, ...]:
        """What is known of all, by pid, after asking for some. OSError."""
        for _ in range(ANSWERS):
            if self._ask(view):
                return self._all()
        newest = view.ps_after(max(self._known))
        self._note(newest.processes)
        current = view.ps(watched) if watched else ()
        for pid in set(watched) - {process.pid for process in current}:
            self._known.pop(pid, None)
        self._note(current)
        return self._all()

    def _ask(self, view: View) -> bool:
        """The next answer of the round. Whether it was the last one."""
        answer = view.ps_after(self._after)
        self._note(answer.processes)
        if answer.after is not None:
            self._after = answer.after
            return False
        self._known = {pid: self._known[pid] for pid in self._round if pid in self._known}
        self._round.clear()
        self._after = NOBODY
        return True

    def _note(self, processes: Iterable[ProcessStat]) -> None:
        for process in processes:
            self._known[process.pid] = process
            self._round.add(process.pid)

    def _all(self) -> tuple[ProcessStat, ...]:
        return tuple(self._known[pid] for pid in sorted(self._known))
