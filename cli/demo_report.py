"""What the demo found, for people: a table of the policies side by side, and what happened."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tokenix.bench.demo import OURS, Report
from tokenix.bench.metrics import Figures

UNSTEADY = 1.3
"""Spread of the machine's pace from which on times are compared with care."""

Cell = Callable[[Figures], str]


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def millis(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


ROWS: tuple[tuple[str, Cell], ...] = (
    ("TTFT of short requests, P50", lambda f: seconds(f.ttft_p50_s)),
    ("  P95", lambda f: seconds(f.ttft_p95_s)),
    ("  P99", lambda f: seconds(f.ttft_p99_s)),
    ("TTFT of all requests, P95", lambda f: seconds(f.ttft_all_p95_s)),
    ("visible stalls", lambda f: f"{f.visible_stalls}"),
    ("goodput", lambda f: f"{f.goodput:.0%}"),
    ("refused", lambda f: f"{f.rejected}"),
    ("output tokens per second", lambda f: f"{f.output_tokens_per_s:.1f}"),
    ("time for everything", lambda f: f"{f.makespan_s:.1f} s"),
    ("preemptions", lambda f: f"{f.preemptions}"),
    ("tokens computed again", lambda f: f"{f.wasted_tokens}"),
    ("swapped", lambda f: f"{f.swap_bytes / 1e6:.0f} MB"),
    ("pause, P95", lambda f: millis(f.pause_ms_p95)),
    ("resume, P95", lambda f: millis(f.resume_ms_p95)),
    ("resume to next token, P95", lambda f: millis(f.return_ms_p95)),
)

BRIEF = 6
"""The first so many rows, where there is little room."""


def show(report: Report) -> None:
    """Print the table and the story on standard output."""
    console = Console(highlight=False)
    console.print()
    console.print(table(report.figures))
    console.print()
    for sentence in story(report):
        console.print(sentence, soft_wrap=not console.is_terminal)


def table(figures: dict[str, Figures], rows: int = len(ROWS)) -> Table:
    """All policies side by side; the first `rows` rows."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("")
    for name in figures:
        shown.add_column(name, justify="right", style="green" if name == OURS else "")
    for label, cell in ROWS[:rows]:
        shown.add_row(label, *(cell(column) for column in figures.values()))
    return shown


def story(report: Report) -> list[str]:
    """What happened, in sentences that hold whatever the figures are."""
    pool, needed = report.workload.pool_pages, report.pages_needed()
    shape = report.workload.shape
    sentences = [
        f"The {shape.long_streams} long streams need {needed} KV pages and the pool has {pool}, "
        f"so when the {shape.shorts} short requests come, somebody has to wait."
    ]
    ours = report.figures.get(OURS)
    others = {name: f for name, f in report.figures.items() if name != OURS}
    if ours is not None and others and ours.ttft_p95_s:
        waits = " and ".join(
            f"{name} {seconds(f.ttft_p95_s)} ({_times(f.ttft_p95_s, ours.ttft_p95_s)})"
            for name, f in others.items()
        )
        sentences.append(
            f"P95 to the first token of a short request: {waits}; {OURS} "
            f"{seconds(ours.ttft_p95_s)}. {OURS} paused streams whose readers still had text to "
            f"read, {ours.preemptions} times, and {_noticed(ours.visible_stalls)}."
        )
        if ours.rejected:
            sentences.append(
                f"{OURS} refused {ours.rejected} requests that it could not have served in time "
                "(they count as failed in goodput, and have no time to a first token)."
            )
        best = max(f.output_tokens_per_s for f in others.values())
        wasted = ", ".join(f"{name} {f.wasted_tokens}" for name, f in report.figures.items())
        sentences.append(
            f"It delivered {ours.output_tokens_per_s / best:.0%} of the tokens per second of the "
            f"best other policy; tokens computed again: {wasted}."
        )
    comparison = report.comparison
    if len(report.figures) > 1:
        same = "token for token the same" if comparison.identical else "NOT all the same"
        sentences.append(
            f"The {comparison.compared} answers that finished under every policy are {same}."
        )
    if report.pace_spread() > UNSTEADY:
        sentences.append(
            f"This machine's own pace changed {report.pace_spread():.1f}-fold between the runs "
            "(other work?), so compare times and throughput with care."
        )
    return sentences


def _times(theirs: float | None, ours: float) -> str:
    if not theirs:
        return "no answers"
    ratio = theirs / ours
    return f"{ratio:.1f} times as long" if ratio >= 1 else f"{1 / ratio:.1f} times as short"


def _noticed(stalls: int) -> str:
    return f"readers noticed {stalls} times" if stalls else "no reader noticed"
