"""What a streamed token costs the gateway, in time on the processor.

    this process: clients --HTTP--> gateway process --socket--> this process: a kernel in rehearsal

Beside it, in the same run, a bare ASGI application streams as many events at the same pace to the
same clients: the part that is uvicorn's and the system's.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import serve

START_S = 60.0
"""In which a process has to begin to serve."""


@dataclass(frozen=True, slots=True)
class Report:
    streams: int
    tokens: int
    """Of one round, all streams together."""
    rate: float
    """Tokens a second."""
    gateway_us: float
    """Time on the processor for each token; median of the rounds."""
    echo_us: float
    """For each event of the bare application."""
    ratio: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def measure(streams: int = 32, tokens: int = 250, step_s: float = 0.02, rounds: int = 3) -> Report:
    """`tokens` of each stream, one in a forward pass of `step_s` seconds. OSError as `serve`."""
    patient = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
    gateway_us: list[float] = []
    echo_us: list[float] = []
    rates: list[float] = []
    body = {"model": "rehearsal", "prompt": "Hello", "stream": True, "max_tokens": tokens}
    with (
        tempfile.TemporaryDirectory() as folder,
        rehearse(step_s=step_s, tunables=patient) as k,
        serve(k.port, Path(folder) / "k.sock") as server,
        _process("tokenix.gateway", config={"socket": server.path}) as gateway,
        _process("tokenix.bench.echo", str(tokens), str(step_s)) as echo,
    ):
        _ask(gateway, streams, body)  # warm
        for _ in range(rounds):
            for process, costs in ((gateway, gateway_us), (echo, echo_us)):
                before_s, began_s = process.cpu_s(), time.monotonic()
                events = _ask(process, streams, body)
                costs.append((process.cpu_s() - before_s) / events * 1e6)
                if process is gateway:
                    rates.append(events / (time.monotonic() - began_s))
    mine, bare = sorted(gateway_us)[rounds // 2], sorted(echo_us)[rounds // 2]
    return Report(streams, streams * tokens, sorted(rates)[rounds // 2], mine, bare, mine / bare)


@dataclass(frozen=True, slots=True)
class _Serving:
    pid: int
    port: int

    def cpu_s(self) -> float:
        """Time of all its threads on the processor."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@contextlib.contextmanager
def _process(
    module: str, *words: str, config: dict[str, object] | None = None
) -> Iterator[_Serving]:
    """A process that serves HTTP on a socket that it is given."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor, port = listener.fileno(), listener.getsockname()[1]
        command = [sys.executable, "-m", module]
        command += words if config is not None else [str(descriptor), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            pass_fds=[descriptor],
        )  # fmt: skip
        assert running.stdin is not None
        if config is not None:
            running.stdin.write(json.dumps({**config, "fd": descriptor}).encode())
        running.stdin.close()
        try:
            _until(lambda: _answers(port, running))
            yield _Serving(running.pid, port)
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()


def _answers(port: int, running: "subprocess.Popen[bytes]") -> bool:
    assert running.poll() is None, "it serves"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as one:
        one.sendall(b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return one.recv(12).endswith(b"200")
    return False


def _until(true: Callable[[], bool]) -> None:
    late_s = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < late_s, f"it serves within {START_S:g} s"
        time.sleep(0.05)


def _ask(process: _Serving, streams: int, body: dict[str, object]) -> int:
    """Open all streams and read them to their ends; the events that came."""

    async def one() -> int:
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        events = 0
        while chunk := await reader.read(65536):
            events += chunk.count(b"data: ")
        writer.close()
        return events

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(one() for _ in range(streams))))

    return asyncio.run(all_of_them())
