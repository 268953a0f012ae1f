"""The machine under a comparison: what it is, and whose its processor time was.

Times are those of /proc, in ticks of 10 ms: good for seconds, which is what a run takes.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """A process and all that descend from it, the root first."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def send(root: int, number: signal.Signals) -> None:
    """A signal to all of them."""
    for pid in tree(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def share_priority(root: int) -> None:
    """All of them get the priority of this process's session, also those in sessions of their own:
    Linux schedules sessions as groups (autogroup), and would starve them beside a favoured one."""
    with contextlib.suppress(OSError):  # a system without autogroups, or not ours to set
        nice = Path("/proc/self/autogroup").read_text().rpartition("nice")[2].strip()
        for pid in tree(root):
            path = Path(f"/proc/{pid}/autogroup")
            if nice and path.read_text().rpartition("nice")[2].strip() != nice:
                path.write_text(nice)


def cpu_s(pids: list[int]) -> float:
    """What processes have used, with their children that were waited for."""
    wanted = set(pids)
    return sum(
        sum(int(field) for field in fields[11:15]) * TICK_S
        for pid, fields in _stats()
        if pid in wanted
    )


def resident_bytes(pids: list[int]) -> int:
    wanted = set(pids)
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(fields[21]) * page for pid, fields in _stats() if pid in wanted)


def _stats() -> list[tuple[int, list[str]]]:
    """(pid, fields of /proc/pid/stat from the state on) of every process."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            text = (path / "stat").read_text()
        except OSError:
            continue  # it has ended
        found.append((int(path.name), text.rpartition(")")[2].split()))
    return found


@dataclass(frozen=True, slots=True)
class Usage:
    """Of an interval, in cores."""

    server: float
    client: float
    others: float
    """All the rest, with what a hypervisor took."""


class Meter:
    """Begins when it is made."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._began_s = time.monotonic()
        self._before = self._look()

    def stop(self) -> Usage:
        passed_s = max(time.monotonic() - self._began_s, TICK_S)
        busy_s, server_s, client_s = (
            (after - before) / passed_s
            for after, before in zip(self._look(), self._before, strict=True)
        )
        return Usage(server_s, client_s, max(0.0, busy_s - server_s - client_s))

    def _look(self) -> tuple[float, float, float]:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        busy_s = (user + nice + system + irq + softirq + steal) * TICK_S
        return busy_s, cpu_s(tree(self._server)), cpu_s([os.getpid()])


def describe() -> str:
    """Processor and cores, in a line."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    flags = Path("/proc/cpuinfo").read_text()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    found = [flag for flag in wanted if f" {flag} " in flags.replace("\n", " ")]
    cores = len(os.sched_getaffinity(0))
    name = names[0] if names else os.uname().machine
    return f"{name}, {cores} cores ({', '.join(found)}), Linux {os.uname().release}"
