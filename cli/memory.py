"""`tokenix vmstat`, `free`, `swapon`, `swapoff`: memory, and what moves through it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import OK, UsageError
from tokenix.cli.table import size as shown_size
from tokenix.cli.table import table
from tokenix.daemon.sizes import bytes_of

if TYPE_CHECKING:
    from tokenix.syscalls.types import Syscalls

Figures = Mapping[str, float]

GAUGES = {
    "r": ("processes.ready", "processes.running"),
    "w": ("processes.new",),
    "p": (
        "processes.swapped", "processes.swapping-out", "processes.fetching",
        "processes.swapping-in",
    ),
    "t": ("processes.stopped",),
    "free": ("frames.free",),
    "cache": ("frames.cached",),
    "held": ("frames.held", "frames.in_transfer"),
    "host": ("host.valid",),
    "file": ("disk.valid",),
}  # fmt: skip
"""Column -> the gauges that it is the sum of. Processes: run, wait for frames, are paused, stopped
with frames. Memory in pages."""

RATES = {
    "so": ("swap.pages_out",),
    "si": ("swap.pages_in",),
    "fo": ("swap.pages_store",),
    "fi": ("swap.pages_fetch",),
    "sys": ("calls",),
    "steps": ("steps",),
    "comp": ("computed_tokens",),
    "out": ("output_tokens",),
    "pre": ("preemptions",),
}
"""Column -> the counters whose growth per second it shows. Pages to and from the host tier and the
swap file, system calls, steps, tokens computed and written, preemptions."""

PARTS = (("procs", 4), ("memory (pages)", 5), ("swap", 2), ("file", 2), ("rates", 5))
HEAD_EVERY = 20
WIDTHS = {
    **dict.fromkeys(("r", "w", "p", "t"), 3),
    **dict.fromkeys(("free", "cache", "held", "host", "file"), 6),
    **dict.fromkeys(RATES, 6),
}


def vmstat(
    interval: Annotated[float | None, options.Parameter(help="Seconds between lines.")] = None,
    count: Annotated[
        int | None, options.Parameter(help="So many lines; default: until Ctrl-C.")
    ] = None,
    /,
    *,
    raw: Annotated[
        bool, options.Parameter(name=["--raw", "-s"], help="All counters by name.")
    ] = False,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show processes, memory, swap traffic and rates; the first line is the mean since boot.

    vmstat [INTERVAL [COUNT]], as vmstat(8).
    """
    if interval is not None and not 0 < interval <= 86400:
        raise UsageError("the interval is above 0 and at most 86400 seconds")
    if count is not None and count < 1:
        raise UsageError("the count is at least 1")
    with connected(socket) as k:
        if raw:
            _show_raw(k.vmstat(), json)
            return OK
        _watch(k, interval, 1 if interval is None else count, json)
    return OK


def free(
    *,
    human: Annotated[bool, options.Parameter(help="Bytes, not pages.")] = False,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show how full the tiers are: device frames, host slots, swap file."""
    with connected(socket) as k:
        figures = k.vmstat()
    tiers = tiers_of(figures)
    if json:
        stdout.write_json({"page_bytes": int(figures["frames.page_bytes"]), "tiers": tiers})
        return OK
    page_bytes = figures["frames.page_bytes"]
    head = ("", "total", "used", "free", "cached")
    rows = [
        (name, *(shown_size(n * page_bytes) if human else str(n) for n in tier.values()))
        for name, tier in tiers.items()
    ]
    stdout.write(table(head, rows, left=("",)))
    return OK


def swapon(
    directory: Annotated[Path, options.Parameter(help="Where the swap file is made.")],
    size: Annotated[str, options.Parameter(help="In bytes; 512M, 2G.")],
    /,
    *,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Open a swap file: the tier below the host's."""
    try:
        size_bytes = bytes_of(size)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    with connected(socket) as k:
        opened_bytes = k.swapon(str(directory.expanduser().absolute()), size_bytes)
    if json:
        stdout.write_json({"directory": str(directory), "size_bytes": opened_bytes})
    return OK


def swapoff(*, json: options.Json = False, socket: options.Socket = None) -> int:
    """Empty the swap file and give it back."""
    with connected(socket) as k:
        k.swapoff()
    if json:
        stdout.write_json({"size_bytes": 0})
    return OK


def tiers_of(figures: Figures) -> dict[str, dict[str, int]]:
    """Pages of each tier: total, used, free, cached. What is cached has a use only if it is asked
    for again; in the tiers below the device all that is valid is a copy, which is use."""
    frames = {key: int(figures[f"frames.{key}"]) for key in ("total", "free", "cached")}
    used = frames["total"] - frames["free"] - frames["cached"]
    tiers = {
        "device": {
            "total": frames["total"], "used": used, "free": frames["free"],
            "cached": frames["cached"],
        }
    }  # fmt: skip
    for tier, name in (("host", "host"), ("disk", "file")):
        total, unused = int(figures[f"{tier}.total"]), int(figures[f"{tier}.free"])
        spare = int(figures.get(f"{tier}.spare", 0))
        tiers[name] = {
            "total": total, "used": total - unused - spare, "free": unused, "cached": spare
        }  # fmt: skip
    return tiers


def _watch(k: Syscalls, interval_s: float | None, count: int | None, as_json: bool) -> None:
    before: Figures = dict.fromkeys((name for names in RATES.values() for name in names), 0.0)
    before_s, line, next_s = 0.0, 0, time.monotonic()
    while True:
        figures = k.vmstat()
        now_s = figures["time_s"]
        found = _line(figures, before, max(now_s - before_s, 1e-9))
        if as_json:
            stdout.write_json({"time_s": now_s, **found})
        else:
            if line % HEAD_EVERY == 0:
                stdout.write(_head())
            cells = (_short(value).rjust(WIDTHS[name]) for name, value in found.items())
            stdout.write(" ".join(cells) + "\n")
        line += 1
        if interval_s is None or line == count:
            return
        before, before_s = figures, now_s
        next_s += interval_s
        time.sleep(max(0.0, next_s - time.monotonic()))


def _line(figures: Figures, before: Figures, passed_s: float) -> dict[str, float]:
    gauges = {name: sum(figures[key] for key in keys) for name, keys in GAUGES.items()}
    rates = {
        name: round(sum(figures[key] - before[key] for key in keys) / passed_s, 2)
        for name, keys in RATES.items()
    }
    return {**gauges, **rates}


def _head() -> str:
    names = list(WIDTHS)
    groups, at = [], 0
    for title, columns in PARTS:
        width = sum(WIDTHS[name] + 1 for name in names[at : at + columns]) - 1
        groups.append(title.center(width, "-"))
        at += columns
    return " ".join(groups) + "\n" + " ".join(name.rjust(WIDTHS[name]) for name in names) + "\n"


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _show_raw(figures: Figures, as_json: bool) -> None:
    if as_json:
        stdout.write_json(figures)
        return
    width = max(map(len, figures))
    stdout.write("".join(f"{name:<{width}}  {value:g}\n" for name, value in figures.items()))
