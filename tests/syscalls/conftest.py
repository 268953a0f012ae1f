"""One machine with the real model for the tests of a module."""

from collections.abc import Iterator

import pytest

import tokenix
from tokenix.syscalls.inproc import Syscalls

PATIENT = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
"""Nobody is refused, however slow the machine of the test is."""


@pytest.fixture(scope="module")
def k() -> Iterator[Syscalls]:
    with tokenix.boot("smollm2", device_pages=64, tunables=PATIENT) as machine:
        yield machine


@pytest.fixture(autouse=True)
def _tidy_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a failed test has left running is not the next one's trouble."""
    yield
    if "k" in request.fixturenames:
        machine: Syscalls = request.getfixturevalue("k")
        for process in machine.ps():
            machine.kill(process.pid, tokenix.SIGKILL)
            machine.wait(process.pid)
