"""Kernels are launched for a trial as decode would, and leave nothing behind."""

import math

import pytest

from tokenix.drivers.cuda.arguments import unpack
from tokenix.drivers.cuda.driver import CudaDriver, CudaError, OutOfDeviceMemory
from tokenix.drivers.cuda.kernels import registry
from tokenix.drivers.cuda.kernels.abi import APPEND, DECODE
from tokenix.drivers.cuda.kernels.registry import Kernel, Recipe, Shape
from tokenix.drivers.cuda.trial import (
    CONTEXT,
    ROUNDS,
    ROWS,
    SPLITS,
    TIMES,
    WARM,
    Trial,
    choose_kernels,
)

SHAPE = Shape("bf16", "bf16", 2, 1, 64)


@pytest.fixture
def driver(fake):
    driver = CudaDriver()
    yield driver
    driver.close()


@pytest.mark.parametrize("op", [APPEND, DECODE], ids=lambda op: op.name)
def test_a_kernel_is_launched_with_memory_of_its_own(driver, fake, op):
    def grid(rows, splits=1):
        return rows, splits, 1

    trial = Trial(driver, SHAPE)
    with fake.watched() as seen:
        assert trial.seconds(Kernel(op, "cpp", b"image", 128, grid)) >= 0
    trial.close()
    assert len(seen) == WARM + ROUNDS * TIMES
    symbol, blocks, packed = seen[0]
    values = unpack(op, packed)
    assert (symbol, blocks) == (op.name, (ROWS, SPLITS, 1))
    addresses = [values[name] for name, kind in op.args if kind.endswith("*")]
    assert len(set(addresses)) == len(addresses) and min(addresses) > 0
    assert values["frame_words"] == 2 * 16 * 32 and values["max_pages"] * 16 == CONTEXT
    assert (fake.used_bytes, fake.failures) == (0, [])


def test_without_room_for_it_nothing_is_kept(driver, fake):
    fake.machine(total_bytes=1 << 16)
    with pytest.raises(OutOfDeviceMemory):
        Trial(driver, SHAPE)
    assert fake.used_bytes == 0


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuFuncSetAttribute", "cuLaunchKernel"])
def test_a_kernel_that_the_gpu_refuses_is_the_slowest(driver, fake, call):
    kernel = Kernel(DECODE, "mma", b"image", 128, lambda rows, splits=1: (rows, 1, 1), 64 << 10)
    trial = Trial(driver, SHAPE)
    fake.fail(call, 1)
    with fake.watched():
        assert trial.seconds(kernel) == math.inf
        assert trial.seconds(kernel) < 1
    fake.fail(call, 700)
    with pytest.raises(CudaError, match="lost"):
        trial.seconds(kernel)
    trial.close()
    assert fake.used_bytes == 0


def test_of_several_kernels_one_is_taken_and_nothing_kept(driver, fake, monkeypatch, tmp_path):
    def offer(technique):
        def compile(arch):
            return technique.encode()

        return Recipe(DECODE, technique, "", compile, 128, lambda rows, splits=1: (rows, splits, 1))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    offers = {"decode": lambda shape: [offer("one"), offer("other")]}
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", offers)
    with fake.watched() as seen:
        chosen = choose_kernels(driver, SHAPE)
    assert chosen["decode"].image in (b"one", b"other")
    assert len(seen) == 2 * (WARM + ROUNDS * TIMES) and fake.used_bytes == 0
