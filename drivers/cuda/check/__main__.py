"""`python -m tokenix.drivers.cuda.check`: a short table, and JSON. Exit code 1 if a bound is
missed, 2 without a GPU.

Each part runs in a process of its own: a GPU that is lost to it, or a call that hangs, ends that
part alone, and what it has found until then is told.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenix.drivers.cuda.check.report import Report, in_a_line, read_lines
from tokenix.drivers.cuda.probe import Gpu, find_gpu

if TYPE_CHECKING:
    from tokenix.drivers.cuda.check.setup import Setup

PACKAGES = (
    "torch", "cuda-bindings", "numba", "numba-cuda", "numpy", "triton", "nvidia-nvvm",
    "nvidia-nvjitlink", "nvidia-cuda-nvrtc",
)  # fmt: skip
OPS = ("append", "decode", "combine", "prefill", "gate", "sample")
PARTS = (
    *OPS, "attention", "link", "launches", "numbers", "model", "whole", "ranks", "overload",
    "sanitizer",
)  # fmt: skip
"""In order: the last ones are what is left out where compilers are slow."""

LIMIT_S = 480.0
"""Of all parts."""
PART_S = 150.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tokenix.drivers.cuda.check")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="the least that runs every part")
    parser.add_argument("--json", type=Path, default=None, help="file for all figures")
    parser.add_argument("--seed", type=int, default=None, help="of random inputs; else a new one")
    parser.add_argument("--here", action="store_true", help="all parts in this process")
    options = parser.parse_args(arguments)
    try:
        gpu = find_gpu()
    except OSError as why:
        sys.stderr.write(f"gpu-check: {why.strerror}\n")
        return 2
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    parts = options.only or PARTS
    report = Report(saved=options.json)
    if options.here:
        try:
            from tokenix.drivers.cuda.check.setup import SHAPES, Setup
        except ImportError as error:  # numba for another numpy, say
            report.fail("imports", in_a_line(error))
            return 1
        run(report, gpu, parts, seed, Setup(SHAPES).quick() if options.quick else Setup(SHAPES))
    else:
        program = [sys.executable, "-m", "tokenix.drivers.cuda.check", "--here"]
        run_each(report, gpu, parts, seed, program + ["--quick"] * options.quick)
    return 1 if report.missed() else 0


def run_each(report: Report, gpu: Gpu, parts: Sequence[str], seed: int, program: list[str]) -> None:
    """Parts in processes of their own, with their figures in one report."""
    began = time.monotonic()
    tell_machine(report, gpu, seed)
    with tempfile.TemporaryDirectory(prefix="tokenix-check-") as folder:
        for part in parts:
            file = Path(folder) / f"{part}.json"
            left_s = min(PART_S, LIMIT_S - (time.monotonic() - began))
            command = [*program, "--only", part, "--seed", str(seed), "--json", str(file)]
            code = run_for(command, left_s)
            found = read_lines(file)
            report.lines += found
            if code is None:
                report.fail(part, f"not done within {max(0.0, left_s):.0f} s")
            elif code != any(line.good is False for line in found):
                report.fail(part, f"its process ended with {code}")
    report.section("in all")
    report.add("time", time.monotonic() - began, "s", most=LIMIT_S)
    report.sum_up()


def run_for(command: list[str], seconds: float) -> int | None:
    """Run a program, and end all that it has started; how it ended, None: not in time."""
    if seconds <= 0:
        return None
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(report: Report, gpu: Gpu, parts: Sequence[str], seed: int, setup: "Setup") -> None:
    """Parts in this process. One that fails does not keep others from being done, as far as there
    is a GPU."""
    from tokenix.drivers.cuda.check.kernels import check_attention, check_kernels, check_sanitizer
    from tokenix.drivers.cuda.check.link import check_launches, check_link
    from tokenix.drivers.cuda.check.model import check_model
    from tokenix.drivers.cuda.check.numbers import check_numbers
    from tokenix.drivers.cuda.check.ranks import check_ranks
    from tokenix.drivers.cuda.driver import CudaDriver

    driver = CudaDriver(gpu.ordinal)
    seeds = range(seed, seed + setup.seeds)
    actions: dict[str, Callable[[], None]] = {
        "sanitizer": lambda: check_sanitizer(report, seed),
        "attention": lambda: check_attention(report, driver, setup),
        "link": lambda: check_link(report, driver, setup),
        "launches": lambda: check_launches(report, driver, setup),
        "numbers": lambda: check_numbers(report, setup),
        "model": lambda: check_model(report, setup),
        "whole": lambda: check_whole(report, setup),
        "ranks": lambda: check_ranks(report, setup),
        "overload": lambda: check_overload(report, setup),
    }
    for part in parts:
        try:
            if part in OPS:
                check_kernels(report, driver, setup, part, seeds)
            else:
                actions[part]()
        except Exception as error:
            report.fail(part, in_a_line(error))
            if getattr(error, "lost", False):
                return


def tell_machine(report: Report, gpu: Gpu, seed: int) -> None:
    report.section("machine")
    report.add("GPU", gpu.name)
    report.add("compute capability", ".".join(map(str, gpu.capability)))
    report.add("memory", gpu.memory_bytes / (1 << 30), "GiB")
    report.add("driver, as CUDA version", str(gpu.driver_version))
    report.add("python", platform.python_version())
    for package in PACKAGES:
        try:
            report.add(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            report.add(package, "not installed")
    report.add("seed", str(seed))


def check_whole(report: Report, setup: "Setup") -> None:
    """The kernel and its pump over a model of random weights: programs of user space measure it."""
    report.section("the whole machine")
    done = subprocess.run(setup.whole, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        report.fail("the whole machine", said[-1][:200] if said else f"exit code {done.returncode}")
        return
    for figure in json.loads(done.stdout):
        bounds = {name: figure.pop(name, None) for name in ("least", "most")}
        report.add(**figure, **(bounds if setup.real else {}))


def check_overload(report: Report, setup: "Setup") -> None:
    """The showcase on the GPU: more streams than memory, under three policies, with real swap."""
    report.section("overload")
    done = subprocess.run(setup.demo, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        report.write(f"  {line}")
    said = done.stderr.strip().splitlines()
    report.add("exit code", done.returncode, said[-1][:200] if said else "", most=0)


if __name__ == "__main__":
    sys.exit(main())
