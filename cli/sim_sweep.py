"""What `tokenix sim sweep` does."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tokenix.bench.points import Point
from tokenix.bench.sweep import AXES, Sweep, sweep
from tokenix.bench.traces import read_trace
from tokenix.cli import stdout
from tokenix.cli.checks import check_image
from tokenix.cli.sim_run import bars, time_columns
from tokenix.cli.status import OK, UsageError

MOST_POOLS = 100.0


def run_sweep(
    what: str,
    values: Sequence[float] | None,
    trace_path: Path,
    base: Point,
    policies: Sequence[str],
    jobs: int,
    as_json: bool,
    plot: Path | None,
) -> int:
    check_image(plot)
    shares = [base.pool, base.host, *((values or ()) if what in ("pool", "host") else ())]
    if max(shares) > MOST_POOLS:
        raise UsageError(f"a pool or host tier of {max(shares):g} is more than {MOST_POOLS:g}")
    try:
        trace = read_trace(trace_path)
        base = replace(base, trace=trace.name)
        count = len(policies) * len(AXES.get(what, ()) if values is None else values)
        with bars(count) as progress:
            swept = sweep(what, base, trace, policies, values, processes=jobs, progress=progress)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if plot is not None:
        from tokenix.bench.simplot import plot_sweep

        plot_sweep(swept, plot)
    if as_json:
        runs = [{what: value, **result.as_json()} for value, result in swept.rows()]
        shown = {"what": what, "base": asdict(swept.base), "runs": runs}
        stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        _show(swept)
    return OK


def _show(swept: Sweep) -> None:
    lines = [
        f"{swept.what:>8}  {'policy':<12} {'good':>6} {'stalled':>8} {'refused':>7} {'of':>6} | "
        f"{'TTFT P50':>8} {'P95':>8} {'P99 s':>8} | {'out tok/s':>9} {'wasted':>9} {'swap GB':>8}"
    ]
    for value, r in swept.rows():
        ttfts = time_columns((r.ttft_p50_s, r.ttft_p95_s, r.ttft_p99_s))
        lines.append(
            f"{value:>8g}  {r.policy:<12} {r.goodput:>6.3f} {r.visible_stall_rate:>8.2%} "
            f"{r.rejected:>7} {r.requests:>6} | {ttfts} | {r.output_tokens_per_s:>9.0f} "
            f"{r.wasted_tokens:>9} {r.swap_gb:>8.1f}"
        )
    stdout.write("\n".join(lines) + "\n")
