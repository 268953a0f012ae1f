"""`tokenix strace` and `dmesg`: what happens, as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import OK, UsageError
from tokenix.cli.table import fitted, printable
from tokenix.syscalls.types import Pid, TraceEvent

if TYPE_CHECKING:
    from tokenix.syscalls.types import Syscalls

POLL_S = 0.1
"""Between two looks at the trace, when there was nothing new."""
BATCH = 1000

NOTABLE = frozenset(
    {
        "sysctl", "swapon", "swapoff", "swap-file", "copy-failed", "device-fault", "image-failed",
        "image-late", "image-refused", "image-strays", "no-image", "reaped-unread", "signal",
        "nice", "pause", "pause-end", "warning",
    }
)  # fmt: skip
"""Events that `dmesg` shows, besides ends that are none of a process's own choice."""
EXPECTED_ENDS = frozenset({"stop", "length", "suspended"})


def strace(
    pid: Annotated[int | None, options.Parameter(help="Process.")] = None,
    *,
    all: Annotated[bool, options.Parameter(name=["--all", "-a"], help="All processes.")] = False,
    now: Annotated[
        bool, options.Parameter(help="Print what is known, and do not wait for more.")
    ] = False,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Follow the events of a process until it ends, or those of all processes."""
    if (pid is None) is not all:
        raise UsageError("strace takes a pid, or --all")
    with connected(socket) as k:
        _follow(k, None if pid is None else Pid(pid), lambda _: True, not now, json)
    return OK


def dmesg(
    *,
    follow: Annotated[
        bool, options.Parameter(name=["--follow", "-f"], help="Wait for more.")
    ] = False,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show notable events of the kernel: faults, failures, preemptions, signals, changes."""
    with connected(socket) as k:
        _follow(k, None, is_notable, follow, json)
    return OK


def is_notable(event: TraceEvent) -> bool:
    if event.kind == "exit":
        return dict(event.detail).get("reason") not in EXPECTED_ENDS
    return event.kind in NOTABLE


def _follow(
    k: Syscalls,
    pid: Pid | None,
    wanted: Callable[[TraceEvent], bool],
    follow: bool,
    as_json: bool,
) -> None:
    """Print events, oldest first. With a pid, until it has ended."""
    since = 0
    while True:
        try:
            events = k.trace(pid, since, BATCH)
        except ProcessLookupError:
            if since:
                return  # it was waited for meanwhile
            raise
        for event in filter(wanted, events):
            if as_json:
                stdout.write_json(as_json_of(event))
            else:
                stdout.write(fitted(line_of(event)) + "\n")
        if events:
            since = events[-1].seq
            if pid is not None and any(event.kind == "exit" for event in events):
                return
        elif pid is not None and not since:
            k.stat(pid)  # ESRCH: it never existed, or everything of it is forgotten
        if not events and not follow:
            return
        if len(events) < BATCH and follow:
            time.sleep(POLL_S)


def as_json_of(event: TraceEvent) -> dict[str, object]:
    return {
        "seq": event.seq,
        "time_s": event.time_s,
        "pid": event.pid,
        "kind": event.kind,
        "detail": dict(event.detail),
    }


def line_of(event: TraceEvent) -> str:
    """`[   12.345678] 7 pause reason=...`"""
    who = "" if event.pid is None else f" {event.pid}"
    facts = "".join(f" {name}={printable(str(value))}" for name, value in event.detail)
    return f"[{event.time_s:12.6f}]{who} {event.kind}{facts}"
