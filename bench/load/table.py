"""The summary of a load as text."""

from typing import Any

LATENCIES = (
    ("time to first token", "ttft"), ("time per output token", "tpot"),
    ("inter-token latency", "itl"), ("end to end", "e2el"), ("sent after due", "late"),
)  # fmt: skip
LATE_MS = 20.0
"""What a client may be late without a word."""
COLUMNS = ("mean", "median", "p90", "p95", "p99")


def table(summary: dict[str, Any]) -> str:
    """A screen of text."""
    load = summary["load"]
    lines = [
        f"{summary['model_id']} at {summary['endpoint']}",
        *facts_lines(load),
        "",
        f"completed {summary['completed']}   failed {summary['failed']}   refused "
        f"{summary['refused']}   left {summary['left']}   in {summary['duration']:.1f} s",
        *_notes(summary),
        f"{summary['request_throughput']:.2f} requests/s   "
        f"{summary['output_throughput']:.1f} output tokens/s   "
        f"{summary['total_token_throughput']:.1f} tokens/s in all",
        f"goodput {_share(summary['goodput'])}, {summary['request_goodput']:.2f}/s "
        f"({summary['good_means']})",
        f"visible stalls {summary['visible_stalls']} in {summary['stalled_requests']} requests, "
        f"the worst {summary['worst_stall_ms']:.0f} ms   "
        f"fluidity {_share(summary['mean_fluidity_index'])}",
        f"client {summary['client_cpu_share']:.0%} of a core",
    ]
    if summary.get("usd_per_million_output_tokens") is not None:
        lines.append(
            f"{summary['usd_per_million_output_tokens']:.3f} USD for a million output tokens, "
            f"{summary['usd_per_million_total_tokens']:.3f} for a million in all"
        )
    lines += ["", f"{'ms':24}" + "".join(f"{name:>10}" for name in COLUMNS)]
    for title, name in LATENCIES:
        cells = (_ms(summary[f"{column}_{name}_ms"]) for column in COLUMNS)
        lines.append(f"{title:24}" + "".join(f"{cell:>10}" for cell in cells))
    if len(summary["classes"]) > 1:
        lines += ["", *_classes(summary["classes"])]
    if summary["tenants"]:
        lines += ["", *_classes(summary["tenants"])]
    return "\n".join(lines) + "\n"


def _notes(summary: dict[str, Any]) -> list[str]:
    """What went otherwise than asked."""
    lines = [f"{count} times: {error}" for error, count in summary["errors"]]
    late_ms = summary["client_late_ms"]
    if late_ms is not None and late_ms > LATE_MS:
        lines.append(
            f"requests left up to {late_ms:.0f} ms (P99) after they were due, by a busy client or "
            "slow connecting; latencies contain that"
        )
    if summary["interrupted"]:
        lines.append(f"interrupted; {summary['under_way']} under way then are not counted")
    if summary["ended_short"]:
        lines.append(f"{summary['ended_short']} ended with fewer tokens than were asked for")
    if summary["without_usage"]:
        lines.append(
            f"{summary['without_usage']} came without usage: their pieces were counted as tokens"
        )
    return lines


def facts_lines(load: dict[str, Any]) -> list[str]:
    """Arrivals, burst, lengths and tail of the load."""
    lines = [load["source"]]
    if load["rate"] is not None:
        line = f"{load['requests']} requests in {load['span_s']:.1f} s, {load['rate']:.2f}/s"
        if load["gap_cv"] is not None:
            line += f", CV of the gaps {load['gap_cv']:.2f} (Poisson: 1)"
        if load["peak"] is not None:
            line += f", the busiest second has {load['peak']:.1f} times the mean"
        lines.append(line)
    else:
        lines.append(f"{load['requests']} requests at once")
    for name in ("prompt", "output"):
        length = load[name]
        tail = "" if length["tail"] is None else f"; the longest 1 % hold {length['tail']:.1%}"
        lines.append(
            f"{name} tokens: mean {length['mean']:.0f}, P50 {length['p50']:.0f}, P95 "
            f"{length['p95']:.0f}, P99 {length['p99']:.0f}, most {length['most']}{tail}"
        )
    return lines


def _classes(groups: dict[str, dict[str, Any]]) -> list[str]:
    head = ("", "done", "ttft p50", "p95", "p99", "tpot p95", "goodput", "stalls")
    lines = ["".join([f"{head[0]:16}", *(f"{name:>10}" for name in head[1:])])]
    for name, one in groups.items():
        cells = (
            str(one["completed"]), _ms(one["median_ttft_ms"]), _ms(one["p95_ttft_ms"]),
            _ms(one["p99_ttft_ms"]), _ms(one["p95_tpot_ms"]), _share(one["goodput"]),
            str(one["visible_stalls"]),
        )  # fmt: skip
        lines.append("".join([f"{name[:15]:16}", *(f"{cell:>10}" for cell in cells)]))
    return lines


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
