"""What one step of the kernel costs, from a handful of processes to ten thousand.

    steady      all running decode one token, a sixteenth of them cross a page
    arrivals    the same with 32 newcomers, checked and queued before the plan

Seconds are those of the kernel's thread on the processor; medians. The device is simulated and not
counted.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenix.bench.picture import save
from tokenix.syscalls.crowd import Crowd

ARRIVALS = 32
REFERENCE = (256, 1000, 1000)
"""Running, waiting, paused of the two figures."""
SIZES = (16, 64, 256, 1024, 4096, 10_000)
"""Processes in the table: a part runs, the others wait and are paused, half and half."""
RUNNING = (16, 256)
"""At most so many run: what changes in a step stays the same while the crowd around it grows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One crowd."""

    processes: int
    running: int
    waiting: int
    paused: int
    steady_ms: float
    arrivals_ms: float


@dataclass(frozen=True, slots=True)
class Report:
    """The reference crowd, and the others."""

    reference: Line
    table: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench step --json` prints."""
        return {
            "steady_ms": self.reference.steady_ms,
            "arrivals_ms": self.reference.arrivals_ms,
            "table": [asdict(line) for line in self.table],
        }


def measure(
    sizes: tuple[int, ...] = SIZES,
    reference: tuple[int, int, int] = REFERENCE,
    steps: int = 100,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """Measure the reference crowd and the table."""
    tell = watch or (lambda _: None)
    tell("{} running, {} waiting, {} paused".format(*reference))
    first = measure_crowd(*reference, steps)
    lines = []
    for most in RUNNING:
        for size in sizes:
            running = min(most, size)
            waiting = (size - running) // 2
            tell(f"{size} processes, {running} running")
            lines.append(measure_crowd(running, waiting, size - running - waiting, steps))
    return Report(first, tuple(lines))


def measure_crowd(running: int, waiting: int, paused: int, steps: int) -> Line:
    """Medians over `steps` steps of each kind."""
    crowd = Crowd(running, waiting, paused)
    steady = [crowd.step() for _ in range(steps)]
    arrivals = []
    for _ in range(max(1, steps // 8)):
        arrivals.append(crowd.step(ARRIVALS))
        crowd.step()
    return Line(
        running + waiting + paused, running, waiting, paused,
        1e3 * statistics.median(steady), 1e3 * statistics.median(arrivals),
    )  # fmt: skip


def plot(report: Report, path: str | Path) -> None:
    """Milliseconds over processes. Needs matplotlib (the extra `report`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    for most, colour in zip(RUNNING, ("tab:blue", "tab:orange"), strict=True):
        mine = [line for line in report.table if line.running == min(most, line.processes)]
        sizes = [line.processes for line in mine]
        label = f"{most} running"
        steady = [line.steady_ms for line in mine]
        axis.plot(sizes, steady, marker="o", color=colour, label=f"{label}, steady")
        arrivals = [line.arrivals_ms for line in mine]
        axis.plot(
            sizes, arrivals, marker="s", ls="--", color=colour, label=f"{label}, {ARRIVALS} arrive"
        )
    axis.set(xscale="log", xlabel="processes", ylabel="kernel step (ms)", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    save(figure, path, dpi=110)
    pyplot.close(figure)
