"""What a file of grid results says: is `progress` nowhere worse than the engines it is held to?

best of three   fcfs, retract, and fcfs+reject with the bound that is best for the mean goodput
                over all points of a trace and device (stronger than what a user would tune)
deficit         goodput of the best of three less that of `progress`
late            P95 above that of a baseline whose goodput is equal (within 2 points) or better,
                by more than 2 % and 40 ms
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tokenix.bench.grid import BOUNDS, Cell, Figured, Figures
from tokenix.bench.points import Point

OURS = "progress"
BASELINES = ("fcfs", "fcfs+reject", "retract")
EQUAL = 0.02
LATE_SHARE, LATE_S = 0.02, 0.04
FEW_STALLS = 0.001

Row = dict[str, Figures]
"""Policy -> its figures at a point."""


@dataclass(frozen=True, slots=True)
class Short:
    """A point where `progress` is short of a baseline."""

    point: Point
    by: float
    """Goodput, or seconds of P95."""
    policy: str
    """The baseline that is better."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Points that have one thing in common."""

    name: str
    points: int
    goodput: dict[str, float]
    """Policy -> mean."""
    within: float
    """Share of points where `progress` is at most 2 points below the best of three."""
    worst_deficit: float
    late: int
    stall_rate: dict[str, float]
    stalling: int
    """Points where `progress` stalls more than one stream in a thousand."""
    rejected: dict[str, float]
    """Policy -> mean share of requests."""
    throughput: float
    """Output tokens per second of `progress` over those of the best of three, mean of ratios."""


@dataclass(frozen=True, slots=True)
class Summary:
    every: Slice
    slices: list[Slice]
    bounds: dict[str, float]
    """`trace/device` -> the bound of fcfs+reject."""
    deficits: list[Short]
    """Worst first; all beyond 2 points."""
    late: list[Short]
    overload: dict[str, list[Figures]]
    """Case -> `progress` at 1x, 2x, 3x."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def summarise(figured: Figured, points: Sequence[Point], overload: Sequence[Point] = ()) -> Summary:
    """Over those of `points` at which all of `BASELINES` and `progress` were run. ValueError: at
    none."""
    bounds = tune(figured, points)
    rows = {point: row for point in points if (row := row_of(figured, point, bounds))}
    if not rows:
        raise ValueError(f"no point has results of {OURS} and of {', '.join(BASELINES)} yet")
    shorts = [short for point, row in rows.items() for short in _deficit(point, row)]
    late = [short for point, row in rows.items() for short in _late(point, row)]
    return Summary(
        _slice("all", rows),
        [_slice(name, part) for name, part in _parts(rows)],
        {"/".join(key): bound for key, bound in sorted(bounds.items())},
        sorted((s for s in shorts if s.by > EQUAL), key=lambda s: (-s.by, s.point)),
        sorted(late, key=lambda s: (-s.by, s.point)),
        _overload(figured, overload),
    )


def tune(figured: Figured, points: Sequence[Point]) -> dict[tuple[str, str], float]:
    """(trace, device) -> the bound with the best mean goodput."""
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for point in points:
        goodputs = found.setdefault((point.trace, point.device), {bound: [] for bound in BOUNDS})
        for bound in BOUNDS:
            figures = figured.get(Cell(point, "fcfs+reject", bound))
            if figures is not None:
                goodputs[bound].append(figures.goodput)
    return {
        key: max(BOUNDS, key=lambda bound: (_mean(goodputs[bound]), -bound))
        for key, goodputs in found.items()
    }


def row_of(figured: Figured, point: Point, bounds: dict[tuple[str, str], float]) -> Row | None:
    """All policies at a point; None if one that is compared is missing."""
    bound = bounds.get((point.trace, point.device), 0.0)
    row = {
        cell.policy: figures
        for cell, figures in figured.items()
        if cell.point == point and cell.bound_s in (0.0, bound)
    }
    return row if {OURS, *BASELINES} <= set(row) else None


def _deficit(point: Point, row: Row) -> list[Short]:
    best = max(BASELINES, key=lambda policy: row[policy].goodput)
    return [Short(point, row[best].goodput - row[OURS].goodput, best)]


def _late(point: Point, row: Row) -> list[Short]:
    ours = row[OURS]
    equals = {
        policy: row[policy].ttft_p95_s
        for policy in BASELINES
        if row[policy].goodput >= ours.goodput - EQUAL
    }
    times = {policy: p95 for policy, p95 in equals.items() if p95 is not None}
    if not times or ours.ttft_p95_s is None:
        return []
    best = min(times, key=lambda policy: times[policy])
    by = ours.ttft_p95_s - times[best]
    return [Short(point, by, best)] if by > max(LATE_SHARE * times[best], LATE_S) else []


def _slice(name: str, rows: dict[Point, Row]) -> Slice:
    policies = sorted(set.intersection(*(set(row) for row in rows.values())))
    deficits = [_deficit(point, row)[0].by for point, row in rows.items()]
    return Slice(
        name,
        len(rows),
        {policy: _mean(row[policy].goodput for row in rows.values()) for policy in policies},
        sum(deficit <= EQUAL for deficit in deficits) / len(rows),
        max(deficits),
        sum(len(_late(point, row)) for point, row in rows.items()),
        {policy: _mean(row[policy].stall_rate for row in rows.values()) for policy in policies},
        sum(row[OURS].stall_rate > FEW_STALLS for row in rows.values()),
        {
            policy: _mean(row[policy].rejected / row[policy].requests for row in rows.values())
            for policy in policies
        },
        _mean(
            row[OURS].output_tokens_per_s
            / max(1e-9, *(row[policy].output_tokens_per_s for policy in BASELINES))
            for row in rows.values()
        ),
    )


def _parts(rows: dict[Point, Row]) -> list[tuple[str, dict[Point, Row]]]:
    parts: dict[str, dict[Point, Row]] = defaultdict(dict)
    for axis in ("trace", "device", "load", "pool", "reader", "link"):
        for value in sorted({getattr(point, axis) for point in rows}):
            name = value if isinstance(value, str) else f"{axis} {value:g}"
            parts[name] = {p: row for p, row in rows.items() if getattr(p, axis) == value}
    return list(parts.items())


def _overload(figured: Figured, points: Sequence[Point]) -> dict[str, list[Figures]]:
    cases: dict[str, list[Figures]] = defaultdict(list)
    for point in points:
        figures = figured.get(Cell(point, OURS))
        if figures is not None:
            case = f"{point.trace} {point.device} pool {point.pool:g} link {point.link:g}"
            cases[case].append(figures)
    return dict(cases)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
