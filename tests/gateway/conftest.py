"""One kernel with the real model and one gateway in front of it for the tests of a module."""

from collections.abc import Iterator

import openai
import pytest
import structlog

import tokenix
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import Gateway, open_gateway, rest

PATIENT = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
"""Nobody is refused, however slow the machine of the test is."""


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


@pytest.fixture(scope="module")
def k() -> Iterator[Syscalls]:
    with tokenix.boot("smollm2", device_pages=64, tunables=PATIENT) as machine:
        yield machine


@pytest.fixture(scope="module")
def gateway(k: Syscalls) -> Iterator[Gateway]:
    with open_gateway(k) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test every page and every process is given back."""
    yield
    if "k" not in request.fixturenames:
        return
    machine: Syscalls = request.getfixturevalue("k")
    try:
        rest(machine)
    finally:
        for process in machine.ps():
            machine.kill(process.pid, tokenix.SIGKILL)
            machine.wait(process.pid)
