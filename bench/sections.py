"""The sections of the report, each a function of the lab. `SECTIONS` has them in order."""

from collections.abc import Mapping
from dataclasses import replace

from tokenix.bench import simplot
from tokenix.bench.commands import sim_command, sweep_command
from tokenix.bench.report import (
    BASES,
    CONV,
    MAIN,
    OURS,
    R1,
    Lab,
    Section,
    Write,
    at,
    best_other,
    by_policy,
    seconds,
    sweep_table,
    table,
)
from tokenix.bench.sections_fair import fairness
from tokenix.bench.simulate import Result
from tokenix.bench.sweep import Sweep

SWAPPING = ("progress", "mlfq", "qoe")
EVERY = (
    "progress", "fcfs", "fcfs+reject", "retract", "hrrn", "mlfq", "qoe", "buffer", "oracle-srpt",
)  # fmt: skip
NOTHING = 0.01
"""Gains of goodput up to this are none."""

CELLS = "Each cell: goodput / P95 TTFT in s / streams with a visible stall in %."


def first_tokens(lab: Lab) -> Section:
    """TTFT of every policy at two loads."""
    placed, panels, commands, lines = lab.place(), {}, [], []
    policies = lab.policies(EVERY)
    for name, base in BASES.items():
        for load in (0.85, 1.3):
            jobs = [placed.job(at(base, load=load), policy) for policy in policies]
            results = dict(zip(policies, lab.run(jobs), strict=True))
            panels[f"{name}, {load:g}x"] = list(results.values())
            commands.append(sim_command(jobs[0], policies))
            for policy, r in results.items():
                times = [seconds(t) for t in (r.ttft_p50_s, r.ttft_p95_s, r.ttft_p99_s)]
                shares = [f"{r.goodput:.3f}", f"{r.rejected / r.requests:.1%}"]
                shares.append(f"{r.visible_stall_rate:.2%}")
                lines.append([name, f"{load:g}x", policy, *times, *shares])
    image = lab.image("first_tokens")
    simplot.plot_cdfs(panels, image)
    head = ["trace", "load", "policy", "TTFT P50 s", "P95", "P99", "goodput", "refused", "stalled"]
    text = [
        "Percentiles are over the requests that were served, so a policy that refuses more looks "
        "better in them: read them with the goodput. Curves end at the share that was served.",
        table(head, lines),
    ]
    return Section("First tokens", text, [image], commands)


def loads(lab: Lab) -> Section:
    """Goodput against load."""
    section = _sweeps(lab, "load", "Load", (*MAIN, "mlfq"))
    rows = []
    for base in BASES.values():
        swept = lab.sweep("load", base, (*MAIN, "mlfq"))
        reached = {policy: _highest(swept, policy) for policy in swept.policies}
        rows.append([base.trace, *(f"{load:g}x" for load in reached.values())])
    policies = lab.policies((*MAIN, "mlfq"))
    section.text.insert(0, "Highest load of those tried with a goodput of at least 95 %:")
    section.text.insert(1, table(["trace", *policies], rows))
    return section


def _highest(swept: Sweep, policy: str) -> float:
    """Up to where it holds without a gap; 0: nowhere."""
    reached = 0.0
    for load, result in zip(swept.values, swept.of(policy), strict=True):
        if result.goodput < 0.95:
            break
        reached = load
    return reached


def pools(lab: Lab) -> Section:
    return _sweeps(lab, "pool", "KV pool", MAIN)


def readers(lab: Lab) -> Section:
    return _sweeps(lab, "reader", "Reader rate", MAIN)


def links(lab: Lab) -> Section:
    section = _sweeps(lab, "link", "Link", SWAPPING, pool=0.15)
    section.text.insert(0, "Policies that swap, with a small pool (0.15 of what is needed).")
    return section


def hosts(lab: Lab) -> Section:
    section = _sweeps(lab, "host", "Host tier", SWAPPING, load=1.6)
    section.text.insert(0, "Policies that swap, at 1.6 times what fcfs sustains.")
    return section


def seeds(lab: Lab) -> Section:
    section = _sweeps(lab, "seed", "Seeds", MAIN)
    for base in BASES.values():
        swept = lab.sweep("seed", base, MAIN)
        spans = [
            f"`{policy}` {min(r.goodput for r in swept.of(policy)):.3f} to "
            f"{max(r.goodput for r in swept.of(policy)):.3f}"
            for policy in swept.policies
        ]
        section.text.append(f"Goodput on {base.trace} over the seeds: {', '.join(spans)}.")
    return section


