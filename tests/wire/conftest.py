"""One machine with the real model behind a socket, for the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenix
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.wire.server import Server, serve
from tokenix.tests.syscalls.conftest import PATIENT


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
