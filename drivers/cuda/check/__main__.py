"""`python -m tokenix.drivers.cuda.check`: a short table, and JSON. Exit code 1 if a bound is
missed, 2 without a GPU."""

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.probe import Gpu, find_gpu

PACKAGES = ("torch", "cuda-bindings", "numba", "numba-cuda", "numpy", "triton", "nvidia-nvvm")
PARTS = ("kernels", "sanitizer", "attention", "link", "launches", "model", "overload")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tokenix.drivers.cuda.check")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="the least that runs every part")
    parser.add_argument("--json", type=Path, default=None, help="file for all figures")
    options = parser.parse_args(arguments)
    try:
        gpu = find_gpu()
    except OSError as why:
        sys.stderr.write(f"gpu-check: {why.strerror}\n")
        return 2
    return run(gpu, options.only or PARTS, options.quick, options.json)


def run(gpu: Gpu, parts: Sequence[str], quick: bool, saved: Path | None) -> int:
    """All parts; one that fails does not keep others from being done."""
    from tokenix.drivers.cuda.check.kernels import (
        SHAPES,
        check_attention,
        check_kernels,
        check_sanitizer,
    )
    from tokenix.drivers.cuda.check.link import check_launches, check_link
    from tokenix.drivers.cuda.check.model import check_model
    from tokenix.drivers.cuda.check.setup import Setup
    from tokenix.drivers.cuda.driver import CudaDriver

    began = time.monotonic()
    report, driver = Report(), CudaDriver(gpu.ordinal)
    setup = Setup(SHAPES).quick() if quick else Setup(SHAPES)
    tell_versions(report, gpu)
    actions: dict[str, Callable[[], None]] = {
        "kernels": lambda: check_kernels(report, driver, setup, 1 if quick else 3),
        "sanitizer": lambda: check_sanitizer(report),
        "attention": lambda: check_attention(report, driver, setup),
        "link": lambda: check_link(report, driver, setup),
        "launches": lambda: check_launches(report, driver, setup),
        "model": lambda: check_model(report, setup),
        "overload": lambda: check_overload(report),
    }
    for part in parts:
        try:
            actions[part]()
        except Exception as error:
            report.fail(part, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    report.section("in all")
    report.add("time", time.monotonic() - began, "s", most=480)
    missed = report.missed()
    report.add("bounds missed", len(missed))
    if saved is not None:
        report.save(saved)
    return 1 if missed else 0


def tell_versions(report: Report, gpu: Gpu) -> None:
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


def check_overload(report: Report) -> None:
    """The showcase on the GPU: more streams than memory, under three policies, with real swap."""
    report.section("overload")
    command = [sys.executable, "-m", "tokenix.cli.main", "demo", "--driver", "cuda", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    for line in done.stdout.splitlines():
        report.write(f"  {line}")
    said = done.stderr.strip().splitlines()
    report.add("exit code", done.returncode, said[-1][:200] if said else "", most=0)


if __name__ == "__main__":
    sys.exit(main())