def _sweeps(lab: Lab, what: str, title: str, policies: tuple[str, ...], **change: float) -> Section:
    """One sweep on each trace."""
    text, images, commands = [CELLS], [], []
    for name, base in BASES.items():
        swept = lab.sweep(what, at(base, **change), policies)
        image = lab.image(f"{what}_{name}")
        simplot.plot_sweep(swept, image)
        text += [f"**{name}** (load {swept.base.load:g}, pool {swept.base.pool:g})"]
        text += [sweep_table(swept)]
        images.append(image)
        commands.append(sweep_command(what, swept.base, swept.values, swept.policies))
    return Section(title, text, images, commands)


def misses(lab: Lab) -> Section:
    """What tokens and readers wait for when KV is missed: all runs of the pool and link sweeps."""
    runs: dict[str, list[tuple[float, Result]]] = {}
    for base in BASES.values():
        for swept in (lab.sweep("pool", base, MAIN), _link_sweep(lab, base.trace)):
            for _, result in swept.rows():
                runs.setdefault(result.policy, []).append((result.miss_rate, result))
    image = lab.image("misses")
    simplot.plot_misses(runs, image)
    rows = [
        [policy, len(found), f"{min(m for m, _ in found):.2f} to {max(m for m, _ in found):.2f}",
         seconds(max(r.ttft_p95_s or 0.0 for _, r in found)),
         f"{max(r.visible_stall_rate for _, r in found):.2%}"]
        for policy, found in runs.items()
    ]  # fmt: skip
    text = [
        "The runs of the pool and link sweeps by their miss rate: tokens whose KV was loaded or "
        "computed again, per token of output. A policy that pauses by swap may miss often and "
        "nobody notices, as long as the link brings pages back before the reader needs them.",
        table(["policy", "runs", "miss rate", "worst P95 s", "worst stalled"], rows),
    ]
    return Section(
        "Misses", text, [image], ["tokenix sim report --out reports --only pools,links,misses"]
    )


def _link_sweep(lab: Lab, trace: str) -> Sweep:
    return lab.sweep("link", at(BASES[trace], pool=0.15), SWAPPING)


def heat(lab: Lab) -> Section:
    """Pool x load: our goodput over that of the best other."""
    pool_sizes = (0.1, 1.0) if lab.quick else (0.1, 0.25, 0.5, 1.0)
    load_values = (0.5, 2.0) if lab.quick else (0.5, 0.85, 1.3, 2.0)
    policies = lab.policies(MAIN)
    placed, text, images = lab.place(), [], []
    for name, base in BASES.items():
        points = [at(base, pool=pool, load=load) for pool in pool_sizes for load in load_values]
        jobs = [placed.job(point, policy) for point in points for policy in policies]
        results = lab.run(jobs)
        ratios, worst = [], []
        for index, point in enumerate(points):
            chunk = results[index * len(policies) : (index + 1) * len(policies)]
            found = dict(zip(policies, chunk, strict=True))
            other, best = best_other(found)
            ratios.append(found[OURS].goodput / max(best.goodput, 1e-3))
            worst.append((found[OURS].goodput - best.goodput, point, other))
        lines = [
            ratios[row * len(load_values) : (row + 1) * len(load_values)]
            for row in range(len(pool_sizes))
        ]
        image = lab.image(f"heat_{name}")
        simplot.plot_heat(pool_sizes, load_values, lines, f"{name}: goodput / best other", image)
        images.append(image)
        gap, point, other = min(worst, key=lambda entry: entry[0])
        ahead = sum(difference > NOTHING for difference, _, _ in worst)
        text.append(
            f"**{name}**: `progress` is ahead of the best of {', '.join(policies[1:])} by more "
            f"than {NOTHING:.0%} of all requests in {ahead} of {len(points)} cells. Its worst cell "
            f"is pool {point.pool:g}, load {point.load:g}: {gap:+.3f} to `{other}`."
        )
    return Section("Pool and load", text, images)


def regimes(lab: Lab) -> Section:
    """Where nothing is to be gained, and where everything collapses: from the sweeps above."""
    none, collapse = [], []
    for base in BASES.values():
        for what, policies in (("reader", MAIN), ("pool", MAIN), ("load", (*MAIN, "mlfq"))):
            swept = lab.sweep(what, base, policies)
            for index, value in enumerate(swept.values):
                found = by_policy(swept, index)
                other, best = best_other(found)
                gain = found[OURS].goodput - best.goodput
                row = [base.trace, f"{what} {value:g}", f"{found[OURS].goodput:.3f}",
                       f"{best.goodput:.3f} ({other})", seconds(found[OURS].ttft_p95_s),
                       seconds(best.ttft_p95_s)]  # fmt: skip
                if gain <= NOTHING:
                    none.append(row)
                if found[OURS].goodput < 0.7:
                    collapse.append(row)
    head = ["trace", "where", "goodput", "best other", "P95 s", "its P95 s"]
    text = [
        f"Points of the sweeps above where `progress` gains at most {NOTHING:.0%} of goodput over "
        "the best other policy. Expected: ample KV, light load, and readers as fast as one stream "
        "decodes, who leave nothing to pause.",
        table(head, none) if none else "None.",
        "Points where `progress` serves fewer than 70 % of the requests well. Expected: tiny "
        "pools and sustained overload, where it refuses instead of being late.",
        table(head, collapse) if collapse else "None.",
    ]
    return Section("Where nothing is gained, and where it breaks", text)


