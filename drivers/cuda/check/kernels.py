"""Kernels on the device: are they right, and how near to the memory's rate is attention."""

import shutil
import subprocess
import sys
from typing import Any

from tokenix.drivers.cuda.arena import FrameArena
from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.check.case import WRITTEN, Case
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels.abi import COMBINE, DECODE, PAGE_TOKENS, SPLIT_TOKENS
from tokenix.drivers.cuda.kernels.registry import Shape

SHAPES = (
    Shape("bf16", "bf16", 32, 8, 128),
    Shape("f16", "f16", 32, 8, 128),
    Shape("bf16", "bf16", 9, 3, 64),
    Shape("f32", "f32", 9, 3, 64),
    Shape("f16", "bf16", 16, 2, 128, bias=True),
    Shape("bf16", "bf16", 16, 8, 128, norm=True),
    Shape("bf16", "bf16", 16, 1, 256),
    Shape("bf16", "bf16", 12, 4, 96),
    Shape("f16", "f16", 8, 2, 80),
)


def check_kernels(report: Report, driver: CudaDriver, setup: Setup, seeds: int) -> None:
    """Every op of every shape against its oracle, on fresh random numbers."""
    report.section("kernels against float64 (1 is the bound)")
    for shape in setup.shapes:
        launcher = setup.launcher(driver, shape)
        for op in WRITTEN:
            if op not in launcher:
                continue
            worst = 0.0
            for seed in range(seeds):
                case = Case(shape, seed)
                if op == "combine":
                    case.take(case.expect("decode"))
                worst = max(worst, case.error(op, case.compute(op, driver, launcher)))
            name = f"{op} {shape.kv} {shape.x} {shape.heads}/{shape.kv_heads} heads {shape.dim}"
            report.add(name, worst, most=1.0)
        setup.close(driver, launcher)


def check_sanitizer(report: Report) -> None:
    """A small case under compute-sanitizer, if the toolkit is there."""
    report.section("compute-sanitizer")
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        report.add("memcheck", "not installed here")
        return
    command = [tool, "--error-exitcode", "9", sys.executable, "-m", "tokenix.drivers.cuda.check"]
    done = subprocess.run(
        [*command, "--only", "kernels", "--quick"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    report.add("memcheck exit code", done.returncode, most=0)


def measure_memory(driver: CudaDriver, stream: Any, size: int, times: int) -> float:
    """Bytes per second that a copy within the device reads and writes, both counted."""
    source, to = driver.alloc(size), driver.alloc(size)
    driver.fill(source, 0, size // 4, stream)
    driver.copy(to, source, size, stream)
    with driver.timed(stream) as seconds:
        for _ in range(times):
            driver.copy(to, source, size, stream)
    driver.free(source)
    driver.free(to)
    return 2 * size * times / seconds[0]


def check_attention(report: Report, driver: CudaDriver, setup: Setup) -> None:
    """Bytes of K and V that decode attention reads in a second, and its part of a copy's rate."""
    report.section("decode attention (first shape)")
    shape = setup.shapes[0]
    launcher = setup.launcher(driver, shape)
    rate = measure_memory(driver, launcher.stream, setup.copy_bytes, setup.times)
    report.add("copy within the device, read and write", rate / 1e9, "GB/s")
    frames = setup.frame_shape(shape)
    for batch, context in setup.attention:
        pages = -(-context // PAGE_TOKENS)
        arena = FrameArena(driver, frames, batch * pages)
        driver.fill(arena.address, 0, arena.frames * frames.stride_bytes // 4, launcher.stream)
        block, total, held = _decode(driver, setup, shape, arena, batch, context)
        splits = -(-context // SPLIT_TOKENS)
        blocks = [(block, batch), (total, batch)]
        for each, rows in blocks:
            launcher.launch(each, rows, splits)
        with driver.timed(launcher.stream) as seconds:
            for _ in range(setup.times):
                for each, rows in blocks:
                    launcher.launch(each, rows, splits)
        driver.sync(launcher.stream)
        used = 4 * frames.layer_words * batch * pages * setup.times / seconds[0]
        name = f"batch {batch}, context {context}"
        report.add(name, used / 1e9, "GB/s")
        least = 0.8 if batch >= 32 and context >= 1024 and setup.real else None
        report.add(f"{name}: of the copy's rate", used / rate, least=least)
        for address in held:
            driver.free(address)
        arena.close()
    setup.close(driver, launcher)


def _decode(
    driver: CudaDriver, setup: Setup, shape: Shape, arena: FrameArena, batch: int, context: int
) -> tuple[Block, Block, list[int]]:
    """Arguments of a decode and its combine over all frames, and the memory they have."""
    import numpy as np

    pages, splits = -(-context // PAGE_TOKENS), -(-context // SPLIT_TOKENS)
    items = batch * shape.heads
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "tables": rng.permutation(batch * pages).astype(np.int32),
        "slots": np.arange(batch, dtype=np.int32),
        "positions": np.full(batch, context - 1, np.int32),
        "q": rng.standard_normal(items * shape.dim).astype(np.float32),
    }
    held = {name: driver.alloc(array.nbytes) for name, array in arrays.items()}
    for name, array in arrays.items():
        driver.upload(held[name], array.ctypes.data, array.nbytes)
    sizes = {"parts": 4 * items * splits * shape.dim, "stats": 8 * items * splits}
    held |= {name: driver.alloc(size) for name, size in sizes.items()}
    held["out"] = driver.alloc(4 * items * shape.dim)
    values: dict[str, float] = {
        **held,
        "arena": arena.address,
        "layer_at": 0,
        "frame_words": arena.shape.stride_bytes // 4,
        "kv_heads": shape.kv_heads,
        "max_pages": pages,
        "split_tokens": SPLIT_TOKENS,
        "splits": splits,
        "scale": 0.1,
        "items": items,
        "heads": shape.heads,
    }
    blocks = [Block(op, {name: values[name] for name, _ in op.args}) for op in (DECODE, COMBINE)]
    return blocks[0], blocks[1], list(held.values())
