"""Fairness of a run: what tenants and classes were served, from the times of all tokens.

Service is counted as the scheduler does (sched/shares.py): a prompt with its first token, and two
for each token of output. A tenant is backlogged while a request of it waits for its first token.

    VTC (Sheng et al., OSDI 2024, theorem 4.4): while two tenants of equal weight are backlogged,
    |service of one - service of the other| <= 2 U,   U = max(longest prompt, 2 * tokens in memory)
"""

from collections.abc import Iterable, Mapping, Sequence

from tokenix.bench.simulate import Outcome

OUTPUT_WEIGHT = 2.0

Interval = tuple[float, float]


def vtc_bound(outcomes: Sequence[Outcome], pool_tokens: int) -> float:
    """2 U for the requests of a run on a pool."""
    longest = max(outcome.request.prompt_tokens for outcome in outcomes)
    return 2.0 * max(float(longest), OUTPUT_WEIGHT * pool_tokens)


def service(outcomes: Iterable[Outcome]) -> list[tuple[float, float]]:
    """(time, tokens) of all service, in order. Runs must have kept times."""
    events = []
    for outcome in outcomes:
        for index, time_s in enumerate(outcome.times_s):
            prompt = 0 if index else outcome.request.prompt_tokens
            events.append((time_s, prompt + OUTPUT_WEIGHT))
    events.sort()
    return events


def backlog(outcomes: Iterable[Outcome], end_s: float) -> list[Interval]:
    """When some request waited for its first token; refused ones did not."""
    waits = sorted(
        (o.request.arrival_s, end_s if o.first_s is None else o.first_s)
        for o in outcomes
        if not o.refused
    )
    merged: list[Interval] = []
    for begin_s, stop_s in waits:
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop_s))
        else:
            merged.append((begin_s, stop_s))
    return merged


def both(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """The times that are in both."""
    shared = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return [(begin_s, end_s) for begin_s, end_s in shared if begin_s < end_s]


def of_tenant(outcomes: Iterable[Outcome], tenant: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.request.tenant == tenant]


def service_gap(
    outcomes: Sequence[Outcome], one: str, other: str, weights: Mapping[str, float] | None = None
) -> float:
    """The greatest difference of service (over weight) in any stretch of time in which both tenants
    are backlogged throughout."""
    scales = weights or {}
    end_s = max((o.last_s for o in outcomes if o.last_s is not None), default=0.0)
    events = []
    for tenant, sign in ((one, 1.0), (other, -1.0)):
        mine = of_tenant(outcomes, tenant)
        events += [(t, sign * n / scales.get(tenant, 1.0)) for t, n in service(mine)]
    events.sort()
    widest = 0.0
    shared = both(*(backlog(of_tenant(outcomes, name), end_s) for name in (one, other)))
    for begin_s, stop_s in shared:
        ahead = low = high = 0.0
        for time_s, tokens in events:
            if begin_s < time_s <= stop_s:
                ahead += tokens
                low, high = min(low, ahead), max(high, ahead)
        widest = max(widest, high - low)
    return widest


def class_shares(outcomes: Iterable[Outcome], since_s: float, until_s: float) -> dict[str, float]:
    """Class -> its share of all service in a stretch of time."""
    had: dict[str, float] = {}
    for outcome in outcomes:
        had.setdefault(outcome.qos, 0.0)
        for time_s, tokens in service([outcome]):
            if since_s <= time_s < until_s:
                had[outcome.qos] += tokens
    total = sum(had.values())
    return {qos: tokens / total for qos, tokens in sorted(had.items())} if total else had