def overload(lab: Lab) -> Section:
    """Useful work at 1x, 2x, 3x."""
    placed, rows, commands = lab.place(), [], []
    scales = (1.0, 2.0, 3.0)
    policies = lab.policies(MAIN)
    for base in BASES.values():
        for policy in policies:
            jobs = [placed.job(at(base, load=load, reader=5.0), policy) for load in scales]
            results = lab.run(jobs)
            work = [r.useful_tokens_per_s for r in results]
            cells = [f"{r.useful_tokens_per_s:.0f} ({r.goodput:.3f})" for r in results]
            holds = "yes" if min(work[1:]) >= 0.98 * work[0] else "no"
            rows.append([base.trace, policy, *cells, holds])
        commands += [sim_command(placed.job(at(base, load=s, reader=5.0), OURS), policies)
                     for s in scales]  # fmt: skip
    text = [
        "Prompt and output tokens per second that finished requests were delivered while requests "
        "arrived, and the goodput, at 1, 2 and 3 times what fcfs sustains (readers at 5 tokens/s).",
        table(["trace", "policy", "1x", "2x", "3x", "work holds"], rows),
    ]
    return Section("Overload", text, [], commands)


def reasoning(lab: Lab) -> Section:
    """Hidden reasoning, on the trace that tells it."""
    placed, base = lab.place(), BASES[R1]
    policies = lab.policies(MAIN)
    jobs = [placed.job(base, policy) for policy in policies]
    jobs = [replace(job, setup=replace(job.setup, hidden=True)) for job in jobs]
    rows = [
        [r.policy, seconds(r.ttft_p50_s), seconds(r.ttft_p95_s), seconds(r.visible_p50_s),
         seconds(r.visible_p95_s), f"{r.visible_stall_rate:.2%}", f"{r.goodput:.3f}"]
        for r in lab.run(jobs)
    ]  # fmt: skip
    head = ["policy", "TTFT P50 s", "P95", "visible P50 s", "P95", "stalled", "goodput"]
    text = [
        "Readers who begin behind the hidden reasoning. *Visible* is the TTFT of the first token "
        "behind it: mostly the time that the reasoning takes to generate, which no policy can "
        "hide. The kernel is not told where reasoning ends; goodput counts the first token of any "
        "kind.",
        table(head, rows),
    ]
    return Section("Hidden reasoning", text, [], [sim_command(jobs[0], policies)])


def contention(lab: Lab) -> Section:
    """Copies that slow steps."""
    placed, rows, commands = lab.place(), [], []
    for base in BASES.values():
        for share in (None, 0.0, 0.1):
            job = placed.job(base, OURS)
            machine = replace(job.setup.machine, copy_contention=share)
            job = replace(job, setup=replace(job.setup, machine=machine))
            (r,) = lab.run([job])
            label = "the preset's" if share is None else f"{share:g}"
            shown = [f"{r.goodput:.3f}", seconds(r.ttft_p95_s), f"{r.visible_stall_rate:.2%}"]
            rows.append([base.trace, label, *shown, f"{r.output_tokens_per_s:.0f}"])
            commands.append(sim_command(job, [OURS]))
    text = [
        "`progress` with steps that are slower by a share while copies run one way. The presets' "
        "shares are assumptions (link over device memory); 0.1 is far more than that.",
        table(["trace", "share", "goodput", "P95 s", "stalled", "output tokens/s"], rows),
    ]
    return Section("Copies beside steps", text, [], commands)


SECTIONS: Mapping[str, Write] = {
    "first_tokens": first_tokens,
    "loads": loads,
    "pools": pools,
    "readers": readers,
    "links": links,
    "hosts": hosts,
    "misses": misses,
    "heat": heat,
    "regimes": regimes,
    "overload": overload,
    "fairness": fairness,
    "reasoning": reasoning,
    "contention": contention,
    "seeds": seeds,
}

assert set(BASES) == {R1, CONV}
