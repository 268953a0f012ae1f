"""The gateway as it is run: a process of its own, on the kernel's socket."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import Server, serve
from tokenix.tests.gateway.conftest import PATIENT
from tokenix.tests.gateway.house import Wire, count_used, until

LONG = {"model": "rehearsal", "prompt": "Hello", "max_tokens": 20_000, "stream": True}


class Process:
    """`python -m tokenix.gateway`."""

    def __init__(self, path: str, **options: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self.running = subprocess.Popen(
                [sys.executable, "-m", "tokenix.gateway"], stdin=subprocess.PIPE,
                stderr=subprocess.PIPE, env=environment, pass_fds=[listener.fileno()],
            )  # fmt: skip
            config = {"socket": path, "fd": listener.fileno(), **options}
            assert self.running.stdin is not None
            self.running.stdin.write(json.dumps(config).encode())
            self.running.stdin.close()
        until(self._ready)

    def _ready(self) -> bool:
        with Wire(self.port).send("GET", "/health/ready") as wire:
            wire.body()
            return wire.status == 200

    def stream(self) -> Wire:
        wire = Wire(self.port).send("POST", "/v1/completions", LONG)
        wire.head().chunk()
        return wire

    def log(self) -> list[dict[str, Any]]:
        """All that it has logged, at its end."""
        assert self.running.stderr is not None
        return [json.loads(line) for line in self.running.stderr]

    def end(self) -> None:
        self.running.kill()
        self.running.wait()
        assert self.running.stderr is not None
        self.running.stderr.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Syscalls]:
    with rehearse(step_s=0.005, tunables=PATIENT) as k:
        yield k


@pytest.fixture
def server(stage: Syscalls, tmp_path: Path) -> Iterator[Server]:
    with serve(stage.port, tmp_path / "k.sock") as running:
        yield running


@pytest.fixture
def process(server: Server) -> Iterator[Process]:
    running = Process(server.path, drain_s=0.5)
    yield running
    running.end()


def test_its_end_is_that_of_its_processes(process: Process, stage: Syscalls) -> None:
    """kill -9: the kernel ends and reaps all that was generated for it."""
    wires = [process.stream() for _ in range(3)]
    assert len(stage.ps()) == 3
    process.running.kill()
    until(lambda: not stage.ps())
    for wire in wires:
        wire.close()


def test_it_drains_and_logs(process: Process, stage: Syscalls) -> None:
    wire = process.stream()
    process.running.send_signal(signal.SIGTERM)
    *_, error, done = wire.events()
    assert error["error"]["code"] == "service_unavailable" and done == "[DONE]"
    assert process.running.wait(60) == 0
    wire.close()
    assert not stage.ps()
    lines = process.log()
    (mine,) = [line for line in lines if line.get("path") == "/v1/completions"]
    assert mine["request_id"] == wire.headers["x-request-id"] and mine["pid"] > 0
    assert "draining" in [line["event"] for line in lines]


def test_a_second_signal(server: Server, stage: Syscalls) -> None:
    process = Process(server.path, drain_s=600)
    wire = process.stream()
    process.running.send_signal(signal.SIGTERM)
    until(lambda: _draining(process))
    process.running.send_signal(signal.SIGTERM)
    assert process.running.wait(60) == 0
    wire.close()
    until(lambda: not stage.ps())
    process.end()


def _draining(process: Process) -> bool:
    with Wire(process.port).send("GET", "/health/ready") as wire:
        return bool(wire.json()["status"] == "shutting down")


def test_the_kernel_goes_and_comes_back(stage: Syscalls, tmp_path: Path) -> None:
    server = serve(stage.port, tmp_path / "k.sock")
    process = Process(server.path)
    wire = process.stream()
    server.close()
    *_, error, done = wire.events()
    assert error["error"]["code"] == "service_unavailable" and done == "[DONE]"
    wire.close()
    until(lambda: not process._ready())
    with serve(stage.port, tmp_path / "k.sock"):
        until(process._ready)
        process.stream().close()
        until(lambda: not stage.ps())
    process.end()


def test_a_crowd(process: Process, stage: Syscalls) -> None:
    """Some never read, some go away, and those that come meanwhile are answered; then all is given
    back."""
    crowd = [process.stream() for _ in range(60)]
    lazy = []
    for _ in range(10):
        wire = Wire(process.port, room_bytes=4096)
        lazy.append(wire.send("POST", "/v1/completions", LONG))
    for wire in crowd[::2]:
        wire.close()
    for _ in range(20):
        short = {**LONG, "max_tokens": 3}
        with Wire(process.port).send("POST", "/v1/completions", short) as wire:
            assert wire.events()[-1] == "[DONE]"
    until(lambda: any(one.unread_tokens > 50 for one in stage.ps()))
    for wire in (*crowd, *lazy):
        wire.close()
    until(lambda: not stage.ps())
    until(lambda: count_used(stage) == 0)
