"""Looks at machines that do not exist, and a source of them."""

import errno
import threading
from collections.abc import Sequence
from functools import cache

from tokenix.syscalls.types import (
    Distribution,
    Listing,
    MeterSeries,
    MetricsReport,
    Pid,
    ProcessStat,
    Rusage,
    Signal,
)
from tokenix.tui.snapshot import Note, Snapshot

TTFT_BOUNDS = (0.1, 0.5, 1.0)
CONTROLS = {
    "policy": "progress", "sched.level_bands": 5, "sched.target_interactive_s": 1.0,
    "sched.target_stream_s": 1.0, "sched.target_batch_s": 30.0, "sched.target_idle_s": 120.0,
}  # fmt: skip
STATES = ("running", "swapped", "new", "ready", "stopped", "swapping-out", "swapping-in", "zombie")
TENANTS = ("acme", "globex", "initech")


def process(pid: int, **fields: object) -> ProcessStat:
    """A stream like many; `fields` are those of `ProcessStat` and of `Rusage`."""
    of_usage = set(Rusage.__struct_fields__) - set(ProcessStat.__struct_fields__)
    usage = {name: fields.pop(name) for name in of_usage & set(fields)}
    known = {
        "parent": 0, "tenant": "acme", "name": f"Write about number {pid}.", "state": "running",
        "held": (), "qos": "stream", "nice": 0, "level": 3, "level_reason": "lead under 2 s",
        "quantum_left_tokens": 8, "lead_s": 1.5, "prompt_tokens": 100, "output_tokens": 20,
        "unread_tokens": 12, "computed_tokens": 120, "pages": 8, "resident_pages": 8,
        "clean_pages": 7, "age_s": 4.0,
    }  # fmt: skip
    return ProcessStat(Pid(pid), **(known | fields), rusage=Rusage(**({"ttft_s": 0.1} | usage)))


@cache
def crowd(number: int) -> tuple[ProcessStat, ...]:
    """Processes of all kinds, the same each time."""
    return tuple(
        process(
            pid,
            tenant=TENANTS[pid % 3],
            state=STATES[pid % len(STATES)],
            qos=("stream", "interactive", "batch", "idle")[pid % 4],
            level=pid % 8,
            lead_s=None if pid % 4 > 1 else pid * 7 % 30 - 2.0,
            prompt_tokens=pid * 37 % 4000,
            output_tokens=pid * 11 % 900,
            resident_pages=0 if STATES[pid % len(STATES)] == "swapped" else 8,
            age_s=pid * 3.7 % 400,
            queue_s=pid % 5 * 0.3,
            preemptions=pid % 4,
            queue_position=pid // 8 if STATES[pid % len(STATES)] == "new" else None,
            parent=pid - 1 if pid % 10 == 5 else 0,
        )
        for pid in range(1, number + 1)
    )


def metrics(ttft: Sequence[int] = (0, 0, 0, 0), **counts: int) -> MetricsReport:
    """Of interactive requests of one tenant."""
    spans = {"ttft_s": Distribution(tuple(ttft), 0.0)}
    series = MeterSeries("acme", "interactive", counts, {}, spans)
    return MetricsReport({"ttft_s": TTFT_BOUNDS}, (series,))


def look(
    time_s: float = 1.0,
    processes: Sequence[ProcessStat] = (),
    measured: MetricsReport | None = None,
    notes: Sequence[Note] = (),
    **figures: float,
) -> Snapshot:
    """Figures are named with `__` for a dot. 1000 frames, of which 600 are in use."""
    known = {
        "time_s": time_s, "frames.total": 1000.0, "frames.free": 300.0, "frames.held": 600.0,
        "frames.cached": 80.0, "frames.in_transfer": 20.0, "frames.page_bytes": 1024.0,
        "host.total": 500.0, "host.free": 400.0, "host.valid": 100.0, "host.spare": 40.0,
        "processes.running": 4.0, "processes.swapped": 3.0, "processes.new": 2.0,
        "waiting.stream": 2.0, "waiting.stream_oldest_s": 0.4,
    }  # fmt: skip
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return Snapshot(
        time_s, 1e9 + time_s, "smollm2", known | named, measured or metrics(), CONTROLS,
        tuple(processes), tuple(notes),
    )  # fmt: skip


class Machine:
    """The calls of a machine that only writes down what is asked. Nobody may touch process 13."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    def kill(self, pid: Pid, signal: Signal = Signal.TERM) -> None:
        self._check(pid)
        self.done.append(("kill", pid, signal.name))

    def nice(self, pid: Pid, nice: int) -> int:
        self._check(pid)
        self.done.append(("nice", pid, nice))
        return 0

    def plan(self) -> None:
        raise PermissionError(errno.EPERM, "it says nothing of its plans")

    def trace(self, since: int = 0, limit: int = 1000) -> None:
        raise PermissionError(errno.EPERM, "only root may trace all processes")

    def prefixes(self, limit: int = 64) -> None:
        raise PermissionError(errno.EPERM, "it says nothing of prefixes")

    def framemap(self, tier: str = "frames") -> None:
        raise PermissionError(errno.EPERM, "it has no maps")

    def _check(self, pid: Pid) -> None:
        if pid == 13:
            raise PermissionError(errno.EPERM, "process 13 is another tenant's")


class Still:
    """A source of these looks, one a pull; the last one again and again. A look that is an error is
    raised."""

    can_act = True

    def __init__(self, *looks: Snapshot | OSError) -> None:
        self.looks = list(looks)
        self.machine = Machine()
        self.watched: Sequence[Pid] = ()
        self.pulls = 0
        self.closed = threading.Event()

    def pull(self) -> Snapshot:
        at = min(self.pulls, len(self.looks) - 1)
        self.pulls += 1
        found = self.looks[at]
        if isinstance(found, OSError):
            raise found
        return found

    def watch(self, pids: Sequence[Pid]) -> None:
        self.watched = pids

    def view(self) -> Machine:
        return self.machine

    def close(self) -> None:
        self.closed.set()


class Shelf:
    """As much of a machine as a roll asks: it lists processes, some at a time."""

    def __init__(self, processes: Sequence[ProcessStat], at_once: int) -> None:
        self.processes = {process.pid: process for process in processes}
        self.at_once = at_once
        self.answers = 0

    def ps_after(self, after: int = 0, pids: Sequence[int] = ()) -> Listing:
        self.answers += 1
        later = [self.processes[pid] for pid in sorted(self.processes) if pid > after]
        some = tuple(later[: self.at_once])
        return Listing(some, some[-1].pid if len(later) > self.at_once else None)

    def ps(self, pids: Sequence[int] = ()) -> tuple[ProcessStat, ...]:
        self.answers += 1
        return tuple(self.processes[Pid(pid)] for pid in pids if pid in self.processes)


def looks(number=30, count=400):
    """So many, each a tenth of a second after the one before."""
    return [look(100.0 + at / 10, crowd(number)) for at in range(count)]
