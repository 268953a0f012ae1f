"""`tokenix sim`: policies on traces, in virtual time on models of real GPUs."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tokenix.cli.checks import COUNT, FINITE, NOT_NEGATIVE, POSITIVE, Within
from tokenix.cli.status import UsageError

POLICIES = "progress, fcfs, fcfs+reject, retract, mlfq, qoe, buffer, hrrn, oracle-srpt"
SECTIONS = (
    "first_tokens, loads, pools, readers, links, hosts, misses, heat, regimes, overload, fairness, "
    "reasoning, contention, seeds"
)
"""Words, as help must not import what they name (tests/bench_sim/test_help.py compares them)."""

sim = App(
    name="sim",
    help="Replay a trace against the kernel on a simulated GPU; compare policies.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)

Count = Annotated[int, Parameter(validator=COUNT)]
Finite = Annotated[float, Parameter(validator=FINITE)]
MaybeCount = Annotated[int | None, Parameter(validator=COUNT)]
MaybeFinite = Annotated[float | None, Parameter(validator=FINITE)]
MaybePositive = Annotated[float | None, Parameter(validator=POSITIVE)]
MaybeSpeed = Annotated[float | None, Parameter(validator=Within(0, above=True, infinite=True))]
NotNegative = Annotated[float, Parameter(validator=NOT_NEGATIVE)]
Patience = Annotated[float, Parameter(validator=Within(0, infinite=True))]
Positive = Annotated[float, Parameter(validator=POSITIVE)]
Speed = Annotated[float, Parameter(validator=Within(0, above=True, infinite=True))]
Json = Annotated[bool, Parameter(name="--json", help="Print JSON.")]
Jobs = Annotated[int, Parameter(name=["--jobs", "-j"], validator=COUNT, help="Processes.")]
Presets = Annotated[Path | None, Parameter(help="TOML file with more devices and models.")]
Measured = Annotated[
    list[Path] | None,
    Parameter(
        consume_multiple=True,
        help="Measured runs; default: those of ../shared/traces, else those that are shipped.",
    ),
]


@sim.default
def simulate(
    *,
    trace: Annotated[Path, Parameter(help="A trace: shared, Azure or BurstGPT CSV, JSONL.")],
    device: Annotated[str, Parameter(help="See `tokenix sim presets`.")] = "h100",
    model: Annotated[str, Parameter(help="See `tokenix sim presets`.")] = "llama-3.1-8b",
    policy: Annotated[
        str, Parameter(help=f"One or more, with commas: {POLICIES}; your own: FILE.py:NAME.")
    ] = "progress",
    rate_scale: Annotated[str, Parameter(help="Load, times the trace's; one or more.")] = "1",
    reader: Annotated[str, Parameter(help="Tokens/s that readers read; one or more.")] = "10",
    declared: Annotated[MaybePositive, Parameter(help="What readers declare instead.")] = None,
    kv_gb: Annotated[MaybePositive, Parameter(help="KV pool in GB (10^9 bytes).")] = None,
    kv_pages: Annotated[int | None, Parameter(help="KV pool in pages of 16 tokens.")] = None,
    link_gbps: Annotated[
        MaybeSpeed, Parameter(help="Host link in GB/s, each way; default: the device's.")
    ] = None,
    copy_contention: Annotated[
        MaybeFinite, Parameter(help="Share by which copies slow a step; default: the device's.")
    ] = None,
    host_pools: Annotated[NotNegative, Parameter(help="Host tier, in KV pools.")] = 4.0,
    file_pools: Annotated[
        NotNegative, Parameter(help="Swap file on NVMe below it, in KV pools.")
    ] = 0.0,
    tp: Annotated[Count, Parameter(help="GPUs that work as one (tensor parallel).")] = 1,
    duration: Annotated[MaybeFinite, Parameter(help="Seconds of arrivals, after scaling.")] = None,
    start: Annotated[NotNegative, Parameter(help="Where they begin, after scaling.")] = 0.0,
    seed: Annotated[int, Parameter(help="1: the trace's own start; others: elsewhere.")] = 1,
    sample: Annotated[Finite, Parameter(help="Share of the requests to keep.")] = 1.0,
    warmup: Annotated[NotNegative, Parameter(help="Seconds at the start not counted.")] = 0.0,
    fill: Annotated[bool, Parameter(help="Begin as after hours: streams under way.")] = False,
    drain: Annotated[Patience, Parameter(help="Seconds a run may go on after them.")] = 1500.0,
    prefix_cache: Annotated[bool, Parameter(help="Share equal prefixes (hash ids).")] = False,
    wait_loads: Annotated[
        bool, Parameter(help="Compute no prompt while what is before it is loaded.")
    ] = False,
    tenants: Annotated[bool, Parameter(help="The trace's clients are tenants.")] = False,
    weight: Annotated[
        list[str] | None, Parameter(help="Of a tenant's share, NAME=NUMBER; implies --tenants.")
    ] = None,
    hidden: Annotated[bool, Parameter(help="Readers begin after the reasoning.")] = False,
    set_: Annotated[
        list[str] | None, Parameter(name="--set", help="Scheduler constant, NAME=VALUE.")
    ] = None,
    presets: Presets = None,
    json: Json = False,
    plot: Annotated[Path | None, Parameter(help="Write curves to this image.")] = None,
    jobs: Jobs = 1,
) -> int:
    """Replay a trace under each policy, load and reader; print the figures of each run."""
    from tokenix.cli.sim_run import SimPlan, simulate_all

    if kv_gb is not None and kv_pages is not None:
        raise UsageError("give either --kv-gb or --kv-pages")
    plan = SimPlan(
        trace=trace, device=device, model=model, presets=presets,
        policies=_words("--policy", policy),
        rate_scales=_numbers("--rate-scale", rate_scale), readers=_numbers("--reader", reader),
        declared=declared, kv_gb=kv_gb, kv_pages=kv_pages, link_gbps=link_gbps,
        host_pools=host_pools, file_pools=file_pools, tp=tp, duration=duration, start=start,
        seed=seed, sample=sample,
        warmup=warmup, fill=fill, drain=drain, hidden=hidden, copy_contention=copy_contention,
        weights=_settings("--weight", weight or []),
        prefix_cache=prefix_cache, wait_loads=wait_loads, tenants=tenants,
        tunables=_settings("--set", set_ or []),
    )  # fmt: skip
    return simulate_all(plan, as_json=json, plot=plot, jobs=jobs)


@sim.command
def check(*, measured: Measured = None, presets: Presets = None, json: Json = False) -> int:
    """Error of the simulated fcfs against measured runs of vLLM."""
    from tokenix.cli.sim_run import check_measured

    return check_measured(measured or [], presets, json)


@sim.command
def calibrate(
    *,
    measured: Annotated[Path, Parameter(help="A measured run.")],
    device: Annotated[str | None, Parameter(help="Default: from the file's name.")] = None,
    model: Annotated[str, Parameter(help="What ran.")] = "llama-3.1-8b",
    kv_pages: Annotated[int | None, Parameter(help="KV pool in pages of 16 tokens.")] = None,
    max_running: Annotated[MaybeCount, Parameter(help="Sequences at once.")] = None,
    presets: Presets = None,
    rounds: Annotated[Count, Parameter(help="Of the search; 8 simulations each.")] = 4,
) -> int:
    """Fit a device's two efficiencies to a measured run; prints a preset in TOML."""
    from tokenix.cli.sim_run import calibrate_device

    return calibrate_device(measured, device, model, kv_pages, max_running, presets, rounds)


