"""A model with random weights on the device: decode steps against the roofline and against plain
torch, prefill, and pages that leave and come back while others decode."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.check.bench import Bench
from tokenix.drivers.cuda.check.beside import check_beside
from tokenix.drivers.cuda.check.kernels import measure_memory
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.drivers.cuda.check.steptime import check_steptime
from tokenix.drivers.cuda.device import CudaDevice
from tokenix.drivers.cuda.hostmemory import pinned_address
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.matrix import multiply
from tokenix.drivers.cuda.sizing import count_bytes
from tokenix.drivers.ops import (
    CopyIn,
    CopyOut,
    Decodes,
    Forward,
    PageIn,
    PageOut,
    SampleSpec,
    TableDelta,
    drawn_by,
)
from tokenix.drivers.sampling import SamplingParams
from tokenix.mm.ids import Pfn, Pid, Slot, Ticket
from tokenix.models.config import ModelConfig
from tokenix.models.tensor_names import expected_shapes

if TYPE_CHECKING:
    import torch

STEPS, WARM = 14, 4
"""Of one figure; the first ones are left out: they warm up and capture."""

PROFILED = (1, 32, 256)
"""Batches of which it is told where the time goes."""


class Noise:
    """Keeps `models.weights.Weights`: one block of random numbers again and again, and the same
    array for all tensors of a shape, as making billions would take minutes."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = expected_shapes(config)
        self._block = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
        self._made: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def names(self) -> list[str]:
        return list(self._shapes)

    def kind(self, name: str) -> str:
        return "F32"

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        shape = self._shapes[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        if shape not in self._made:
            block = self._block * np.float32(1 / math.sqrt(shape[1]))
            self._made[shape] = np.resize(block, shape)
        return self._made[shape]

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        tensor = self.float32(name)
        return "F32", tensor.reshape(tensor.shape[0], -1).view(np.uint8)


def check_model(report: Report, setup: Setup) -> None:
    """All figures of the model."""
    report.section(setup.model.name)
    pages = setup.context // PAGE_TOKENS + 1
    swapped = -(-setup.swapped_tokens // PAGE_TOKENS)
    frames = max(setup.batches) * pages + 2 * swapped
    began = time.perf_counter()
    device = CudaDevice(
        setup.model, Noise(setup.model), frames=frames, host_slots=2 * swapped,
        kv_dtype=setup.kind_kv, dense=setup.kind, dense_by=setup.dense_by,
        kernels_by=setup.kernels_by,
    )  # fmt: skip
    try:
        report.add("opened in", time.perf_counter() - began, "s")
        driver, stream = device._driver, device._stream
        driver.enter()
        arena = device._arena
        words = arena.frames * arena.shape.stride_bytes // 4
        driver.fill(arena.address, 0, words, stream)
        driver.sync(stream)
        rate = measure_memory(driver, stream, min(setup.copy_bytes, 1 << 30), setup.times)
        report.add("copy within the device, read and write", rate / 1e9, "GB/s")
        products = measure_products(device._layers._weights.embed, setup.product, setup.times)
        report.add(f"products of {setup.product} x {setup.product}", products / 1e12, "TFLOP/s")
        bench = Bench(device)
        steps: dict[int, float] = {}
        for batch in setup.batches:
            with report.row(f"decode, batch {batch}"):
                steps[batch] = time_decode(bench, setup, pages, batch)
                _compare(report, setup, rate, products, batch, steps[batch])
        refused = device._step.refused
        report.add("steps that are not captured", int(bool(refused)), refused, most=0)
        report.add("prefill", device.info().prefill_tokens_per_s, "tokens/s")
        with report.row("swap"):
            _swap(report, bench, setup, swapped, steps)
        with report.row("plain torch"):
            _plain_torch(report, device, setup, steps)
        for batch in sorted({*PROFILED} & {*steps}):
            name = f"decode, batch {batch}"
            with report.row(f"{name}: kernels of a step"):
                run = partial(time_decode, bench, setup, pages, batch)
                check_steptime(report, name, STEPS, run)
    finally:
        device.close()


def time_decode(bench: Bench, setup: Setup, pages: int, batch: int) -> float:
    """The median step of a batch at the context, in seconds; as in the kernel, the next pass is
    there before one has ended, and finds its tokens on the device."""
    pids = [Pid(1000 * batch + i) for i in range(batch)]
    tables = tuple(
        TableDelta(pid, 0, tuple(Pfn(i * pages + page) for page in range(pages)))
        for i, pid in enumerate(pids)
    )
    spec = SampleSpec(SamplingParams(), (), 0)
    ends: list[float] = []
    flying: deque[Ticket] = deque()
    for step in range(STEPS):
        starts = [setup.context - STEPS + step] * batch
        tokens = [1] * batch if step == 0 else [drawn_by(row) for row in range(batch)]
        decodes = Decodes(pids, starts, tokens, [spec] * batch)
        flying.append(bench.ticket())
        bench.start(Forward(flying[-1], (), () if step else tables, decodes=decodes))
        if step > 0:
            bench.finish(flying.popleft())
            ends.append(time.perf_counter())
    bench.finish(flying.popleft())
    ends.append(time.perf_counter())
    bench.start(Forward(bench.ticket(), (), (), tuple(pids)))
    return float(np.median(np.diff(ends)[WARM - 1 :]))


def measure_products(like: "torch.Tensor", size: int, times: int) -> float:
    """Operations per second of a large product of two matrices, of the dtype of `like`."""
    import torch

    a = torch.randn(size, size, device=like.device).to(like.dtype)
    out = torch.mm(a, a)
    out[0, 0].item()  # waits
    began = time.perf_counter()
    for _ in range(times):
        torch.mm(a, a, out=out)
    out[0, 0].item()
    return 2 * size**3 * times / (time.perf_counter() - began)


def _compare(
    report: Report, setup: Setup, rate: float, products: float, batch: int, step_s: float
) -> None:
    """A step, and how it stands to the roofline: what the memory needs for keys and values, and
    for weights, or their products if those take longer."""
    config, width = setup.model, 4 if setup.kind == "f32" else 2
    weights = count_bytes(config, setup.kind) - width * _embedding(config)
    kv = batch * setup.context * 2 * config.layers * config.kv_heads * config.head_dim * width
    floor_s = kv / rate + max(weights / rate, 2 * batch * weights / width / products)
    report.add(f"decode, batch {batch}", step_s * 1e3, "ms")
    report.add(f"decode, batch {batch}", batch / step_s, "tokens/s")
    report.add(f"decode, batch {batch}: times what memory needs", step_s * rate / (weights + kv))
    most = 1.35 if setup.real and batch >= 32 else None
    report.add(f"decode, batch {batch}: times the roofline", step_s / floor_s, most=most)


def _embedding(config: ModelConfig) -> int:
    """Numbers that a step reads a few rows of only."""
    return 0 if config.tied_embeddings else config.vocab_tokens * config.hidden


def _swap(report: Report, bench: Bench, setup: Setup, pages: int, steps: dict[int, float]) -> None:
    """One stream out and in, alone, then both ways at once; beside copies of the link alone."""
    device = bench.device
    first = device._arena.frames - 2 * pages
    out = tuple(PageOut(Pfn(first + i), Slot(i), 1) for i in range(pages))
    beside = tuple(PageOut(Pfn(first + i), Slot(pages + i), 1) for i in range(pages))
    back = tuple(PageIn(Slot(i), 1, Pfn(first + pages + i)) for i in range(pages))
    size = pages * device._arena.shape.stride_bytes

    def best(*makes: Callable[[], CopyIn | CopyOut]) -> float:
        return min(bench.copy(*(make() for make in makes)) for _ in range(3))

    def leave() -> CopyOut:
        return CopyOut(bench.ticket(), out)

    def leave_beside() -> CopyOut:
        return CopyOut(bench.ticket(), beside)

    def come() -> CopyIn:
        return CopyIn(bench.ticket(), back)

    link_out_s, link_in_s = measure_link(device, first, size)
    best(leave_beside)  # slots are touched
    name = f"{setup.swapped_tokens} tokens"
    out_s, in_s, both_s = best(leave), best(come), best(leave_beside, come)
    for way, seconds, link_s in (("out", out_s, link_out_s), ("in", in_s, link_in_s)):
        report.add(f"{name} {way}", seconds * 1e3, "ms")
        report.add(f"{name} {way}", size / seconds / 1e9, "GB/s")
        least = 0.9 if setup.real else None
        report.add(f"{name} {way}: of the link's rate", link_s / seconds, least=least)
    resumed = in_s / link_in_s
    report.add("resume: times the link's", resumed, most=1.3 if setup.real else None)
    least = 1.6 if setup.real else None
    report.add("both ways, of the slower one", 2 * max(out_s, in_s) / both_s, least=least)
    _layers_in(report, device, setup, first, pages, link_in_s)
    last = out[-1:]
    tail_s = [bench.copy(CopyOut(bench.ticket(), last)) for _ in range(20)]
    most = min(steps.values()) * 1e3 if setup.real and steps else None
    report.add("the last page of a preempted stream, p95", _p95(tail_s) * 1e3, "ms", most=most)
    check_beside(report, bench, back, setup.swapped_tokens // 4, setup.real)


def measure_link(device: CudaDevice, first: int, size: int) -> tuple[float, float]:
    """Seconds (out, in) of one plain copy between frames and slots."""
    driver, stream = device._driver, device._stream
    frames, slots = device._arena.at(first), pinned_address(device._slots.memory)
    found: list[float] = []
    for copy, to, source in (
        (driver.copy_out, slots, frames), (driver.copy_in, frames, slots),
    ):  # fmt: skip
        times = []
        for _ in range(3):
            began = time.perf_counter()
            copy(to, source, size, stream)
            driver.sync(stream)
            times.append(time.perf_counter() - began)
        found.append(min(times))
    return found[0], found[1]


def _layers_in(
    report: Report, device: CudaDevice, setup: Setup, first: int, pages: int, link_s: float
) -> None:
    """What it costs to bring a stream layer by layer (the driver brings several at a time), of
    neighbouring pages and of pages that are none; and which prompt takes as long as the load."""
    driver, arena, stream = device._driver, device._arena, device._stream
    stride, layer = arena.shape.stride_bytes, 4 * arena.shape.layer_words
    frames, slots = arena.at(first), pinned_address(device._slots.memory)
    for name, runs, each in (("neighbours", 1, pages), ("page by page", pages, 1)):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            for at in range(0, arena.shape.layers * layer, layer):
                for run in range(runs):
                    place = at + run * stride
                    driver.copy_in_rows(frames + place, slots + place, layer, each, stride, stream)
            driver.sync(stream)
            times.append(time.perf_counter() - began)
        report.add(f"in by layers, {name}: times the link's", min(times) / link_s)
    covered = link_s * device.info().prefill_tokens_per_s
    report.add("a prompt that takes as long as the load", covered, "tokens")


def _p95(times: Sequence[float]) -> float:
    return float(np.percentile(times, 95))


def _plain_torch(report: Report, device: CudaDevice, setup: Setup, steps: dict[int, float]) -> None:
    """The same weights in a plain loop of torch: contiguous keys and values, its own attention."""
    import torch
    from torch.nn import functional

    config, weights = setup.model, device._layers._weights
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    where: dict[str, Any] = {"dtype": weights.embed.dtype, "device": weights.embed.device}

    def step(x: Any, keys: Any, values: Any) -> None:
        for layer in weights.layers:
            normed = functional.rms_norm(x, layer.attn_norm.shape, layer.attn_norm, config.rms_eps)
            q = multiply(normed, layer.qkv)[:, : heads * dim].view(-1, heads, 1, dim)
            mixed = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            x = x + multiply(mixed.reshape(len(x), -1), layer.o)
            normed = functional.rms_norm(x, layer.ffn_norm.shape, layer.ffn_norm, config.rms_eps)
            gate, up = multiply(normed, layer.gate_up).chunk(2, dim=1)
            x = x + multiply(functional.silu(gate) * up, layer.down)
        (x @ weights.head.t()).argmax(dim=1).tolist()

    for batch, ours_s in steps.items():
        x = torch.zeros(batch, config.hidden, **where)
        keys, values = (torch.zeros(batch, kv_heads, setup.context, dim, **where) for _ in range(2))
        times: list[float] = []
        with torch.no_grad():
            for _ in range(5):
                began = time.perf_counter()
                step(x, keys, values)
                times.append(time.perf_counter() - began)
        theirs_s = min(times)
        report.add(f"plain torch and SDPA, batch {batch}", theirs_s * 1e3, "ms")
        report.add(f"plain torch, batch {batch}: times ours", theirs_s / ours_s)
