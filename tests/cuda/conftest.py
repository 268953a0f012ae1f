"""The fake GPU, as it is when a process starts."""

from collections.abc import Iterator

import pytest

pytest.importorskip("numba")

from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.tests.cuda import fake as fakes


@pytest.fixture
def fake() -> Iterator[fakes.Fake]:
    machine = fakes.load()
    machine.reset()
    machine.draw(1)
    yield machine
    machine.reset()


@pytest.fixture
def driver(fake: fakes.Fake) -> CudaDriver:
    return CudaDriver()
