"""The figures of a load. Names are those of `vllm bench serve`, so that its readers can read them.

TTFT and end-to-end latency count from when a request was *due*; other tools count from when it was
sent, which hides what a full server makes others wait (`late_ms` tells the difference: how much
later than due requests were sent). Percentiles are linear between ranks. Latencies between tokens
are those of steady readers: who stalls or leaves sees what it does itself.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

from tokenix.bench.load.facts import facts_of
from tokenix.bench.load.player import Played
from tokenix.bench.load.record import Record
from tokenix.bench.load.sessions import Part
from tokenix.bench.metrics import percentile
from tokenix.bench.reader import STALL_TOLERANCE_S, fluidity

PERCENTILES = (90, 95, 99)
MOST_ERRORS = 5
"""Messages that are told, the most frequent first."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What counts as good, and what a machine costs."""

    ttft_s: float = 1.0
    tpot_s: float | None = None
    e2el_s: float | None = None
    usd_per_hour: float | None = None


def summarize(
    played: Played, parts: Sequence[Part], wants: Wants, names: dict[str, Any]
) -> dict[str, Any]:
    """All figures, plain values. `names`: what the caller knows of server and model."""
    records = played.records
    assert records, "a load has a request"
    first = parts[0].clients
    date = time.strftime("%Y%m%d-%H%M%S", time.localtime(played.began))
    summary: dict[str, Any] = {
        "date": date, **names, "num_prompts": len(records),
        "request_rate": first.rate if first.rate is not None else "inf",
        "burstiness": first.burstiness, "max_concurrency": first.concurrency,
        "duration": played.duration_s, "interrupted": played.interrupted,
        "under_way": played.under_way,
    }  # fmt: skip
    summary |= figures(records, played.duration_s, wants)
    lates = [record.sent_s - record.due_s for record in records if record.sent_s]
    summary |= _spread("late", lates)
    summary["client_late_ms"] = _client_late_ms(records, parts)
    summary["client_cpu_share"] = played.client_cpu_s / max(played.duration_s, 1e-9)
    steady = all(record.reader.kind == "steady" for record in records)
    summary["good_means"] = _means(wants) + ("" if steady else ", of readers that are steady")
    summary["errors"] = Counter(r.error for r in records if r.error).most_common(MOST_ERRORS)
    facts = facts_of(parts, records)
    summary["load"] = facts.as_json()
    if first.trace is not None and facts.rate is not None:
        summary["request_rate"] = facts.rate
    groups = dict.fromkeys(record.clients for record in records)
    summary["classes"] = {
        name: figures([r for r in records if r.clients == name], played.duration_s, wants)
        for name in groups
    }
    tenants = dict.fromkeys(record.tenant for record in records if record.tenant)
    summary["tenants"] = {
        name: figures([r for r in records if r.tenant == name], played.duration_s, wants)
        for name in tenants
    }
    return summary


def _client_late_ms(records: Sequence[Record], parts: Sequence[Part]) -> float | None:
    """P99 of how late requests were sent that no bound held back: by this process, or because it
    took so long to connect. It is part of their latencies."""
    held = {p.clients.name for p in parts if p.clients.concurrency and not p.clients.closed}
    late_s = percentile(
        [r.sent_s - r.due_s for r in records if r.sent_s and r.clients not in held], 99
    )
    return None if late_s is None else late_s * 1e3


