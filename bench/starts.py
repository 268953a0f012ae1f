"""How long a model takes from nothing to its first token, and how much memory, with and without
packed weights that an earlier start has kept.

Each start is a process of its own. They take turns, so that what else the machine does meets all of
them; one goes before, so that kernels are compiled.
"""

import errno
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenix.syscalls.inproc import boot

PAGES = 64
WAYS = ("nothing kept", "first", "again")
"""Packs and keeps nothing; packs and keeps it; has what the one before has kept."""
_MIB = 1 << 10
"""In the units of /proc."""


@dataclass(frozen=True, slots=True)
class Start:
    """One way to start; medians. Memory of the whole process."""

    way: str
    first_token_s: float
    least_s: float
    peak_mib: float
    """What the process had at most, whatever it was."""
    own_mib: float
    """At the first token: memory of its own."""
    mapped_mib: float
    """At the first token: files, which are shared and given back where memory is short."""


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    starts: tuple[Start, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench startup MODEL --json` prints."""
        return asdict(self)


def measure(
    model: str,
    rounds: int,
    weights: str = "auto",
    watch: Callable[[str], None] | None = None,
) -> Report:
    """Start each way so many times. OSError EIO: a start failed; it says why."""
    found: dict[str, list[tuple[float, dict[str, float]]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="tokenix-") as folder:
        for turn in range(rounds + 1):
            for way in WAYS if turn > 0 else WAYS[:1]:
                if watch is not None:
                    watch(f"round {turn} of {rounds}: {way}")
                taken = start(model, weights, way, Path(folder) / f"{turn}")
                if turn > 0:
                    found[way].append(taken)
    return Report(model, tuple(_summary(way, runs) for way, runs in found.items()))


def _summary(way: str, runs: list[tuple[float, dict[str, float]]]) -> Start:
    def middle(name: str) -> float:
        return statistics.median(memory[name] for _, memory in runs) / _MIB

    times = [taken_s for taken_s, _ in runs]
    peak, own, mapped = middle("VmHWM"), middle("RssAnon"), middle("RssFile")
    return Start(way, statistics.median(times), min(times), peak, own, mapped)


def start(model: str, weights: str, way: str, folder: Path) -> tuple[float, dict[str, float]]:
    """Seconds until the first token of a new process, and its memory by the names of /proc, KiB.
    Packed weights are kept in `folder`, compiled code where it is."""
    usual = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    env = {"NUMBA_CACHE_DIR": f"{usual}/tokenix", **os.environ, "XDG_CACHE_HOME": str(folder)}
    words = [sys.executable, "-m", "tokenix.bench.starts", model, weights, way]
    began_s = time.perf_counter()
    with subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        taken_s = time.perf_counter() - began_s
        _, said = child.communicate()
    if child.returncode != 0 or not line:
        why = said.strip().splitlines()[-1:] or ["no reason given"]
        raise OSError(errno.EIO, f"a start of {model} failed: {why[0]}")
    return taken_s, json.loads(line)


def _serve_one(model: str, weights: str, way: str) -> None:
    """The process that is started: its memory, printed when it has a token."""
    with boot(
        model, device_pages=PAGES, host_pages=0, weights=weights, weight_cache=way != WAYS[0]
    ) as k:
        pid = k.spawn("Hello", max_tokens=1, ignore_eos=True)
        next(iter(k.stream(pid)), None)
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        memory = {name: int(fields[name].split()[0]) for name in ("VmHWM", "RssAnon", "RssFile")}
        print(json.dumps(memory), flush=True)


if __name__ == "__main__":
    try:
        _serve_one(*sys.argv[1:])
    except OSError as why:
        sys.exit(why.strerror or str(why))
