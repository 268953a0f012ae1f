"""What a load was like: lengths, tail, burst. Of what was sent, so also of loads without an end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, pstdev

from tokenix.bench.load.record import Record
from tokenix.bench.load.sessions import Part
from tokenix.bench.metrics import percentile

TAIL_SHARE = 0.01
BURST_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of prompts or outputs, in tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    most: int
    tail: float | None
    """Share of all tokens that the longest 1 % of the requests have (0.01: no tail); None for
    fewer than a hundred."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The load that was played, as every report has it."""

    source: str
    """How arrivals are made: a process with its parameters, or a trace."""
    requests: int
    span_s: float
    """Between the first arrival and the last."""
    rate: float | None
    """Requests a second; None for a single moment."""
    gap_cv: float | None
    """Coefficient of variation of the gaps between arrivals: 1 for a Poisson process."""
    peak: float | None
    """Most arrivals of a second, times the mean; None if all was over in one."""
    prompt: Lengths
    output: Lengths

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def facts_of(parts: Sequence[Part], records: Sequence[Record]) -> Facts:
    """`records`: by the time they were due, at least one."""
    times_s = [record.due_s for record in records]
    span_s = times_s[-1] - times_s[0]
    gaps = [after - before for before, after in pairwise(times_s)]
    mean_s = fmean(gaps) if gaps else 0.0
    rate = (len(records) - 1) / span_s if span_s > 0 else None
    seconds = Counter(int((time_s - times_s[0]) / BURST_WINDOW_S) for time_s in times_s)
    return Facts(
        source="; ".join(describe(part) for part in parts),
        requests=len(records),
        span_s=span_s,
        rate=rate,
        gap_cv=pstdev(gaps) / mean_s if mean_s > 0 else None,
        peak=max(seconds.values()) / BURST_WINDOW_S / rate
        if rate and span_s > BURST_WINDOW_S
        else None,
        prompt=_lengths([record.input_tokens or record.planned_input for record in records]),
        output=_lengths([record.planned_output for record in records]),
    )


def describe(part: Part) -> str:
    """How a group arrives, in a few words."""
    clients = part.clients
    at_most = f", at most {clients.concurrency} at once" if clients.concurrency else ""
    if part.trace is not None:
        scaled = f" at {clients.rate_scale:g} times its rate" if clients.rate_scale != 1 else ""
        without = f", {part.trace.skipped} rows left out" if part.trace.skipped else ""
        how = f"trace {part.trace.name} ({part.trace.format}){scaled}{without}{at_most}"
    elif clients.closed:
        how = f"closed loop of {clients.concurrency}"
    elif clients.rate is None:
        how = f"all at once{at_most}"
    else:
        kind = "Poisson" if clients.burstiness == 1 else f"gamma, shape {clients.burstiness:g}"
        ramp = f" to {clients.rate_to:g} in {clients.ramp_s:g} s" if clients.rate_to else ""
        how = f"{kind}, {clients.rate:g}/s{ramp}{at_most}"
    start = f" from {clients.start_s:g} s on" if clients.start_s else ""
    return f"{clients.name}: {how}{start}"


def _lengths(counts: list[int]) -> Lengths:
    ordered = sorted(counts)
    longest = ordered[-round(TAIL_SHARE * len(ordered)) :] if len(ordered) >= 100 else []
    p50, p95, p99 = (percentile(ordered, percent) or 0.0 for percent in (50, 95, 99))
    tail = sum(longest) / max(1, sum(ordered)) if longest else None
    return Lengths(fmean(ordered), p50, p95, p99, ordered[-1], tail)