def figures(records: Sequence[Record], duration_s: float, wants: Wants) -> dict[str, Any]:
    """Of some of a load's records."""
    done = [record for record in records if record.finished]
    steady = [record for record in records if record.reader.kind == "steady"]
    seconds = max(duration_s, 1e-9)
    output = sum(record.output_tokens for record in records)
    inputs = sum(record.input_tokens for record in done)
    good = [record for record in steady if is_good(record, wants)]
    made: dict[str, Any] = {
        "completed": len(done),
        "failed": sum(record.ending == "failed" for record in records),
        "refused": sum(record.ending == "refused" for record in records),
        "left": sum(record.ending == "left" for record in records),
        "ended_short": sum(record.short for record in records),
        "without_usage": sum(not record.counted for record in done),
        "total_input_tokens": inputs,
        "total_output_tokens": output,
        "total_cached_tokens": sum(record.cached_tokens for record in done),
        "request_throughput": len(done) / seconds,
        "output_throughput": output / seconds,
        "total_token_throughput": (inputs + output) / seconds,
        "request_goodput": len(good) / seconds,
        "goodput": len(good) / len(steady) if steady else None,
        "max_output_tokens_per_s": _busiest_second(records),
        "max_concurrent_requests": _most_at_once(records),
    }
    made |= _spread("ttft", (ttft for r in records if (ttft := r.ttft_s) is not None))
    made |= _spread("tpot", (tpot for r in steady if (tpot := r.tpot_s) is not None))
    made |= _spread("itl", (itl for r in steady for itl in r.itls_s))
    made |= _spread("e2el", (e2el for r in steady if (e2el := r.e2el_s) is not None))
    made |= _of_readers(steady, wants)
    if wants.usd_per_hour is not None:
        cost = wants.usd_per_hour * duration_s / 3600
        for name, tokens in (("output", output), ("total", inputs + output)):
            made[f"usd_per_million_{name}_tokens"] = cost / tokens * 1e6 if tokens else None
    return made


def is_good(record: Record, wants: Wants) -> bool:
    """It finished, came in time, and its reader never had to wait."""
    if not record.finished or _stalls(record):
        return False
    bounds = (
        (record.ttft_s, wants.ttft_s), (record.tpot_s, wants.tpot_s), (record.e2el_s, wants.e2el_s),
    )  # fmt: skip
    return all(bound is None or (value or 0.0) <= bound for value, bound in bounds)


def _stalls(record: Record) -> list[float]:
    """By how much each visible stall was late."""
    return [late_s for late_s in record.late_s if late_s > STALL_TOLERANCE_S]


def _of_readers(steady: Sequence[Record], wants: Wants) -> dict[str, Any]:
    begun = [record for record in steady if record.times_s]
    stalls = [_stalls(record) for record in begun]
    fluid = [
        fluidity(record.token_times_s, record.reader.tokens_per_s, wants.ttft_s, record.due_s)
        for record in begun
    ]
    return {
        "visible_stalls": sum(map(len, stalls)),
        "stalled_requests": sum(map(bool, stalls)),
        "worst_stall_ms": max((late_s for lates in stalls for late_s in lates), default=0.0) * 1e3,
        "max_itl_ms": max((itl for r in steady for itl in r.itls_s), default=0.0) * 1e3,
        "mean_fluidity_index": fmean(fluid) if fluid else None,
        "p5_fluidity_index": percentile(fluid, 5),
    }


def _spread(name: str, values_s: Iterable[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles, in milliseconds; None without values."""
    ordered = sorted(values_s)
    made = {
        f"mean_{name}_ms": fmean(ordered) if ordered else None,
        f"median_{name}_ms": median(ordered) if ordered else None,
        f"std_{name}_ms": pstdev(ordered) if ordered else None,
        **{f"p{percent}_{name}_ms": percentile(ordered, percent) for percent in PERCENTILES},
    }
    return {key: None if value is None else value * 1e3 for key, value in made.items()}


def _busiest_second(records: Iterable[Record]) -> int:
    seconds = Counter(math.floor(time_s) for record in records for time_s in record.token_times_s)
    return max(seconds.values(), default=0)


def _most_at_once(records: Iterable[Record]) -> int:
    """Requests under way at the same time."""
    changes = sorted(
        change
        for record in records
        if record.sent_s or record.ended_s
        for change in ((record.sent_s, 1), (record.ended_s, -1))
    )
    most = now = 0
    for _, step in changes:
        now += step
        most = max(most, now)
    return most


def _means(wants: Wants) -> str:
    """The definition that `goodput` was counted by."""
    bounds = [f"first token within {wants.ttft_s:g} s"]
    if wants.tpot_s is not None:
        bounds.append(f"at most {wants.tpot_s * 1e3:g} ms a token")
    if wants.e2el_s is not None:
        bounds.append(f"all within {wants.e2el_s:g} s")
    return ", ".join(["finished", *bounds, f"no token {STALL_TOLERANCE_S:g} s late for its reader"])
