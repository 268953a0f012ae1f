"""The live view of the demo: who runs, who waits and who is paused, over time.

progress   14.2 s   KV pool ################### 178/180 pages   answered 12   refused 0
long 1     ##########......#####      353/640 tokens   read 113
...
short      waiting        24311
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tokenix.bench.demo import CALIBRATION, DemoOptions, Observer
from tokenix.bench.drive import Sample
from tokenix.bench.metrics import Figures
from tokenix.bench.workload import Workload
from tokenix.cli.demo_report import BRIEF, table
from tokenix.syscalls.types import Progress

COLUMNS = 56
"""Cells of the timeline."""

CELL_S = 0.25
"""Time of a cell, until the run is longer than the timeline."""

MARKS = {
    "new": ("·", "yellow"),
    "swapping-out": ("░", "cyan"),
    "swapped": ("░", "cyan"),
    "swapping-in": ("░", "cyan"),
}
RUNS = ("█", "green")
LEGEND = "█ runs   ░ paused   · waits for its first frames   digits: how many short requests"


class LiveView(Observer):
    """Redraws itself while the demo runs; use as a context manager."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._policy = ""
        self._workload: Workload | None = None
        self._samples: list[Sample] = []
        self._done: dict[str, Figures] = {}
        self._stage = ""
        self._live = Live(auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, problem, trace)

    def booting(self, policy: str) -> Progress | None:
        self._policy, self._samples = policy, []
        doing = "measuring this machine" if policy == CALIBRATION else f"booting for {policy}"

        def show(stage: str, done: int, total: int) -> None:
            line = f"{doing}: {stage} {100 * done // max(1, total)} %"
            if line != self._stage:
                self._stage = line
                self._draw()

        self._stage = doing
        self._draw()
        return show

    def started(self, policy: str, workload: Workload) -> None:
        self._workload, self._stage = workload, ""

    def sample(self, sample: Sample) -> None:
        self._samples.append(sample)
        if len(self._samples) % 2:
            self._draw()

    def finished(self, policy: str, figures: Figures) -> None:
        self._done[policy] = figures
        self._draw()

    def _draw(self) -> None:
        self._live.update(self._render(), refresh=True)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._done:
            parts += [table(self._done, BRIEF), Text()]
        if self._stage:
            parts.append(Text(self._stage, style="dim"))
        elif self._samples and self._workload is not None:
            parts += [
                header(self._policy, self._samples[-1], self._workload),
                timeline(self._samples, self._workload),
                Text(LEGEND, style="dim"),
            ]
        return Group(*parts)


def header(policy: str, sample: Sample, workload: Workload) -> Text:
    """The policy, the clock and the KV pool."""
    filled = min(20, round(20 * sample.held_pages / workload.pool_pages))
    line = Text(f"{policy:<10}", style="bold")
    line.append(f" {sample.time_s:5.1f} s   KV pool ", style="not bold")
    line.append("━" * filled, style="not bold magenta")
    line.append("━" * (20 - filled), style="not bold bright_black")
    line.append(
        f" {sample.held_pages:3}/{workload.pool_pages} pages   finished {sample.finished}   "
        f"refused {sample.refused}",
        style="not bold",
    )
    return line


def timeline(samples: Sequence[Sample], workload: Workload) -> Table:
    """A row for each long stream, and two for the short requests together."""
    cells = columns(samples)
    last = dict(samples[-1].processes)
    rows = Table.grid(padding=(0, 1))
    for arrival in workload.longs:
        stat = last.get(arrival.name)
        done = "" if stat is None else f"{stat.output_tokens:4}/{arrival.output_tokens} tokens"
        lead = "" if stat is None or stat.lead_s is None else f"reader {stat.lead_s:+5.1f} s behind"
        rows.add_row(arrival.name, strip(cells, arrival.name), done, Text(lead, style="dim"))
    names = {arrival.name for arrival in workload.shorts}
    rows.add_row("short, run", counts(cells, names, waiting=False), "", "")
    rows.add_row("short, wait", counts(cells, names, waiting=True), "", "")
    return rows


def columns(samples: Sequence[Sample]) -> list[Sample | None]:
    """The last sample of each cell of the timeline."""
    cell_s = max(CELL_S, (samples[-1].time_s + CELL_S) / COLUMNS)
    cells: list[Sample | None] = [None] * (int(samples[-1].time_s / cell_s) + 1)
    for sample in samples:
        cells[int(sample.time_s / cell_s)] = sample
    return cells[:COLUMNS]


def strip(cells: Sequence[Sample | None], name: str) -> Text:
    """One request's states over time."""
    line = Text()
    for cell in cells:
        stat = None if cell is None else dict(cell.processes).get(name)
        line.append(*((" ", "") if stat is None else MARKS.get(stat.state, RUNS)))
    line.append(" " * (COLUMNS - len(cells)))
    return line


def counts(cells: Sequence[Sample | None], names: set[str], waiting: bool) -> Text:
    """How many of the requests wait (or do not) in each cell; + for ten and more."""
    line = Text(style="yellow" if waiting else "green")
    for cell in cells:
        found = 0
        for name, stat in () if cell is None else cell.processes:
            found += name in names and (stat.output_tokens == 0) == waiting
        line.append(" " if not found else str(found) if found < 10 else "+")
    return line
