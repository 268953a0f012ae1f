"""The simulator against measured runs of vLLM: errors of its `fcfs`, and presets fitted to a run.

A measured file is a trace with two columns more, `ttft_s` and `decode_s` (first to last token).
The prefix cache is on, so that a preempted request finds again what was freed and not overwritten.
Prompts are unique but for the first page, which the chat template fills: that is inferred, with it
the waves of admission end at the measured requests, without it a few requests too early. Each
error is simulated / measured - 1 of a percentile over requests.

Fitted are two numbers of a device, and nothing else: `bandwidth_efficiency` (mostly seen in the
time per output token) and `compute_efficiency` (mostly seen in waves of prefill).
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tokenix.bench.metrics import percentile
from tokenix.bench.simulate import Result, Setup, run
from tokenix.bench.traces import Trace, TraceError, Window, read_trace
from tokenix.syscalls.simulation import Catalog, Gpu, SimOptions

PERCENTS = (50, 90, 95, 99)

MODEL = "llama-3.1-8b"

TEMPLATE_TOKENS = 16
"""Full pages of the chat template's opening, in tokens."""

Errors = Mapping[str, float]
"""`ttft_p50` ... `tpot_p99`: relative, positive if the simulator is slower."""

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured run and how it was set up."""

    path: Path
    trace: Trace
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    device: str
    kv_pages: int | None
    """None: what fits."""
    max_running: int = 256
    model: str = MODEL


_SETTINGS: Mapping[str, tuple[str, int | None, int]] = {
    "rtx4090": ("rtx4090", 2588, 256),
    "rtxpro6000": ("rtxpro6000", None, 128),
}
"""By what the file's name contains: device, KV pages, sequences at once."""


def read_measured(
    path: str | Path,
    device: str | None = None,
    model: str = MODEL,
    kv_pages: int | None = None,
    max_running: int | None = None,
) -> Measured:
    """A measured file; what is not given follows from its name. OSError, TraceError."""
    path = Path(path)
    trace = read_trace(path)
    ttfts, tpots = [], []
    with path.open(encoding="utf-8-sig", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 1):
            try:
                ttfts.append(_positive("ttft_s", row["ttft_s"]))
                tokens = int(float(row["output_tokens"]))
                if tokens > 1:
                    tpots.append(_positive("decode_s", row["decode_s"]) / (tokens - 1))
            except KeyError as missing:
                raise TraceError(f"{path}: not a measured run: no column {missing}") from None
            except (ValueError, TypeError) as why:
                raise TraceError(f"{path}: row {number} cannot be read: {why}") from None
    if not tpots:
        raise TraceError(f"{path}: no request has a second token, so there is nothing to compare")
    known = next((value for key, value in _SETTINGS.items() if key in path.name), None)
    if known is None and device is None:
        raise TraceError(
            f"{path}: its name does not tell the device; give one to `calibrate`, or put "
            f"{' or '.join(_SETTINGS)} into the name"
        )
    named, pages, running = known or ("", None, 256)
    return Measured(
        path, trace, tuple(ttfts), tuple(tpots), device or named,
        pages if kv_pages is None else kv_pages,
        running if max_running is None else max_running, model,
    )  # fmt: skip


def _positive(name: str, text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive, not {text}")
    return value


def simulate_measured(
    measured: Measured, catalog: Catalog, duration_s: float | None = None
) -> Result:
    """The same load under `fcfs`. `duration_s`: only what arrived within it."""
    machine = SimOptions(
        device=measured.device,
        model=measured.model,
        policy="fcfs",
        kv_pages=measured.kv_pages,
        prefix_cache=True,
        tunables={"max_running": measured.max_running},
        catalog=catalog,
    )
    window = Window(duration_s=duration_s)
    return run(measured.trace, Setup(machine, window, template_tokens=TEMPLATE_TOKENS))


def errors_of(measured: Measured, result: Result) -> dict[str, float]:
    """Relative errors of TTFT and TPOT at each of `PERCENTS`."""
    simulated = {
        "ttft": [o.ttft_s for o in result.outcomes if o.ttft_s is not None],
        "tpot": [o.tpot_s for o in result.outcomes if o.tpot_s is not None],
    }
    errors = {}
    for name, truth in (("ttft", measured.ttft_s), ("tpot", measured.tpot_s)):
        for percent in PERCENTS:
            want, got = percentile(truth, percent), percentile(simulated[name], percent)
            assert want, "a measured run has times"
            if got is None:
                raise ValueError(f"{measured.path}: no {name.upper()} in simulation to compare")
            errors[f"{name}_p{percent}"] = got / want - 1
    return errors


def mean_error(errors: Errors) -> float:
    """Mean of the absolute errors."""
    return sum(abs(error) for error in errors.values()) / len(errors)


def worst_error(errors: Errors) -> float:
    return max(abs(error) for error in errors.values())


def calibrate(
    measured: Measured, catalog: Catalog, note: Note | None = None, rounds: int = 4
) -> tuple[Gpu, Errors]:
    """Fit the two efficiencies of the measured run's device to it.

    Pattern search (Hooke and Jeeves 1961): step each number up and down by a factor, keep what is
    better, halve the steps when nothing is. About 8 simulations a round.
    """
    gpu = catalog.gpu(measured.device)
    seen: dict[tuple[float, float], tuple[float, Errors]] = {}

    def judge(bandwidth: float, compute: float) -> float:
        key = (round(bandwidth, 4), round(compute, 4))
        if key not in seen:
            tried = replace(gpu, bandwidth_efficiency=key[0], compute_efficiency=key[1])
            gpus = {**catalog.gpus, gpu.name: tried}
            errors = errors_of(measured, simulate_measured(measured, replace(catalog, gpus=gpus)))
            seen[key] = (mean_error(errors) + worst_error(errors), errors)
            if note is not None:
                note(
                    f"bandwidth {key[0]:.3f}, compute {key[1]:.3f}: mean error "
                    f"{mean_error(errors):.1%}, worst {worst_error(errors):.1%}"
                )
        return seen[key][0]

    best = (gpu.bandwidth_efficiency, gpu.compute_efficiency)
    step = 0.08
    for _ in range(rounds):
        moves = [
            (min(1.0, max(0.05, best[0] * by)), min(1.25, max(0.05, best[1] * also)))
            for by, also in _pattern(step)
        ]
        found = min(moves, key=lambda point: judge(*point))
        if judge(*found) < judge(*best):
            best = found
        else:
            step /= 2
    key = (round(best[0], 4), round(best[1], 4))
    fitted = replace(gpu, bandwidth_efficiency=key[0], compute_efficiency=key[1])
    return fitted, seen[key][1]


def _pattern(step: float) -> list[tuple[float, float]]:
    up, down = 1 + step, 1 - step
    return [
        (up, 1.0), (down, 1.0), (1.0, up), (1.0, down),
        (up, down), (down, up), (up, up), (down, down),
    ]  # fmt: skip


def preset_toml(gpu: Gpu, base: str, path: Path, errors: Errors) -> str:
    """A preset file for `--presets`."""
    return (
        f"# fitted to {path.name}: mean error {mean_error(errors):.1%}, worst "
        f"{worst_error(errors):.1%} over P50, P90, P95, P99 of TTFT and TPOT\n"
        f'[device."{base}-fitted"]\n'
        f'base = "{base}"\n'
        f"bandwidth_efficiency = {gpu.bandwidth_efficiency}\n"
        f"compute_efficiency = {gpu.compute_efficiency}\n"
        f'source = "tokenix sim calibrate on {path.name}"\n'
    )
