"""What `tokenix sim grid` does: the random grid, run or resumed, and what it says."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenix.bench import grid, gridsum
from tokenix.bench.commands import sim_command
from tokenix.bench.grid import Cell
from tokenix.bench.gridsum import Slice, Summary
from tokenix.bench.points import Placement, Point
from tokenix.cli import stdout
from tokenix.cli.sim_run import SHARED_TRACES, bars, read_named
from tokenix.cli.status import OK, UsageError
from tokenix.syscalls.simulation import policies

SHOWN = 12
"""Points listed where `progress` is short."""


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The options of `tokenix sim grid`."""

    out: Path
    points: int
    seed: int
    policies: Sequence[str]
    redo: Sequence[str]
    traces: Sequence[str]
    devices: Sequence[str]
    folder: Path | None
    overload: bool

    def drawn(self) -> list[Point]:
        return grid.draw_points(self.points, self.seed, self.traces or grid.TRACES, self.devices)

    def overloads(self) -> list[Point]:
        return [
            point
            for point in (grid.overload_points() if self.overload else [])
            if point.trace in (self.traces or grid.TRACES) and point.device in self.devices
        ]

    def cells(self) -> list[Cell]:
        cells = [cell for point in self.drawn() for cell in grid.cells_of(point, self.policies)]
        return cells + [Cell(point, gridsum.OURS) for point in self.overloads()]


def run_grid(plan: GridPlan, jobs: int, as_json: bool, only_summary: bool) -> int:
    folder = plan.folder or SHARED_TRACES
    _check_policies("--policy", plan.policies, policies())
    _check_policies("--redo", plan.redo, plan.policies)
    try:
        placed = grid.placement(read_named(folder, plan.traces or grid.TRACES))
        cells = [] if only_summary else plan.cells()
        done = grid.read_cells(plan.out)
        missing = [cell for cell in cells if cell not in done or cell.policy in plan.redo]
        if missing:
            print(f"{len(cells) - len(missing)} of {len(cells)} runs are done", file=sys.stderr)
            with bars(len(missing)) as progress:
                grid.run_cells(placed, missing, plan.out, jobs, progress)
        figured = grid.read_cells(plan.out)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    try:
        summary = gridsum.summarise(figured, plan.drawn(), grid.overload_points())
    except ValueError as problem:
        if only_summary:
            raise UsageError(str(problem)) from None
        print(f"{plan.out} has all that was asked for; no summary: {problem}", file=sys.stderr)
        return OK
    versions = Counter(figures.code for figures in figured.values())
    if len(versions) > 1:
        shown = ", ".join(f"{code} {count}" for code, count in versions.most_common())
        print(f"runs of several versions of the kernel ({shown}); see --redo", file=sys.stderr)
    if as_json:
        stdout.write(json.dumps(summary.as_json(), indent=2) + "\n")
    else:
        _show(summary, placed, folder)
    return OK


def _check_policies(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option}: no policy {name!r}; there are {', '.join(known)}")


def _show(summary: Summary, placed: Placement, folder: Path) -> None:
    every = summary.every
    policies = list(every.goodput)
    lines = [
        f"{every.points} points; goodput of {gridsum.OURS} within 2 points of the best of "
        f"{', '.join(gridsum.BASELINES)}: {every.within:.1%}, worst {-every.worst_deficit:+.3f}; "
        f"P95 later than an equal baseline's: {every.late}",
        "bounds of fcfs+reject (s): "
        + ", ".join(f"{key} {bound:g}" for key, bound in summary.bounds.items()),
        "",
        f"{'slice':<24}{'n':>5} | goodput "
        + "".join(f"{policy:>12}" for policy in policies)
        + f" | {'within':>6} {'worst':>7} {'late':>4} | {'stalled':>8} {'points':>6} | "
        f"{'refused':>8} | tok/s of best",
    ]
    lines += [_line(part, policies) for part in [every, *summary.slices]]
    for title, shorts, unit in (
        ("goodput short", summary.deficits, ""), ("P95 late", summary.late, " s"),
    ):  # fmt: skip
        lines += ["", f"{title}: {len(shorts)} points"]
        for short in shorts[:SHOWN]:
            lines += [f"  {-short.by if not unit else short.by:+.3f}{unit} to {short.policy}"]
            job = placed.job(short.point, gridsum.OURS)
            lines += ["    " + sim_command(job, [gridsum.OURS, short.policy], str(folder))]
    if summary.overload:
        lines += ["", "overload, progress at 1x, 2x, 3x: tokens/s of finished requests (goodput)"]
    for case, figures in summary.overload.items():
        shown = "  ".join(f"{f.useful_tokens_per_s:.0f} ({f.goodput:.3f})" for f in figures)
        lines.append(f"  {case:<52} {shown}")
    stdout.write("\n".join(lines) + "\n")


def _line(part: Slice, policies: Sequence[str]) -> str:
    ours = gridsum.OURS
    goodputs = "".join(f"{part.goodput.get(policy, 0.0):>12.3f}" for policy in policies)
    return (
        f"{part.name:<24}{part.points:>5} |         {goodputs} | {part.within:>6.1%} "
        f"{-part.worst_deficit:>+7.3f} {part.late:>4} | {part.stall_rate[ours]:>8.3%} "
        f"{part.stalling:>6} | {part.rejected[ours]:>8.1%} | {part.throughput:.3f}"
    )
