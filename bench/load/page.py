"""The report of a load as one HTML file: what was played, figures, plots (extra `report`).

first tokens, cumulated        who waits and who streams, and first tokens, over the same time
tails of each class            gaps between tokens, cumulated
"""

import html
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from tokenix.bench.load.player import Played
from tokenix.bench.load.record import Record
from tokenix.bench.load.run import Report
from tokenix.bench.load.table import facts_lines, table
from tokenix.bench.metrics import percentile

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
MOST_POINTS = 2000
"""Of a curve; more are thinned out, their ends kept."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
  color: #1c1c1c; background: #fff }
pre { background: #f4f4f4; padding: 0.8rem 1rem; overflow-x: auto; font-size: 13px }
figure { margin: 1.5rem 0 } figcaption { color: #555; font-size: 13px }
svg { width: 100%; height: auto } h1 + pre { white-space: pre-wrap }
"""


def write_page(report: Report, path: Path, command: str) -> None:
    """OSError."""
    path.write_text(render(report, command), encoding="utf-8")


def render(report: Report, command: str) -> str:
    """The page. Nothing is loaded from anywhere else."""
    played, summary = report.played, report.summary
    plots = (
        ("First tokens: share of the requests over the time since they were due.", _firsts),
        (
            "Above, requests that wait for their first token and those that stream; below, the "
            "first token of each request where it was due (crosses: refused or failed).",
            _timeline,
        ),
        ("Median, P95 and P99 of each class.", _tails),
        ("Gaps between pieces of output, of steady readers.", _gaps),
    )
    figures = "".join(
        f"<figure>{plot(played)}<figcaption>{html.escape(caption)}</figcaption></figure>"
        for caption, plot in plots
    )
    title = f"{summary['model_id']}, {summary['date']}"
    facts = "<br>".join(html.escape(line) for line in facts_lines(summary["load"]))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><pre>{html.escape(command)}</pre><h2>Load</h2>"
        f"<p>{facts}</p><h2>Figures</h2><pre>{html.escape(table(summary))}</pre>{figures}"
        f"<h2>All figures</h2><details><summary>JSON, names as vllm bench has them</summary>"
        f"<pre>{html.escape(json.dumps(summary, indent=2))}</pre></details></body></html>\n"
    )


# ---- the plots ----


class _Drawing:
    """Axes, and the picture that they become."""

    def __init__(self, figure: Any, axes: list[Any]) -> None:
        self.axes = axes
        self._figure = figure

    def svg(self) -> str:
        from matplotlib import rc_context

        file = io.StringIO()
        with rc_context({"svg.hashsalt": "tokenix"}):
            self._figure.savefig(file, format="svg", metadata={"Date": None})
        text = file.getvalue()
        return text[text.index("<svg") :]


@contextmanager
def _drawing(rows: int, height: float) -> Iterator[_Drawing]:
    """Axes that share their time; no window, and nothing of matplotlib's state is changed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]
    for axis in axes:
        axis.grid(alpha=0.3)
    yield _Drawing(figure, list(axes))


def _classes(played: Played) -> list[tuple[str, str, list[Record]]]:
    """(class, colour, its records)."""
    groups: dict[str, list[Record]] = {}
    for record in played.records:
        groups.setdefault(record.clients, []).append(record)
    return [
        (name, colour, records)
        for (name, records), colour in zip(groups.items(), cycle(COLOURS), strict=False)
    ]


def _firsts(played: Played) -> str:
    with _drawing(1, 3.6) as drawing:
        (axis,) = drawing.axes
        for name, colour, records in _classes(played):
            ttfts = [ttft for record in records if (ttft := record.ttft_s) is not None]
            _curve(axis, ttfts, len(records), colour, name)
        axis.set(xscale="log", xlabel="time to first token (s)", ylabel="share", ylim=(0, 1.02))
    return drawing.svg()


def _gaps(played: Played) -> str:
    with _drawing(1, 3.6) as drawing:
        (axis,) = drawing.axes
        for name, colour, records in _classes(played):
            gaps = [gap for r in records if r.reader.kind == "steady" for gap in r.itls_s]
            _curve(axis, [max(gap, 1e-5) for gap in gaps], len(gaps), colour, name)
        axis.set(xscale="log", xlabel="gap (s)", ylabel="share", ylim=(0, 1.02))
    return drawing.svg()


def _curve(axis: Any, values: list[float], of: int, colour: str, name: str) -> None:
    """Cumulated: a share of `of`, so that a request without a first token keeps it below 1."""
    ordered = sorted(values)
    step = max(1, len(ordered) // MOST_POINTS)
    ranks = [*range(0, len(ordered), step), len(ordered) - 1] if ordered else []
    axis.step([ordered[rank] for rank in ranks], [(rank + 1) / of for rank in ranks],
              where="post", color=colour, label=name)  # fmt: skip
    if ordered:
        axis.legend(loc="lower right")


def _timeline(played: Played) -> str:
    with _drawing(2, 5.6) as drawing:
        above, below = drawing.axes
        waiting, streaming = [], []
        for record in played.records:
            first_s = record.times_s[0] if record.times_s else record.ended_s
            waiting += [(record.due_s, 1), (first_s, -1)]
            streaming += [(first_s, 1), (record.ended_s, -1)]
        for changes, colour, label in (
            (waiting, "#d62728", "waiting"), (streaming, "#1f77b4", "streaming"),
        ):  # fmt: skip
            above.step(*counts_of(changes), where="post", color=colour, label=label)
        above.legend(loc="upper right")
        above.set_ylabel("requests")
        for name, colour, records in _classes(played):
            told = [record for record in records if record.times_s]
            below.plot([r.due_s for r in told], [r.ttft_s for r in told], ".", color=colour,
                       label=name)  # fmt: skip
            lost = [r.due_s for r in records if r.ending in ("refused", "failed")]
            below.plot(lost, [0.0] * len(lost), "x", color=colour, clip_on=False)
        below.legend(loc="upper right")
        below.set(xlabel="time (s)", ylabel="time to first token (s)", ylim=(0, None))
    return drawing.svg()


def counts_of(changes: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    """How many there are from which time on; what changes at one time is one change."""
    steps: Counter[float] = Counter({0.0: 0})
    for time_s, step in changes:
        steps[time_s] += step
    times_s = sorted(steps)
    return times_s, list(accumulate(steps[time_s] for time_s in times_s))


def _tails(played: Played) -> str:
    groups = _classes(played)
    with _drawing(1, 3.2) as drawing:
        (axis,) = drawing.axes
        labels = [
            f"{what} {percent}" for what in ("TTFT", "TPOT") for percent in ("P50", "P95", "P99")
        ]
        width = 0.8 / len(groups)
        for number, (name, colour, records) in enumerate(groups):
            steady = [record for record in records if record.reader.kind == "steady"]
            values = (
                [ttft for r in records if (ttft := r.ttft_s) is not None],
                [tpot for r in steady if (tpot := r.tpot_s) is not None],
            )
            heights = [
                (percentile(of, percent) or 0.0) * 1e3 for of in values for percent in (50, 95, 99)
            ]
            places = [place + (number - len(groups) / 2 + 0.5) * width for place in range(6)]
            axis.bar(places, heights, width, color=colour, label=name)
        axis.set_xticks(range(6), labels)
        least = min((bar.get_height() for bar in axis.patches if bar.get_height()), default=None)
        if least is not None:
            axis.set(yscale="log", ylim=(least / 3, None))
        axis.set_ylabel("ms")
        axis.legend(loc="upper right")
    return drawing.svg()
