"""What the `tokenix sim` commands do, once their options are read."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenix.bench import calibrate as calibration
from tokenix.bench.parallel import Progress, run_all
from tokenix.bench.simulate import Result, Setup
from tokenix.bench.traces import Trace, TraceError, Window, read_trace
from tokenix.cli import stdout
from tokenix.cli.checks import check_image
from tokenix.cli.status import OK, UsageError
from tokenix.syscalls.simulation import (
    GB,
    Catalog,
    Roofline,
    SimOptions,
    builtin,
    load_presets,
    memory_pages,
    roofline_of,
)  # fmt: skip

SHARED_TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
SHIPPED = Path(__file__).resolve().parents[1] / "bench" / "data"
MEASURED = "vllm_measured_*.csv"
MOST_PAGES = 8_000_000
"""Device and host together. A simulated page takes some 300 bytes of this machine's memory."""


@dataclass(frozen=True, slots=True)
class SimPlan:
    """The options of `tokenix sim`."""

    trace: Path
    device: str
    model: str
    policies: list[str]
    presets: Path | None
    rate_scales: list[float]
    readers: list[float]
    declared: float | None
    kv_gb: float | None
    kv_pages: int | None
    link_gbps: float | None
    host_pools: float
    file_pools: float
    tp: int
    duration: float | None
    start: float
    seed: int
    sample: float
    warmup: float
    fill: bool
    drain: float
    hidden: bool
    copy_contention: float | None
    weights: dict[str, float]
    prefix_cache: bool
    wait_loads: bool
    tenants: bool
    tunables: dict[str, float]

    def setups(self, catalog: Catalog) -> list[Setup]:
        """A run for each load, reader and policy. ValueError."""
        return [
            Setup(
                SimOptions(
                    self.device, self.model, policy, self.tp, self.kv_pages, self.kv_gb,
                    self.link_gbps, self.copy_contention, self.host_pools, self.file_pools,
                    self.prefix_cache, self.tunables, self.weights, catalog, not self.wait_loads,
                ),
                Window(scale, self.start, self.duration, self.seed, self.sample),
                reader, self.declared, tenants=self.tenants or bool(self.weights),
                hidden=self.hidden, warmup_s=self.warmup, fill=self.fill, drain_s=self.drain,
            )
            for scale in self.rate_scales
            for reader in self.readers
            for policy in self.policies
        ]  # fmt: skip


def simulate_all(plan: SimPlan, as_json: bool, plot: Path | None, jobs: int) -> int:
    check_image(plot)
    try:
        trace = read_trace(plan.trace)
        _check_weights(plan.weights, trace)
        setups = plan.setups(_catalog(plan.presets))
        _check_size(setups[0].machine)
        with bars(len(setups)) as progress:
            results = run_all(trace, setups, jobs, progress)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if plot is not None:
        from tokenix.bench.simplot import plot as draw

        draw(results, plot)
    if as_json:
        runs = [result.as_json() for result in results]
        stdout.write(json.dumps({"runs": runs}, indent=2) + "\n")
    else:
        _show(results, plan.hidden)
    left_out = max(result.left_out for result in results)
    if left_out:
        print(
            f"{left_out} requests were left out: prompt and output exceed 0.9 of the KV pool",
            file=sys.stderr,
        )
    return OK


def _check_weights(weights: Mapping[str, float], trace: Trace) -> None:
    """ValueError: a weight is of nobody."""
    tenants = sorted({request.tenant for request in trace.requests})
    for name in weights:
        if name not in tenants:
            shown = ", ".join(tenants[:5]) + (" and others" if len(tenants) > 5 else "")
            raise ValueError(
                f"--weight: no tenant of {trace.name} is called {name!r}; there are {shown}"
            )


def _check_size(machine: SimOptions) -> None:
    """ValueError: more pages than this machine's memory may hold."""
    page_bytes = roofline_of(machine).page_bytes
    pages: float = 0 if machine.kv_pages is None else machine.kv_pages
    if machine.kv_gb is not None:
        pages = machine.kv_gb * GB / page_bytes
    elif machine.kv_pages is None:
        pages = memory_pages(machine)
    below = machine.host_pools + machine.file_pools
    pages *= 1 + below
    if pages > MOST_PAGES:
        raise ValueError(
            f"the KV pool and {below:g} times as much in the tiers below it are "
            f"{pages:.3g} pages, {pages * page_bytes / GB:.3g} GB; at most {MOST_PAGES:,} pages "
            "can be simulated"
        )


def check_measured(paths: Sequence[Path], presets: Path | None, as_json: bool) -> int:
    files = []
    try:
        catalog = _catalog(presets)
        for path in paths or _default_measured():
            measured = calibration.read_measured(path)
            result = calibration.simulate_measured(measured, catalog)
            errors = calibration.errors_of(measured, result)
            files.append({"file": str(path), "errors": errors})
            if not as_json:
                _show_errors(path, measured.device, errors)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if as_json:
        stdout.write(json.dumps({"files": files}, indent=2) + "\n")
    return OK


