"""A daemon behind its socket. It may end and come back; each pull connects again if it must."""

import contextlib
import time

from tokenix.syscalls import inproc
from tokenix.syscalls.inproc import Syscalls
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import look


class Daemon:
    """Keeps `tui.source.Source`. Making it connects. OSError: no daemon listens there."""

    can_act = True

    def __init__(self, socket: str | None = None) -> None:
        self._calls = inproc.connect(socket)
        self._machine = ""

    def pull(self) -> Snapshot:
        """One look. OSError: the daemon is gone; the next pull connects again."""
        try:
            if not self._machine:
                self._machine = self._calls.model().name
            return look(self._calls, self._machine, time.time())
        except OSError:
            self._machine = ""  # another one may come
            raise

    def view(self) -> Syscalls:
        return self._calls

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._calls.close()