@sim.command
def sweep(
    *,
    what: Annotated[str, Parameter(help="load, pool, reader, link, host or seed.")],
    values: Annotated[str, Parameter(help="With commas; default: those of the report.")] = "",
    trace: Annotated[Path, Parameter(help="A trace of any format.")],
    policy: Annotated[str, Parameter(help="One or more.")] = "progress,fcfs,fcfs+reject,retract",
    device: Annotated[str, Parameter(help="See `tokenix sim presets`.")] = "h100",
    model: Annotated[str, Parameter(help="See `tokenix sim presets`.")] = "llama-3.1-8b",
    load: Annotated[Positive, Parameter(help="Times what fcfs sustains with that pool.")] = 1.0,
    pool: Annotated[Positive, Parameter(help="Share of what no preemption needs.")] = 0.25,
    reader: Annotated[Positive, Parameter(help="Tokens/s that readers read.")] = 10.0,
    link_gbps: Annotated[Speed, Parameter(help="Host link in GB/s, each way.")] = 25.0,
    host_pools: Annotated[NotNegative, Parameter(help="Host tier, in KV pools.")] = 4.0,
    seed: Annotated[int, Parameter(help="1: the trace's own start; others: elsewhere.")] = 1,
    json: Json = False,
    plot: Annotated[Path | None, Parameter(help="Write curves to this image.")] = None,
    jobs: Jobs = 1,
) -> int:
    """Vary one property of a point, relative to what the machine can do; compare policies."""
    from tokenix.bench.points import Point
    from tokenix.cli.sim_sweep import run_sweep

    base = Point("", device, load, pool, reader, link_gbps, seed, host_pools, model)
    numbers = _numbers("--values", values) if values else None
    return run_sweep(what, numbers, trace, base, _words("--policy", policy), jobs, json, plot)