def calibrate_device(
    path: Path,
    device: str | None,
    model: str,
    kv_pages: int | None,
    max_running: int | None,
    presets: Path | None,
    rounds: int,
) -> int:
    def note(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        catalog = _catalog(presets)
        measured = calibration.read_measured(path, device, model, kv_pages, max_running)
        base = catalog.gpu(measured.device).name
        gpu, errors = calibration.calibrate(measured, catalog, note, rounds)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    stdout.write(calibration.preset_toml(gpu, base, path, errors))
    return OK


def list_presets(presets: Path | None, as_json: bool) -> int:
    try:
        catalog = _catalog(presets)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if as_json:
        devices = [asdict(gpu) for gpu in catalog.gpus.values()]
        models = [asdict(model) for model in catalog.models.values()]
        stdout.write(json.dumps({"devices": devices, "models": models}, indent=2) + "\n")
        return OK
    lines = [f"{'device':<14} {'GB':>5} {'TB/s':>6} {'TFLOP/s':>8} {'link GB/s':>10}  of the peak"]
    for gpu in catalog.gpus.values():
        lines.append(
            f"{gpu.name:<14} {gpu.memory_gb:>5g} {gpu.bandwidth_tb_per_s:>6g} {gpu.tflops:>8g} "
            f"{gpu.link_gb_per_s:>10g}  {gpu.bandwidth_efficiency:.0%} / "
            f"{gpu.compute_efficiency:.0%}"
        )
    lines += ["", f"{'model':<14} {'params':>7} {'KV kB/token':>12}  KV pages of 16 on each device"]
    for model in catalog.models.values():
        room = {gpu.name: _pages(Roofline(gpu, model)) for gpu in catalog.gpus.values()}
        fits = ", ".join(f"{name} {pages}" for name, pages in room.items() if pages)
        size = f"{model.total_params / 1e9:>6.1f}B {model.kv_token_bytes / 1e3:>12.0f}"
        lines.append(f"{model.name:<14} {size}  {fits or 'none alone'}")
    stdout.write("\n".join(lines) + "\n")
    return OK


def _pages(roofline: Roofline) -> int:
    try:
        return roofline.memory_pages()
    except ValueError:
        return 0


def _catalog(presets: Path | None) -> Catalog:
    return builtin() if presets is None else load_presets(presets)


def read_named(folder: Path, names: Sequence[str]) -> dict[str, Trace]:
    """The traces that experiments know by name. OSError, TraceError."""
    return {name: read_trace(folder / f"{name}.csv") for name in names}


def _default_measured() -> list[Path]:
    for folder in (SHARED_TRACES, SHIPPED):
        found = sorted(folder.glob(MEASURED))
        if found:
            return found
    raise TraceError(f"no measured runs ({MEASURED}) in {SHIPPED}; name some with --measured")


def _show(results: Sequence[Result], hidden: bool) -> None:
    lines = [
        f"{'policy':<14} {'load':>6} {'KV GB':>6} {'tok/s':>5} | {'TTFT P50':>8} {'P95':>8} "
        f"{'P99 s':>8} | {'good':>6} {'stalled':>8} {'refused':>7} {'of':>6} | {'out tok/s':>9} "
        f"{'wasted':>9} {'swap GB':>8}" + (f" | {'visible':>8} {'P95 s':>8}" if hidden else "")
    ]
    for r in results:
        ttfts = time_columns((r.ttft_p50_s, r.ttft_p95_s, r.ttft_p99_s))
        visible = f" | {time_columns((r.visible_p50_s, r.visible_p95_s))}" if hidden else ""
        lines.append(
            f"{r.policy:<14} {r.rate_scale:>6g} {r.kv_gb:>6.1f} {r.reader:>5g} | {ttfts} | "
            f"{r.goodput:>6.3f} {r.visible_stall_rate:>8.2%} {r.rejected:>7} {r.requests:>6} | "
            f"{r.output_tokens_per_s:>9.0f} {r.wasted_tokens:>9} {r.swap_gb:>8.1f}{visible}"
        )
    stdout.write("\n".join(lines) + "\n")


def time_columns(times_s: Sequence[float | None]) -> str:
    return " ".join(f"{'-' if t is None else format(t, '.3f'):>8}" for t in times_s)


def _show_errors(path: Path, device: str, errors: calibration.Errors) -> None:
    lines = [f"{path.name} ({device}): simulated against measured"]
    for name in ("ttft", "tpot"):
        shown = "  ".join(f"P{p} {errors[f'{name}_p{p}']:+.1%}" for p in calibration.PERCENTS)
        lines.append(f"  {name.upper()}  {shown}")
    mean, worst = calibration.mean_error(errors), calibration.worst_error(errors)
    lines.append(f"  mean of the absolute errors {mean:.1%}, worst {worst:.1%}")
    stdout.write("\n".join(lines) + "\n")


@contextmanager
def bars(runs: int) -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as shown:
        every = shown.add_task(f"{runs} runs", total=float(runs))
        shares = [0.0] * runs

        def tell(index: int, share: float) -> None:
            shares[index] = share
            finished = sum(part >= 1 for part in shares)
            shown.update(every, completed=sum(shares), description=f"{finished} of {runs} runs")

        yield tell
