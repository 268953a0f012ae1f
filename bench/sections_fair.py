"""The section of the report on tenants and classes."""

from collections import Counter
from dataclasses import replace

from tokenix.bench import fairness as fair
from tokenix.bench import simplot
from tokenix.bench.parallel import Job
from tokenix.bench.points import WARMUP
from tokenix.bench.report import BASES, CONV, OURS, R1, Lab, Section, table
from tokenix.bench.simulate import Outcome, Result, Setup
from tokenix.bench.traces import Window
from tokenix.syscalls.simulation import SimOptions

PAGES = 1500
"""A small pool, so that the bound, which grows with it, is soon exceeded by who is not fair."""
POLICIES = ("progress", "fcfs")
CLASSES = ("interactive", "stream", "interactive", "batch", "interactive")
GUARANTEES = {"interactive": 0.4, "stream": 0.3, "batch": 0.05}
LOOK_S = 30.0


def fairness(lab: Lab) -> Section:
    """Tenants against the bound of VTC, weights, classes against their guarantees."""
    text, gaps = _tenants(lab)
    more, shares = _classes(lab)
    images = [lab.image("tenants"), lab.image("classes")]
    simplot.plot_bars(gaps, "service gap / (2 x VTC bound)", images[0])
    simplot.plot_bars(shares, "share of all service", images[1])
    return Section("Fairness", text + more, images)


def _tenants(lab: Lab) -> tuple[list[str], dict[str, dict[str, float]]]:
    trace = lab.traces[R1]
    names = [name for name, _ in Counter(r.tenant for r in trace.requests).most_common(2)]
    mine = tuple(r for r in trace.requests if r.tenant in names)
    two = replace(trace, name="two tenants", requests=mine)
    duration_s = 10.0 if lab.quick else 60.0
    scale = 20 * two.span_s / len(mine)
    cases: list[tuple[str, dict[str, float]]] = [(policy, {}) for policy in POLICIES] + [
        (OURS, {names[1]: 2.0})
    ]
    jobs = [
        Job(
            two.name,
            Setup(
                SimOptions(policy=policy, kv_pages=PAGES, weights=weights),
                Window(8 * scale, duration_s=duration_s), tenants=True, classes=("batch",),
                drain_s=duration_s / 2, keep_times=True,
            ),
        )
        for policy, weights in cases
    ]  # fmt: skip
    results = replace(lab, traces={two.name: two}).run(jobs)
    rows, gaps = [], {}
    for (policy, weights), result in zip(cases, results, strict=True):
        bound = 2 * fair.vtc_bound(result.outcomes, PAGES * 16)
        gap = fair.service_gap(result.outcomes, names[0], names[1], weights)
        label = policy if not weights else f"{policy}, weights 1 and 2"
        gaps[label] = {"gap": gap / bound}
        had = [_had(result, name) for name in names]
        rows.append([label, *(f"{n:.0f}" for n in had), f"{gap:.0f}", f"{bound:.0f}",
                     f"{gap / bound:.2f}"])  # fmt: skip
    head = [
        "policy",
        f"tenant {names[0]} had",
        f"tenant {names[1]} had",
        "gap",
        "2 x bound",
        "ratio",
    ]
    return [
        f"**Tenants.** The two busiest clients of {R1}, all requests as `batch` (nobody is "
        "refused), far more than the device does. *Gap*: the greatest difference of service over "
        "weight in any stretch in which both wait; *bound*: that of VTC (Sheng et al., OSDI 2024) "
        f"for equal weights on {PAGES} pages. Service: prompt tokens and twice the output tokens.",
        table(head, rows),
    ], gaps


def _had(result: Result, tenant: str) -> float:
    """Service while requests arrived."""
    mine = fair.of_tenant(result.outcomes, tenant)
    end_s = result.outcomes[-1].request.arrival_s
    return sum(tokens for time_s, tokens in fair.service(mine) if time_s <= end_s)


def _classes(lab: Lab) -> tuple[list[str], dict[str, dict[str, float]]]:
    placed = lab.place()
    point = replace(BASES[CONV], load=3.0)
    jobs = []
    for policy in POLICIES:
        job = placed.job(point, policy)
        setup = replace(job.setup, classes=CLASSES, keep_times=True, drain_s=0.0)
        jobs.append(replace(job, setup=setup))
    shares = {}
    for policy, result in zip(POLICIES, lab.run(jobs), strict=True):
        end_s = result.outcomes[-1].request.arrival_s
        since_s = max(WARMUP * end_s, end_s - LOOK_S)
        shares[policy] = fair.class_shares(result.outcomes, since_s, end_s)
    shares["guaranteed"] = GUARANTEES
    offered = _offered(result.outcomes)
    rows = [
        [name, *(f"{values.get(qos, 0.0):.3f}" for qos in GUARANTEES)]
        for name, values in {**shares, "offered": offered}.items()
    ]
    kept = all(shares[OURS].get(qos, 0.0) >= share - 0.05 for qos, share in GUARANTEES.items())
    return [
        f"**Classes.** {CONV} at 3 times what fcfs sustains, requests dealt to classes in turn; "
        f"shares of all service in the last {LOOK_S:g} s of arrivals. Each class has its "
        f"guaranteed share less 5 points under `progress`: {'yes' if kept else 'NO'}.",
        table(["", *GUARANTEES], rows),
    ], shares


def _offered(outcomes: tuple[Outcome, ...]) -> dict[str, float]:
    """Shares of what was asked for."""
    asked: Counter[str] = Counter()
    for outcome in outcomes:
        request = outcome.request
        asked[outcome.qos] += request.prompt_tokens + 2 * request.output_tokens
    return {qos: tokens / sum(asked.values()) for qos, tokens in asked.items()}