@sim.command
def report(
    *,
    out: Annotated[Path, Parameter(help="Folder for policies.md and its plots.")],
    only: Annotated[str, Parameter(help=f"Sections, with commas: {SECTIONS}; default: all.")] = "",
    quick: Annotated[bool, Parameter(help="A few requests: to see that it works.")] = False,
    folder: Annotated[Path | None, Parameter(help="Traces; default: ../shared/traces.")] = None,
    jobs: Jobs = 1,
) -> int:
    """Compare the policies in sections, with plots and text made of the figures."""
    from tokenix.cli.sim_report import run_report

    return run_report(out, _words("--only", only) if only else [], quick, folder, jobs)


@sim.command
def grid(
    *,
    out: Annotated[Path, Parameter(help="JSON lines: results are appended; what is there stays.")],
    points: Annotated[Count, Parameter(help="Random points.")] = 300,
    seed: Annotated[int, Parameter(help="Which points.")] = 1,
    policy: Annotated[str, Parameter(help="What is run.")] = "progress,fcfs,retract,fcfs+reject",
    redo: Annotated[str, Parameter(help="Policies to run again, with commas.")] = "",
    trace: Annotated[str, Parameter(help="Names in --folder; default: all four.")] = "",
    device: Annotated[str, Parameter(help="One or more.")] = "h100,a100-40,rtx4090",
    overload: Annotated[bool, Parameter(help="Also six cases at 1x, 2x and 3x load.")] = False,
    summary: Annotated[bool, Parameter(help="Run nothing; say what the file has.")] = False,
    folder: Annotated[Path | None, Parameter(help="Default: ../shared/traces.")] = None,
    json: Json = False,
    jobs: Jobs = 1,
) -> int:
    """Random points of load, pool, reader, link, trace and device: is progress nowhere worse?"""
    from tokenix.cli.sim_grid import GridPlan, run_grid

    plan = GridPlan(
        out, points, seed, _words("--policy", policy), _words("--redo", redo) if redo else [],
        _words("--trace", trace) if trace else [], _words("--device", device), folder, overload,
    )  # fmt: skip
    return run_grid(plan, jobs, json, summary)


@sim.command(name="presets")
def presets_command(*, presets: Presets = None, json: Json = False) -> int:
    """List devices and models."""
    from tokenix.cli.sim_run import list_presets

    return list_presets(presets, json)


def _words(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} takes one or more, with commas; it got none")
    return words


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(word) for word in _words(option, text)]
    except ValueError:
        raise UsageError(f"{option} takes numbers with commas, not {text!r}") from None
    if not all(0 < number < float("inf") for number in numbers):
        raise UsageError(f"{option} takes positive numbers, not {text!r}")
    return numbers


def _settings(option: str, texts: list[str]) -> dict[str, float]:
    settings = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        try:
            settings[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{option} takes NAME=NUMBER, not {text!r}")
    return settings
