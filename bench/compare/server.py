"""A peer's server while it runs: started, frozen while others are measured, ended."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tokenix.bench.compare import machine
from tokenix.bench.compare.peer import Peer, Place, Shape, Unavailable

POLL_S = 0.1
END_S = 20.0
THAW_S = 60.0


class Server:
    """Use as a context manager, or call `end`."""

    def __init__(self, peer: Peer, shape: Shape, threads: int, folder: Path) -> None:
        """Starts it. Unavailable if it does not serve in its time."""
        self.peer = peer
        self.place = Place(free_port(), threads, folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.command = peer.serve(shape, self.place)
        self._log = folder / "log"
        began_s = time.monotonic()
        with self._log.open("wb") as output:
            # In the session of who compares, so that both are scheduled as one.
            self._process = subprocess.Popen(
                self.command.words, stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, env={**os.environ, **self.command.env},
            )  # fmt: skip
        try:
            self._await(self.command.start_s)
        except BaseException:
            self.end()
            raise
        self.start_s = time.monotonic() - began_s

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int:
        return machine.resident_bytes(machine.tree(self.pid))

    def freeze(self) -> None:
        """It uses no processor from now on, whatever it would do."""
        machine.send(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It serves again. Unavailable if it does not: clocks have gone on while it was frozen."""
        machine.send(self.pid, signal.SIGCONT)
        self._await(THAW_S)

    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """It and all its children, whether or not they want to."""
        pids = machine.tree(self.pid)
        machine.send(self.pid, signal.SIGCONT)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        for pid in pids:
            if pid == self.pid and self._process.poll() is not None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def why(self) -> str:
        """The last line that it wrote."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1].strip()} ({self._log})" if lines else f"it wrote nothing ({self._log})"

    def _await(self, within_s: float) -> None:
        late_s = time.monotonic() + within_s
        while not self._serves():
            if not self.alive():
                raise Unavailable(f"the server ended: {self.why()}")
            if time.monotonic() > late_s:
                raise Unavailable(f"the server does not serve after {within_s:g} s")
            time.sleep(POLL_S)
        machine.share_priority(self.pid)

    def _serves(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=5.0)
        try:
            connection.request("GET", self.command.ready)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def free_port() -> int:
    """One that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
