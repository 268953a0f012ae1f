"""Machines behind sockets: one with the real model, shared by a module, and one without a model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tokenix
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.limits import WireLimits
from tokenix.syscalls.wire.server import Server, serve
from tokenix.tests.syscalls.conftest import PATIENT

Serving = Callable[..., Server]

PIPE_TOKENS = 512
"""Unread output that holds a process of the machine without a model."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Syscalls]:
    """The kernel itself, to compare with and to look at."""
    with tokenix.boot("smollm2", device_pages=64, tunables=PATIENT) as k:
        yield k


@pytest.fixture(scope="module")
def server(machine: Syscalls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("wire") / "k.sock"
    with serve(machine.port, path) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
def k(server: Server) -> Iterator[Syscalls]:
    """A client of its own for each test; what it leaves running ends with it."""
    with tokenix.connect(server.path) as client:
        yield client


@pytest.fixture(scope="module")
def stage() -> Iterator[Syscalls]:
    """A kernel without a model, whose forward passes take 2 ms."""
    tunables = {**PATIENT, "max_running": 1024}
    with rehearse(step_s=0.002, tunables=tunables, pipe_tokens=PIPE_TOKENS) as k:
        yield k


@pytest.fixture
def serving(stage: Syscalls, tmp_path: Path) -> Iterator[Serving]:
    """Serve the kernel without a model, with these limits. At the end of the test nothing may be
    left of its clients, neither in the server nor in the kernel."""
    with ExitStack() as stack:

        def start(name: str = "k.sock", recognise: Any = None, **limits: Any) -> Server:
            options = {} if recognise is None else {"recognise": recognise}
            server = serve(stage.port, tmp_path / name, WireLimits(**limits), **options)
            return stack.enter_context(server)

        yield start
    from tokenix.tests.wire.raw import until

    try:
        until(lambda: not stage.ps(), "processes are left")
    finally:  # they are not the next test's trouble
        for process in stage.ps():
            stage.kill(process.pid, tokenix.SIGKILL)
            stage.wait(process.pid)


@pytest.fixture
def path(serving: Serving) -> str:
    """The socket of a server with the usual limits."""
    return serving().path
