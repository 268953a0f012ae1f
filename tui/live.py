"""A daemon behind its socket. It may end and come back; each pull connects again if it must."""

import contextlib
from collections.abc import Sequence

from tokenix.cli.connection import connect
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.types import Pid
from tokenix.tui.look import Looker
from tokenix.tui.snapshot import Snapshot


class Daemon:
    """Keeps `tui.source.Source`. Making it connects. `cli.status.Failure`: no daemon listens."""

    can_act = True

    def __init__(self, socket: str | None = None) -> None:
        self._calls = connect(socket)
        self._looker: Looker | None = None
        self._watched: Sequence[Pid] = ()

    def pull(self) -> Snapshot:
        """One look. OSError: the daemon is gone; the next pull connects again."""
        try:
            if self._looker is None:
                self._looker = Looker(self._calls.model().name)
            self._looker.watch(self._watched)
            return self._looker.look(self._calls)
        except OSError:
            self._looker = None  # who comes back is another machine
            raise

    def watch(self, pids: Sequence[Pid]) -> None:
        self._watched = pids

    def view(self) -> Syscalls:
        return self._calls

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._calls.close()
