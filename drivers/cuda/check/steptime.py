"""Which kernels a decode step spends the GPU's time in, as torch's profiler sees it: also kernels
of ours."""

from collections.abc import Callable, Iterable
from typing import Any

from tokenix.drivers.cuda.check.report import Report

MOST_LINES = 12
"""Kernels that are told, the longest first; the others are one line."""

NAME_WIDTH = 56


def check_steptime(report: Report, name: str, steps: int, action: Callable[[], object]) -> None:
    """Lines of what `action`, which runs so many steps, gives the GPU to do."""
    from torch.profiler import ProfilerActivity, profile, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():  # type: ignore[no-untyped-call]
        report.add(f"{name}: kernels of a step", "torch has no profiler of GPUs here")
        return
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        action()
    tell_kernels(report, name, steps, found.key_averages())


def tell_kernels(report: Report, name: str, steps: int, averages: Iterable[Any]) -> None:
    """Microseconds of a step by kernel, and how often it runs. averages: of torch's profiler."""
    spent = sorted(
        ((each.self_device_time_total, each.count, each.key) for each in averages), reverse=True
    )
    whole = sum(micros for micros, _, _ in spent)
    report.add(f"{name}: kernels of a step", whole / steps, "us")
    for micros, count, kernel in spent[:MOST_LINES]:
        if micros > 0:
            short = " ".join(kernel.removeprefix("void ").split())[:NAME_WIDTH]
            report.add(f"  {count / steps:.3g} x {short}", micros / steps, "us")
    others = spent[MOST_LINES:]
    if others:
        micros = sum(each[0] for each in others)
        report.add(f"  {sum(each[1] for each in others) / steps:.3g} others", micros / steps, "us")
