"""Kernels on the device: are they right, and how near to the memory's rate is attention."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenix.drivers.cuda.arena import FrameArena
from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.check.case import WRITTEN, Case
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels.abi import COMBINE, DECODE, PAGE_TOKENS, SPLIT_TOKENS
from tokenix.drivers.cuda.kernels.registry import Shape
from tokenix.drivers.cuda.launcher import Launcher

TOOLS = ("memcheck", "racecheck", "synccheck")
"""Of compute-sanitizer."""

SANITIZER_S = 90.0
"""At most, for all of them at once."""


def check_kernels(
    report: Report, driver: CudaDriver, setup: Setup, op: str, seeds: Sequence[int]
) -> None:
    """Every kernel of an op, for every shape, against its oracle on random numbers."""
    report.section(f"{op} against float64 (1 is the bound)")
    stream = driver.stream()
    for shape in setup.shapes:
        for technique, make in setup.offers_of(driver, shape, op):
            name = f"{technique} {shape.kv} {shape.x} {shape.heads}/{shape.kv_heads} x {shape.dim}"
            name += " bias" * shape.bias + " norm" * shape.norm
            with report.row(name):
                with contextlib.closing(Launcher(driver, stream, {op: make()})) as launcher:
                    errors = [compare(Case(shape, seed), op, driver, launcher) for seed in seeds]
                report.add(name, max(errors), most=1.0)
    driver.destroy_stream(stream)


def compare(case: Case, op: str, driver: CudaDriver, launcher: Launcher) -> float:
    """How far a kernel's results are from the oracle's; 1 is the bound."""
    if op == "combine":
        case.take(case.expect("decode"))
    return case.error(op, case.compute(op, driver, launcher))


def check_sanitizer(report: Report, seed: int) -> None:
    """A small case of every kernel under compute-sanitizer, if the toolkit is there."""
    report.section("compute-sanitizer")
    toolkits = sorted(map(str, Path("/usr/local").glob("cuda*/bin")), reverse=True)
    search = os.pathsep.join([os.environ.get("PATH", ""), *toolkits])
    program = shutil.which("compute-sanitizer", path=search)
    if program is None:
        report.add("compute-sanitizer", "not installed here")
        return
    check = [sys.executable, "-m", "tokenix.drivers.cuda.check", "--here", "--quick"]
    check += ["--seed", str(seed), *(word for op in WRITTEN for word in ("--only", op))]
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        runs = {
            tool: pool.submit(
                subprocess.run, [program, "--tool", tool, "--error-exitcode", "9", *check],
                capture_output=True, text=True, timeout=SANITIZER_S, check=False,
            )
            for tool in TOOLS
        }  # fmt: skip
    for tool, run in runs.items():
        with report.row(tool):
            done = run.result()
            said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
            report.add(
                f"{tool}, exit code", done.returncode, said[-1][10:60] if said else "", most=0
            )


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
    """Bytes of K and V that each decode attention reads in a second, and the best one's part of a
    copy's rate."""
    report.section("decode attention (first shape)")
    shape, stream = setup.shapes[0], driver.stream()
    rate = measure_memory(driver, stream, setup.copy_bytes, setup.times)
    report.add("copy within the device, read and write", rate / 1e9, "GB/s")
    ((_, make_combine),) = setup.offers_of(driver, shape, "combine")
    launchers: dict[str, Launcher] = {}
    for technique, make in setup.offers_of(driver, shape, "decode"):
        with report.row(technique):
            kernels = {"decode": make(), "combine": make_combine()}
            launchers[technique] = Launcher(driver, stream, kernels)
    for batch, context in setup.attention:
        name = f"batch {batch}, context {context}"
        rates: dict[str, float] = {}
        with report.row(name), contextlib.ExitStack() as held:
            blocks, used = _decode(driver, setup, shape, batch, context, stream, held)
            for technique, launcher in launchers.items():
                seconds = _seconds(driver, launcher, blocks, batch, context, setup.times)
                rates[technique] = used / seconds
                report.add(f"{name}, {technique}", rates[technique] / 1e9, "GB/s")
            least = 0.8 if batch >= 32 and context >= 1024 and setup.real else None
            best = max(rates.values()) / rate
            report.add(f"{name}: the best, of the copy's rate", best, least=least)
    for launcher in launchers.values():
        launcher.close()
    driver.destroy_stream(stream)


def _seconds(
    driver: CudaDriver, launcher: Launcher, blocks: Sequence[Block], batch: int, context: int,
    times: int,
) -> float:  # fmt: skip
    """Of one decode and its combine."""
    splits = -(-context // SPLIT_TOKENS)
    for block in blocks:
        launcher.launch(block, batch, splits)
    with driver.timed(launcher.stream) as seconds:
        for _ in range(times):
            for block in blocks:
                launcher.launch(block, batch, splits)
    return seconds[0] / times


def _decode(
    driver: CudaDriver, setup: Setup, shape: Shape, batch: int, context: int, stream: Any,
    held: contextlib.ExitStack,
) -> tuple[list[Block], int]:  # fmt: skip
    """Arguments of a decode and its combine over all frames of an arena of one layer, and the bytes
    of keys and values that it reads; `held` gives the memory back."""
    import numpy as np

    pages, splits = -(-context // PAGE_TOKENS), -(-context // SPLIT_TOKENS)
    items = batch * shape.heads
    frames = setup.frame_shape(shape)
    arena = FrameArena(driver, frames, batch * pages)
    held.callback(arena.close)
    driver.fill(arena.address, 0, arena.frames * frames.stride_bytes // 4, stream)
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "tables": rng.permutation(batch * pages).astype(np.int32),
        "slots": np.arange(batch, dtype=np.int32),
        "positions": np.full(batch, context - 1, np.int32),
        "q": rng.standard_normal(items * shape.dim).astype(np.float32),
    }
    sizes = {name: array.nbytes for name, array in arrays.items()}
    sizes |= {"parts": 4 * items * splits * shape.dim, "stats": 8 * items * splits}
    sizes["out"] = 4 * items * shape.dim
    places: dict[str, int] = {}
    for name, size in sizes.items():
        places[name] = driver.alloc(size)
        held.callback(driver.free, places[name])
    for name, array in arrays.items():
        driver.upload(places[name], array.ctypes.data, array.nbytes)
    held.callback(driver.sync, stream)  # before anything is given back
    values: dict[str, float] = {
        **places,
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
    return blocks, 4 * frames.layer_words * batch * pages
