"""Booting with driver='cuda': what a machine without a GPU is told, and sizes that nobody gave."""

import errno
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tokenix
from tokenix.drivers.cuda import device as devices
from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.kernels import registry
from tokenix.drivers.cuda.kernels.abi import DECODE
from tokenix.drivers.cuda.kernels.registry import Recipe
from tokenix.drivers.cuda.matrix import Fp8Matrix
from tokenix.drivers.cuda.ranks.device import ParallelDevice
from tokenix.drivers.cuda.sizing import (
    _host_bytes,
    choose_frames,
    choose_slots,
    count_bytes,
)
from tokenix.tests.cuda import fake as fakes
from tokenix.tests.cuda import rig
from tokenix.tests.device.tiny import RandomWeights
from tokenix.tests.syscalls.conftest import PATIENT

assert issubclass(ParallelDevice, devices.CudaDevice)
"""Loaded here: tests put another thing in the place of the class that it is made of."""


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so():
    code = "import tokenix; tokenix.boot('smollm2', driver='cuda')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("OSError: [Errno 19] no NVIDIA driver"), last
    assert "driver='cpu'" in last


def test_drivers_that_there_are_not():
    with pytest.raises(OSError, match="no driver 'tpu'; there are cpu and cuda") as raised:
        tokenix.boot("smollm2", driver="tpu")
    assert raised.value.errno == errno.ENODEV


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"page_tokens": 32}, "pages of 16 tokens"),
        ({"device_pages": 8}, r"no decode kernel .*: too old a compiler; boot with driver='cpu'"),
        ({}, r"model Smollm2 .* needs 1\.\d GiB of the GPU, and 0\.2 GiB are free"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fake, monkeypatch, tmp_path, options, words):
    def refuse(arch):
        raise RuntimeError("too old a compiler")

    refused = Recipe(DECODE, "numba", "", refuse, 128, lambda rows, splits=1: (rows, splits, 1))
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", {"decode": lambda shape: [refused]})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake.machine(total_bytes=1 << 28)
    monkeypatch.setattr(devices, "CudaDevice", partial(devices.CudaDevice, dense_by=fakes.CpuDense))
    with pytest.raises(OSError, match=words):
        tokenix.boot("smollm2", driver="cuda", **options)
    assert fake.used_bytes == 0


def test_pages_that_do_not_fit_are_counted(fake, monkeypatch):
    twins = partial(devices.CudaDevice, dense_by=fakes.CpuDense, kernels_by=fakes.twin_kernels)
    monkeypatch.setattr(devices, "CudaDevice", twins)
    with pytest.raises(OSError, match=r"device_pages 9999 and host_pages 8 do not fit .*fewer"):
        tokenix.boot("smollm2", driver="cuda", device_pages=9999, host_pages=8)
    assert fake.used_bytes == 0


@pytest.mark.parametrize("call", ["cuStreamCreate", "cuMemAlloc_v2"])
def test_a_gpu_that_fails_at_boot_is_told_in_a_line(fake, monkeypatch, call):
    twins = partial(devices.CudaDevice, dense_by=fakes.CpuDense, kernels_by=fakes.twin_kernels)
    monkeypatch.setattr(devices, "CudaDevice", twins)
    fake.fail(call, 999)
    with pytest.raises(OSError, match=r"the GPU cannot be opened: .*999.*driver='cpu'") as raised:
        tokenix.boot("smollm2", driver="cuda", device_pages=8, host_pages=8)
    assert raised.value.errno == errno.EIO and len(str(raised.value).splitlines()) == 1
    assert (fake.used_bytes, fake.handles) == (0, 0)


def test_pages_fill_what_the_weights_leave(fake):
    shape = FrameShape.of(rig.TINY, 16, "bf16")
    fake.machine(total_bytes=3 << 30)
    frames = choose_frames(rig.TINY, rig.WEIGHTS, shape, "bf16")
    used = frames * shape.stride_bytes + count_bytes(rig.TINY, "bf16") + (1 << 30)
    assert 0.89 < used / (3 << 30) <= 0.9
    assert choose_slots(2, shape) == 8
    assert choose_slots(1 << 40, shape) < 1 << 40


@pytest.mark.parametrize(
    ("meminfo", "limit", "free"),
    [
        ("MemTotal: 9 kB\nMemAvailable: 3000 kB\n", "max\n", 3000 << 10),
        ("MemTotal: 9 kB\nMemAvailable: 3000 kB\n", "1000000\n", 1_000_000),
        ("MemTotal: 9 kB\n", "2000000\n", 2_000_000),
    ],
)
def test_no_more_is_pinned_than_is_free(tmp_path, meminfo, limit, free):
    for name, text in (("meminfo", meminfo), ("limit", limit)):
        (tmp_path / name).write_text(text)
    assert _host_bytes(tmp_path / "meminfo", tmp_path / "limit") == free
    assert 1 << 20 < _host_bytes(tmp_path / "none", tmp_path / "none") >= _host_bytes()


def test_weights_are_counted(fake):
    tensors = rig.WEIGHTS
    matrices = [tensors.float32(name) for name in tensors.names()]
    numbers = sum(m.size for m in matrices if m.ndim == 2)
    assert count_bytes(rig.TINY, "bf16") == 2 * numbers and count_bytes(rig.TINY, "f32") == (
        4 * numbers
    )


def test_weights_in_8_bits_leave_more_pages(fake):
    """As they are on the device: in 8 bits only where the GPU, and a matrix, allow it."""
    config = replace(rig.TINY, layers=4)
    weights = RandomWeights(config)
    bench = rig.device(config=config, weights=weights, dense="bf16", kv_dtype="bf16", fp8="all")
    bytes_of = [
        part.nbytes
        for layer in bench._layers._weights.layers
        for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)
        for part in ((matrix.codes, matrix.scales) if isinstance(matrix, Fp8Matrix) else (matrix,))
    ]
    others = bench._layers._weights.embed.nbytes + bench._layers._weights.head.nbytes
    bench.close()
    assert count_bytes(config, "bf16", fp8=True) == sum(bytes_of) + others
    shape = FrameShape.of(config, 16, "bf16")
    fake.machine(total_bytes=3 << 30)
    wide, narrow, refused = (
        choose_frames(config, weights, shape, dense, fp8)
        for dense, fp8 in (("bf16", "never"), ("bf16", "all"), ("f16", "all"))
    )
    saved = count_bytes(config, "bf16") - count_bytes(config, "bf16", fp8=True)
    assert (
        refused == wide and abs((narrow - wide) * shape.stride_bytes - saved) < shape.stride_bytes
    )


def test_the_shipped_model_serves(fake, monkeypatch):
    twins = partial(
        devices.CudaDevice, dense="f32", dense_by=fakes.CpuDense, kernels_by=fakes.twin_kernels
    )
    monkeypatch.setattr(devices, "CudaDevice", twins)
    with tokenix.boot(
        "smollm2", driver="cuda", device_pages=12, host_pages=12, tunables=PATIENT
    ) as k:
        pid = k.spawn("One word: the capital of France?", max_tokens=8)
        assert "Paris" in "".join(k.stream(pid))
    assert (fake.used_bytes, rig.failures()) == (0, [])
