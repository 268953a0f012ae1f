"""The figures of a run: what is asked of every serving system, measured the same way for all.

TTFT counts from the scheduled arrival. A refused request counts as failed in goodput and has no
TTFT. Throughput is output tokens over the time from the first arrival to the last token.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tokenix.bench.drive import Outcome, Run
from tokenix.bench.latency import pauses_s, resumes_s, returns_s

TTFT_TARGET_S = 1.0


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Linear between the two nearest ranks; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    assert 0 <= percent <= 100
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy's figures. `ttft_*` are over the short requests, `ttft_all_*` over all."""

    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    ttft_all_p50_s: float | None
    ttft_all_p95_s: float | None
    ttft_all_p99_s: float | None
    visible_stalls: int
    stalled_requests: int
    goodput: float
    """Share of all requests that were answered in time, finished, and had no visible stall."""
    output_tokens: int
    output_tokens_per_s: float
    makespan_s: float
    preemptions: int
    wasted_tokens: int
    """Tokens whose KV was computed more than once."""
    swap_bytes: int
    pause_ms_p95: float | None
    """From the decision to pause until nothing of the process needs its frames."""
    resume_ms_p95: float | None
    """From the decision to resume until all pages are back; recomputing comes on top."""
    return_ms_p95: float | None
    """From the decision to resume until the next token."""
    rejected: int
    failed: int
    """Ended by an error."""
    pace_steps_per_s: float | None
    """Pace of the idle machine around the run; tells whether runs can be compared."""


def measure(run: Run) -> Figures:
    """The figures of one run."""
    outcomes = run.outcomes
    short = _ttfts(outcome for outcome in outcomes if not outcome.arrival.long)
    every = _ttfts(outcomes)
    times_s = [time_s for outcome in outcomes for time_s in outcome.times_s]
    makespan_s = max(times_s, default=0.0) - min(o.arrival.at_s for o in outcomes)
    stalls = [outcome.stalls for outcome in outcomes]
    good = sum(outcome.good(TTFT_TARGET_S) for outcome in outcomes)
    return Figures(
        ttft_p50_s=percentile(short, 50),
        ttft_p95_s=percentile(short, 95),
        ttft_p99_s=percentile(short, 99),
        ttft_all_p50_s=percentile(every, 50),
        ttft_all_p95_s=percentile(every, 95),
        ttft_all_p99_s=percentile(every, 99),
        visible_stalls=sum(stalls),
        stalled_requests=sum(count > 0 for count in stalls),
        goodput=good / len(outcomes),
        output_tokens=len(times_s),
        output_tokens_per_s=len(times_s) / makespan_s if makespan_s > 0 else 0.0,
        makespan_s=makespan_s,
        preemptions=int(run.counters["preemptions"]),
        wasted_tokens=int(run.counters["recomputed_tokens"]),
        swap_bytes=int(run.counters["swap.bytes"]),
        pause_ms_p95=_ms(percentile(pauses_s(run.events), 95)),
        resume_ms_p95=_ms(percentile(resumes_s(run.events), 95)),
        return_ms_p95=_ms(percentile(returns_s(run), 95)),
        rejected=sum(bool(outcome.refused) for outcome in outcomes),
        failed=sum(bool(outcome.error) for outcome in outcomes),
        pace_steps_per_s=sum(run.paces) / len(run.paces) if run.paces else None,
    )


def as_json(figures: Figures) -> dict[str, object]:
    """Plain values, rounded to what is meant seriously."""
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(figures).items()
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether all policies gave every request the same tokens."""

    identical: bool
    compared: int
    """Requests that finished under every policy."""
    different: tuple[str, ...]
    """Names of those that did not agree."""


def compare_outputs(runs: Sequence[Run]) -> Comparison:
    """Token by token, over the requests that finished under every policy."""
    by_name = [{outcome.arrival.name: outcome for outcome in run.outcomes} for run in runs]
    compared, different = 0, []
    for name in by_name[0]:
        outcomes = [table[name] for table in by_name]
        if not all(outcome.finished for outcome in outcomes):
            continue
        compared += 1
        if len({outcome.tokens for outcome in outcomes}) > 1:
            different.append(name)
    return Comparison(compared > 0 and not different, compared, tuple(different))


def _ttfts(outcomes: Iterable[Outcome]) -> list[float]:
    return [ttft_s for outcome in outcomes if (ttft_s := outcome.ttft_s) is not None]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
