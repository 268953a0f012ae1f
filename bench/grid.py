"""The "nowhere worse" experiment: random points of load x pool x reader x link x trace x device.

    point     drawn without repetition from the grid below, by seed (points.py says what it means)
    cell      one policy (and its bound) at one point: one line of the file of results

Results are appended as they come, so that a run can be interrupted and resumed; a line about the
same cell replaces an earlier one.
"""

import fcntl
import hashlib
import itertools
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from tokenix.bench.parallel import Job, Progress, run_jobs
from tokenix.bench.points import Placement, Point, Size
from tokenix.bench.simulate import Result
from tokenix.bench.traces import Trace

TRACES = (
    "azure_code_2023", "azure_conv_2023", "mooncake_conversation", "servegen_deepseek_r1",
)  # fmt: skip
DEVICES = ("h100", "a100-40", "rtx4090")
LOADS = (0.3, 0.5, 0.7, 0.85, 1.0, 1.3, 2.0)
POOLS = (0.1, 0.25, 0.5, 1.0)
READERS = (5.0, 10.0, 20.0, 40.0)
LINKS = (3.0, 12.0, 25.0, 50.0)
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Of `fcfs+reject`, in seconds of queued prefill."""
OVERLOADS = (1.0, 2.0, 3.0)

POLICIES = ("progress", "fcfs", "retract", "fcfs+reject")

OVERLOAD_SIZE = Size().times(3)
"""More requests, so that what builds up in overload is seen."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What is run at a point."""

    point: Point
    policy: str
    bound_s: float = 0.0
    """`fcfs+reject` only."""

    @property
    def name(self) -> str:
        return f"{self.policy}@{self.bound_s:g}" if self.bound_s else self.policy


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one cell."""

    requests: int
    kv_pages: int
    rate: float
    """Arrivals per second."""
    goodput: float
    attained: float
    stall_rate: float
    rejected: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    output_tokens_per_s: float
    useful_tokens_per_s: float
    wasted_tokens: int
    swap_gb: float
    preemptions: int
    digest: str
    code: str
    """`code_version` of what ran."""


Figured = Mapping[Cell, Figures]


def placement(traces: Mapping[str, Trace]) -> Placement:
    """Of all points of the experiment."""
    return Placement(traces, sizes=dict.fromkeys(overload_points(), OVERLOAD_SIZE))


def job_of(placed: Placement, cell: Cell) -> Job:
    """ValueError: nothing of the trace fits into the pool."""
    tunables = {"reject_bound_s": cell.bound_s} if cell.bound_s else {}
    return placed.job(cell.point, cell.policy, tunables)


def draw_points(
    count: int, seed: int, traces: Sequence[str] = TRACES, devices: Sequence[str] = DEVICES
) -> list[Point]:
    """`count` different points (all there are, if less). Fewer are the beginning of more."""
    grid = list(itertools.product(traces, devices, LOADS, POOLS, READERS, LINKS))
    chance = random.Random(seed)
    chance.shuffle(grid)
    return [Point(*axes, seed=chance.randrange(2, 1 << 20)) for axes in grid[:count]]


def overload_points() -> list[Point]:
    """The cases of the collapse experiment, each at `OVERLOADS`."""
    cases = (
        ("azure_conv_2023", "h100", 0.25, 25.0),
        ("azure_conv_2023", "h100", 0.5, 3.0),
        ("servegen_deepseek_r1", "h100", 1.0, 25.0),
        ("servegen_deepseek_r1", "rtx4090", 1.0, 12.0),
        ("mooncake_conversation", "h100", 0.5, 12.0),
        ("azure_code_2023", "a100-40", 0.25, 12.0),
    )
    return [
        Point(trace, device, load, pool, 5.0, link)
        for trace, device, pool, link in cases
        for load in OVERLOADS
    ]


def cells_of(point: Point, policies: Sequence[str]) -> list[Cell]:
    """A cell for each policy, several for the one that is tuned."""
    cells = []
    for policy in policies:
        bounds = BOUNDS if policy == "fcfs+reject" else (0.0,)
        cells += [Cell(point, policy, bound) for bound in bounds]
    return cells


def code_version() -> str:
    """Of the sources that decide what a run does: other code, other figures."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for folder in ("mm", "sched", "swap", "kernel", "drivers/sim"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    for name in ("points.py", "filling.py", "capacity.py", "simulate.py", "traces.py"):
        digest.update((root / "bench" / name).read_bytes())
    return digest.hexdigest()[:12]


def figures_of(result: Result, rate: float, code: str) -> Figures:
    return Figures(
        result.requests, result.kv_pages, rate, result.goodput, result.attained,
        result.visible_stall_rate, result.rejected, result.ttft_p50_s, result.ttft_p95_s,
        result.output_tokens_per_s, result.useful_tokens_per_s, result.wasted_tokens,
        result.swap_gb, result.preemptions, result.digest, code,
    )  # fmt: skip


# ---- the file ----


BEGINNING = '{"point": '
"""Of every line."""


def read_cells(path: Path) -> dict[Cell, Figures]:
    """What a file of results has; a line cut short by an interruption is nothing. ValueError."""
    found: dict[Cell, Figures] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_no_number)
            cell = Cell(Point(**row["point"]), row["policy"], row["bound_s"])
            figures = Figures(**row["figures"])
            _check_types(cell.point)
            _check_types(figures)
        except (ValueError, KeyError, TypeError) as why:
            raise ValueError(f"{path}: line {number} is not a result: {why}") from None
        found[cell] = figures
    return found


def _lines(path: Path) -> list[str]:
    """Whole lines. ValueError: not a file of results."""
    if not path.exists():
        return []
    if not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is not a regular file; results are read again when resuming")
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as why:
        raise ValueError(f"{path}: not a file of results: {why}") from None
    if not rest.startswith(BEGINNING[: len(rest)]):
        raise ValueError(f"{path}: line {len(lines) + 1} is not a result; name another file")
    return lines


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a figure")


def _check_types(record: Point | Figures) -> None:
    """ValueError: a line that was edited."""
    for field in fields(record):
        value, kind = getattr(record, field.name), field.type
        words = str(getattr(kind, "__name__", kind))
        good: tuple[type, ...] = (str,) if words == "str" else (int, float)
        if words.endswith("None"):
            good = (*good, type(None))
        if not isinstance(value, good):
            raise ValueError(f"{field.name} cannot be {value!r}")


def run_cells(
    placed: Placement,
    cells: Sequence[Cell],
    path: Path,
    processes: int = 1,
    progress: Progress | None = None,
) -> None:
    """Run `cells` and append their figures to `path`. ValueError."""
    jobs = [job_of(placed, cell) for cell in cells]
    code = code_version()
    with path.open("a", encoding="utf-8") as lines:
        _lock(lines, path)
        _mend(path)

        def note(index: int, result: Result) -> None:
            cell, window = cells[index], jobs[index].setup.window
            assert window.duration_s is not None
            warm_s = jobs[index].setup.warmup_s
            rate = result.requests / (window.duration_s - warm_s)
            row = {
                "point": asdict(cell.point), "policy": cell.policy, "bound_s": cell.bound_s,
                "figures": asdict(figures_of(result, rate, code)),
            }  # fmt: skip
            lines.write(json.dumps(row) + "\n")
            lines.flush()

        run_jobs(placed.traces, jobs, processes, progress, note)


def _lock(lines: TextIO, path: Path) -> None:
    """Until the file is closed. ValueError: another process has it."""
    try:
        fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path}: another grid is writing it; wait or name another") from None


def _mend(path: Path) -> None:
    """Take off a last line that was cut short."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
