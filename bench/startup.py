"""How long short commands take, from nothing to their end, beside `python -c pass`.

Commands run one after another, in rounds, so that what else the machine does meets all of them; a
machine with a small pool answers them from this process.
"""

import errno
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenix.syscalls.inproc import boot
from tokenix.syscalls.port import LocalPort
from tokenix.syscalls.wire.server import serve

PAGES = 64
EMPTY = "python -c pass"
COMMANDS = (
    "ps", "ps --json", "free", "vmstat", "sysctl policy", "kill --list", "list", "ps --help",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One command; wall times."""

    command: str
    median_ms: float
    least_ms: float
    ratio: float
    """Of the medians, to that of an interpreter that does nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench startup --json` prints."""
        return {"commands": [asdict(line) for line in self.lines]}


def measure(rounds: int, watch: Callable[[str], None] | None = None) -> Report:
    """Run every command so many times. OSError EIO: one of them failed."""
    words = {EMPTY: [sys.executable, "-c", "pass"]}
    for command in COMMANDS:
        words[f"tokenix {command}"] = [
            sys.executable, "-m", "tokenix.cli.main", *command.split()
        ]  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in words}
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tokenix-")))
        k = stack.enter_context(boot(device_pages=PAGES, host_pages=0))
        port = k.port
        assert isinstance(port, LocalPort), "it was booted here"
        border = stack.enter_context(serve(port, home / "socket"))
        env = {**os.environ, "TOKENIX_SOCKET": border.path}
        for turn in range(rounds + 1):
            if watch is not None:
                watch(f"round {turn} of {rounds}")
            for name, line in words.items():
                taken_ms = _run(line, env)
                if turn > 0:  # the first one warms the caches of files
                    taken[name].append(taken_ms)
    empty_ms = statistics.median(taken[EMPTY])
    return Report(
        tuple(
            Line(name, statistics.median(times), min(times), statistics.median(times) / empty_ms)
            for name, times in taken.items()
        )
    )


def _run(command: list[str], env: dict[str, str]) -> float:
    began_s = time.perf_counter()
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    taken_ms = (time.perf_counter() - began_s) * 1e3
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{' '.join(command[1:])} failed: {done.stderr.strip()}")
    return taken_ms
