"""The gateway's process: started, looked after, started again when it dies.

It is a program of its own and reaches the kernel over the socket only, so that whatever happens to
it costs the requests that it carried and nothing else. It learns its settings from standard input,
and watches us: our death is noticed, however it comes. How it is ended: `close`, `finish`, `stop`.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
from structlog.typing import FilteringBoundLogger

from tokenix.daemon.doorway import Doorway
from tokenix.gateway.config import GatewayConfig

FIRST_PAUSE_S = 0.25
"""Before the first restart; twice as long before each further one ..."""
LONGEST_PAUSE_S = 30.0
"""... up to this, and again from the beginning ..."""
STEADY_S = 60.0
"""... after it has lived for so long."""
STOP_S = 5.0
"""From telling it to end at once to killing it."""


class Gateway:
    """At most one process at a time. Not thread-safe."""

    def __init__(
        self, settings: Callable[[], GatewayConfig], door: Doorway, log: FilteringBoundLogger
    ) -> None:
        """`settings` is asked at each start; `door` is what it listens on."""
        self._settings = settings
        self._door = door
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._death = -1
        """A descriptor that becomes readable when the process ends."""
        self._began_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._due_s: float | None = None
        """When it is started again."""
        self._closed = self._finished = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def watched(self) -> int | None:
        """A descriptor to wait for; `look` when it is readable."""
        return None if self._death < 0 else self._death

    @property
    def due_s(self) -> float | None:
        """When `look` is to be called at the latest (time.monotonic); None: no need."""
        return self._due_s

    def start(self) -> None:
        """OSError: what is wrong with its settings."""
        listening = self._door.socket.fileno()
        settings = msgspec.structs.replace(
            self._settings(), fd=listening, port=self._door.port, draining=self._closed
        )
        self._began_s, self._due_s = time.monotonic(), None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tokenix.gateway"],
            stdin=subprocess.PIPE,
            pass_fds=[listening],
            # Ctrl-C on a terminal is for us. Not a session of its own: Linux shares processors out
            # among sessions, and what priority ours is given counts for both.
            process_group=0,
        )
        self._death = os.pidfd_open(self._process.pid)
        self._log.info("gateway started", gateway_pid=self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died already, which `look` will see
            self._process.stdin.write(msgspec.json.encode(settings))
            self._process.stdin.close()

    def look(self) -> None:
        """Notice that it has ended, and start it again when it is time to."""
        now_s = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            if self._finished:
                self._say_stopped()
                return
            status = _status(self._process.returncode)
            self._forget()
            if now_s - self._began_s >= STEADY_S:
                self._pause_s = FIRST_PAUSE_S
            self._log.error("gateway died", status=status, restart_in_s=self._pause_s)
            self._plan_restart(now_s)
        if self._due_s is not None and now_s >= self._due_s:
            try:
                self.start()
                self.restarts += 1
            except OSError as problem:
                self._log.error("gateway cannot start", error=problem.strerror)
                self._plan_restart(now_s)

    def _plan_restart(self, now_s: float) -> None:
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        """It takes nothing new, and goes on with what it has."""
        self._closed = True
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)

    def finish(self) -> None:
        """It ends when all is answered; `pid` is None then."""
        self._finished, self._due_s = True, None
        if self._process is not None:
            self._process.terminate()

    def stop(self, patience_s: float = STOP_S) -> None:
        """It ends at once, with an error for who waits for an answer; SIGKILL if it does not.
        Idempotent."""
        self._due_s = None
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT)
        if not select.select([self._death], [], [], patience_s)[0]:
            self._log.warning("gateway does not end; it is killed", gateway_pid=self._process.pid)
            self._process.kill()
        self._process.wait()
        self._say_stopped()

    def _say_stopped(self) -> None:
        assert self._process is not None
        self._log.info("gateway stopped", status=_status(self._process.returncode))
        self._forget()

    def _forget(self) -> None:
        os.close(self._death)
        self._process, self._death = None, -1


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
