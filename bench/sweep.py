"""Sweeps: one property of a point takes several values, the rest stays; policies side by side.

load    times what fcfs sustains with the point's pool       other arrivals at each
pool    share of what no preemption needs                    the same arrivals, fewer pages
reader  tokens per second that readers read                  the same arrivals
link    GB/s each way                                        the same arrivals
host    host tier in pools                                   the same arrivals
seed    where in the trace it starts                         other arrivals at each
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenix.bench.parallel import Job, Progress, run_jobs
from tokenix.bench.points import Placement, Point, Size
from tokenix.bench.simulate import Result
from tokenix.bench.traces import Trace

AXES: Mapping[str, tuple[float, ...]] = {
    "load": (0.3, 0.5, 0.7, 0.85, 1.0, 1.3, 1.6, 2.0, 3.0),
    "pool": (0.1, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0),
    "reader": (5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0),
    "link": (1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 64.0),
    "host": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
    "seed": (1.0, 2.0, 3.0, 4.0, 5.0),
}
"""Each with the values that it usually takes."""

SIZE = Size(arrivals_s=100.0, few=200, many=2400, output_tokens=500_000)

OTHER_ARRIVALS = ("load", "seed")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results by value and policy, in the order of both."""

    what: str
    base: Point
    values: tuple[float, ...]
    policies: tuple[str, ...]
    results: tuple[Result, ...]

    def of(self, policy: str) -> list[Result]:
        """One for each value."""
        at = self.policies.index(policy)
        return list(self.results[at :: len(self.policies)])

    def rows(self) -> list[tuple[float, Result]]:
        return [
            (self.values[index // len(self.policies)], result)
            for index, result in enumerate(self.results)
        ]


def sweep(
    what: str,
    base: Point,
    trace: Trace,
    policies: Sequence[str],
    values: Sequence[float] | None = None,
    size: Size = SIZE,
    processes: int = 1,
    progress: Progress | None = None,
) -> Sweep:
    """Run each policy at each value of `what`. ValueError: what cannot be simulated."""
    if what not in AXES:
        raise ValueError(f"nothing to sweep is called {what!r}; there are {', '.join(AXES)}")
    chosen = tuple(AXES[what] if values is None else values)
    if what == "seed" and not all(value.is_integer() for value in chosen):
        raise ValueError(f"seeds are whole numbers, not {', '.join(map(str, chosen))}")
    jobs = sweep_jobs(what, base, trace, policies, chosen, size)
    results = run_jobs({base.trace: trace}, jobs, processes, progress)
    return Sweep(what, base, chosen, tuple(policies), tuple(results))


def sweep_jobs(
    what: str,
    base: Point,
    trace: Trace,
    policies: Sequence[str],
    values: Sequence[float],
    size: Size = SIZE,
) -> list[Job]:
    """By value, then by policy."""
    placed = Placement({base.trace: trace}, size)
    points = [_moved(base, what, value) for value in values]
    jobs = []
    for point in points:
        for policy in policies:
            job = placed.job(point, policy)
            if what not in OTHER_ARRIVALS:
                setup = placed.job(base, policy).setup
                least = min(placed.pages(point) for point in points)
                setup = replace(
                    setup, machine=job.setup.machine, reader=point.reader, fits_pages=least
                )
                job = replace(job, setup=setup)
            jobs.append(job)
    return jobs


def _moved(base: Point, what: str, value: float) -> Point:
    change: dict[str, Any] = {what: int(value) if what == "seed" else value}
    return replace(base, **change)
