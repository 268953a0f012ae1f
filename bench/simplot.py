"""Plots of simulated runs. Needs matplotlib (the extra `report`)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenix.bench.picture import save
from tokenix.bench.simulate import Result
from tokenix.bench.sweep import Sweep

DPI = 80

LABELS = {
    "load": "load (times what fcfs sustains)",
    "pool": "KV pool (share of what no preemption needs)",
    "reader": "reader (tokens/s)",
    "link": "link (GB/s each way)",
    "host": "host tier (pools)",
    "seed": "seed",
}
COLOURS = {
    "progress": "#d62728", "fcfs": "#1f77b4", "fcfs+reject": "#17becf", "retract": "#2ca02c",
    "mlfq": "#9467bd", "buffer": "#8c564b", "qoe": "#e377c2", "hrrn": "#7f7f7f",
    "oracle-srpt": "#bcbd22",
}  # fmt: skip


def plot(results: Sequence[Result], path: str | Path) -> None:
    """Curves of TTFT (share of requests over seconds); with several loads also goodput and P95."""
    scales = sorted({result.rate_scale for result in results})
    with _figure(path, 3 if len(scales) > 1 else 1) as axes:
        _cdf(axes[0], [result for result in results if result.rate_scale == scales[-1]])
        axes[0].set_title(f"first token at {scales[-1]:g}x")
        if len(scales) == 1:
            return
        for policy in dict.fromkeys(result.policy for result in results):
            mine = sorted((r for r in results if r.policy == policy), key=lambda r: r.rate_scale)
            loads = [r.rate_scale for r in mine]
            _line(axes[1], policy, loads, [r.goodput for r in mine])
            _line(axes[2], policy, loads, [r.ttft_p95_s for r in mine])
        axes[1].set(xlabel="load (times the trace)", ylabel="goodput", ylim=(0, 1.02))
        axes[2].set(xlabel="load (times the trace)", ylabel="P95 TTFT (s)", yscale="log")


def plot_cdfs(panels: Mapping[str, Sequence[Result]], path: str | Path) -> None:
    """Curves of TTFT, a panel for each load."""
    with _figure(path, len(panels)) as axes:
        for axis, (title, results) in zip(axes, panels.items(), strict=True):
            _cdf(axis, results)
            axis.set_title(title)


def plot_sweep(swept: Sweep, path: str | Path) -> None:
    """Goodput, P95 TTFT and visible stalls over what was swept."""
    with _figure(path, 3) as axes:
        for policy in swept.policies:
            mine = swept.of(policy)
            _line(axes[0], policy, swept.values, [r.goodput for r in mine])
            _line(axes[1], policy, swept.values, [r.ttft_p95_s for r in mine])
            _line(axes[2], policy, swept.values, [100 * r.visible_stall_rate for r in mine])
        axes[0].set(ylabel="goodput", ylim=(0, 1.02))
        axes[1].set(ylabel="P95 TTFT (s)", yscale="log")
        _stalls(axes[2])
        for axis in axes:
            axis.set(xlabel=LABELS[swept.what])
            if swept.what != "seed":
                axis.set(xscale="log", xticks=swept.values)
                axis.set_xticklabels([f"{value:g}" for value in swept.values], fontsize=7)
                axis.minorticks_off()


def plot_misses(points: Mapping[str, Sequence[tuple[float, Result]]], path: str | Path) -> None:
    """P95 TTFT and visible stalls of runs over their miss rate; a colour for each policy."""
    with _figure(path, 2) as axes:
        for policy, runs in points.items():
            ordered = sorted(runs, key=lambda run: run[0])
            rates = [rate for rate, _ in ordered]
            _line(axes[0], policy, rates, [r.ttft_p95_s for _, r in ordered], "")
            _line(axes[1], policy, rates, [100 * r.visible_stall_rate for _, r in ordered], "")
        axes[0].set(ylabel="P95 TTFT (s)", yscale="log")
        _stalls(axes[1])
        for axis in axes:
            axis.set(xlabel="misses per token of output", xscale="symlog", xlim=(0, None))


def plot_heat(
    rows: Sequence[float], columns: Sequence[float], cells: Sequence[Sequence[float]], title: str,
    path: str | Path,
) -> None:  # fmt: skip
    """Pools (rows) over loads (columns); 1 is white."""
    with _figure(path, 1) as (axis,):
        axis.grid(visible=False)
        image = axis.imshow(cells, cmap="RdBu", vmin=0.0, vmax=2.0, aspect="auto", origin="lower")
        axis.set_xticks(range(len(columns)), [f"{load:g}" for load in columns])
        axis.set_yticks(range(len(rows)), [f"{pool:g}" for pool in rows])
        axis.set(xlabel=LABELS["load"], ylabel="KV pool (share of need)", title=title)
        for y, line in enumerate(cells):
            for x, value in enumerate(line):
                axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8)
        image.axes.figure.colorbar(image)


def plot_bars(groups: Mapping[str, Mapping[str, float]], label: str, path: str | Path) -> None:
    """A bar for each inner name, side by side for each group."""
    with _figure(path, 1) as (axis,):
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        width = 0.8 / max(1, len(groups))
        for index, (group, values) in enumerate(groups.items()):
            places = [at + index * width for at in range(len(names))]
            heights = [values.get(name, 0.0) for name in names]
            axis.bar(places, heights, width, label=group, color=COLOURS.get(group))
        axis.set_xticks([at + 0.4 - width / 2 for at in range(len(names))], names, fontsize=7)
        axis.set(ylabel=label)


@contextmanager
def _figure(path: str | Path, columns: int) -> Iterator[list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(4.6 * columns, 3.4), squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    yield list(axes[0])
    for axis in axes[0]:
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
    figure.tight_layout()
    save(figure, path, dpi=DPI, metadata={"Software": None})
    pyplot.close(figure)


def _line(
    axis: Any,
    policy: str,
    places: Sequence[float],
    values: Sequence[float | None],
    style: str = "-",
) -> None:
    heights = [float("nan") if value is None else value for value in values]
    look = {"marker": "o", "ms": 3, "linestyle": style, "color": COLOURS.get(policy)}
    axis.plot(places, heights, label=policy, **look)


def _stalls(axis: Any) -> None:
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    axis.set(ylabel="streams with a visible stall (%)", ylim=(-0.02, 110))


def _cdf(axis: Any, results: Sequence[Result]) -> None:
    readers = {result.reader for result in results}
    for result in results:
        ttfts = sorted(o.ttft_s for o in result.outcomes if o.ttft_s is not None)
        shares = [(rank + 1) / result.requests for rank in range(len(ttfts))]
        label = result.policy + (f", {result.reader:g} tok/s" if len(readers) > 1 else "")
        axis.step(ttfts, shares, where="post", label=label, color=COLOURS.get(result.policy))
    axis.set(xscale="log", xlabel="TTFT (s)", ylabel="share of all requests", ylim=(0, 1.02))
