"""The registry of drivers: each test in this folder runs once on each of them."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count

import pytest

from tokenix.drivers.device import Device
from tokenix.drivers.sim import SimDevice
from tokenix.tests.device.machine import Harness, Machine


def sim() -> Harness:
    def violations(device: Device) -> list[str]:
        assert isinstance(device, SimDevice)
        return device.violations

    def corrupt(device: Device, block: int) -> None:
        assert isinstance(device, SimDevice)
        device.disk.corrupt(block)

    return Harness(
        name="sim",
        vocab=251,
        page_tokens=4,
        make=lambda frames, slots, page: SimDevice(
            frames, slots, page, vocab=251, depth=2, covers_loads=True
        ),
        virtual=True,
        violations=violations,
        corrupt=corrupt,
    )


def cpu() -> Harness:
    for module in ("numpy", "numba", "tokenix.drivers.cpu.device"):
        pytest.importorskip(module)
    from tokenix.drivers.cpu.device import CpuDevice
    from tokenix.tests.device.swap import flip_bit
    from tokenix.tests.device.tiny import RandomWeights, tiny_config

    config = tiny_config()
    weights = RandomWeights(config)

    def corrupt(device: Device, block: int) -> None:
        assert isinstance(device, CpuDevice)
        flip_bit(device._disk._file, block)

    return Harness(
        name="cpu",
        vocab=config.vocab_tokens,
        page_tokens=16,
        make=lambda frames, slots, page: CpuDevice(
            config, weights, frames=frames, host_slots=slots, page_tokens=page, threads=1
        ),
        corrupt=corrupt,
    )


def cuda() -> Harness:
    """On a fake GPU, whose streams run in an order that is drawn anew for each device."""
    for module in ("numpy", "torch", "numba.cuda", "cuda.bindings.driver"):
        pytest.importorskip(module)
    from tokenix.tests.cuda import rig
    from tokenix.tests.device.swap import flip_bit

    seeds = count(1)

    def make(frames: int, slots: int, page: int) -> Device:
        return rig.device(seed=next(seeds), frames=frames, host_slots=slots, page_tokens=page)

    def corrupt(device: Device, block: int) -> None:
        flip_bit(device._disk._file, block)  # type: ignore[attr-defined]

    return Harness(
        name="cuda",
        vocab=rig.TINY.vocab_tokens,
        page_tokens=16,
        make=make,
        tolerance=1e-4,
        violations=lambda device: rig.failures(),
        corrupt=corrupt,
    )


DRIVERS: dict[str, Callable[[], Harness]] = {"sim": sim, "cuda": cuda}
if find_spec("tokenix.drivers.cpu.device") is not None:
    DRIVERS["cpu"] = cpu


@pytest.fixture(scope="session", params=DRIVERS)
def harness(request: pytest.FixtureRequest) -> Harness:
    return DRIVERS[request.param]()


@pytest.fixture
def machine(harness: Harness) -> Iterator[Machine]:
    """A device of 32 frames and 16 host slots. A breach of the contract fails the test."""
    machine = Machine(harness)
    yield machine
    machine.close()
