"""The showcase: the same arrivals on the same model and KV pool under several policies.

Boots one machine per policy, one after another, in this process. What is printed about it is in
`cli/`; this file runs, measures and judges.
"""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tokenix.bench.drive import Run, Sample, drive
from tokenix.bench.metrics import (
    TTFT_TARGET_S,
    Comparison,
    Figures,
    as_json,
    compare_outputs,
    measure,
)
from tokenix.bench.reader import STALL_TOLERANCE_S
from tokenix.bench.workload import FULL, QUICK, Shape, Workload, fit, make_workload, pool_pages
from tokenix.syscalls.inproc import boot
from tokenix.syscalls.types import Output, Progress, Syscalls

POLICIES = ("fcfs", "retract", "progress")
PAGE_TOKENS = 16
HOST_POOLS = 4
"""Host tier, in device pools."""

OURS = "progress"
TTFT_GAIN = 5.0
"""Wanted: P95 TTFT of the short requests is that many times lower than under the others."""
THROUGHPUT_SHARE = 0.95
"""Wanted: at least this share of the best policy's tokens per second."""

WARM_UP_TOKENS = 24
CALIBRATIONS = 3

CALIBRATION = "calibration"
"""What an observer is told in place of a policy, while the device's pace is measured."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    model: str = "smollm2"
    policies: tuple[str, ...] = POLICIES
    seed: int = 1
    quick: bool = False
    driver: str = "cpu"

    @property
    def shape(self) -> Shape:
        return QUICK if self.quick else FULL


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the demo found."""

    options: DemoOptions
    workload: Workload
    paces: tuple[float, ...]
    """Decode steps per second of all long streams together, measured before the runs."""
    figures: dict[str, Figures]
    runs: tuple[Run, ...]
    comparison: Comparison
    machine: dict[str, object]
    took_s: float

    def problems(self) -> list[str]:
        """Why the demo counts as failed; empty if it does not. Figures that miss their target on a
        busy machine are told, not failed: see `targets`."""
        found = []
        # On a GPU the last bits of a row depend on its batch (`drivers/cuda/README.md`).
        if self.comparison.different and self.options.driver == "cpu":
            names = ", ".join(self.comparison.different)
            found.append(f"greedy outputs differ between policies: {names}")
        elif not self.comparison.compared:
            found.append("no request finished under every policy, so no output could be compared")
        for name, figures in self.figures.items():
            if figures.failed:
                found.append(f"{name}: {figures.failed} requests ended by an error")
        return found

    def pace_spread(self) -> float:
        """Fastest over slowest pace of the idle machine around the runs; 1 is a quiet machine."""
        paces = [pace for run in self.runs for pace in run.paces]
        return max(paces) / min(paces) if paces else 1.0

    def ratios(self) -> dict[str, float]:
        """`progress` against each other policy; above 1 is better."""
        ours = self.figures.get(OURS)
        found: dict[str, float] = {}
        if ours is None:
            return found
        for name, other in self.figures.items():
            if name == OURS:
                continue
            for label, get in _RATIOS:
                mine, theirs = get(ours), get(other)
                if mine and theirs:
                    found[f"{label}_{name}"] = round(
                        theirs / mine if label.startswith("ttft") else mine / theirs, 3
                    )
        return found

    def targets(self) -> dict[str, bool]:
        """Which of the demo's objectives were reached; False also where it cannot be told."""
        ratios = self.ratios()
        ours = self.figures.get(OURS)
        ttft = [value for name, value in ratios.items() if name.startswith("ttft_p95")]
        speed = [value for name, value in ratios.items() if name.startswith("throughput")]
        return {
            "ttft_p95_5x": len(ttft) == len(self.figures) - 1 and min(ttft, default=0) >= TTFT_GAIN,
            "throughput_95_percent": bool(speed) and min(speed) >= THROUGHPUT_SHARE,
            "no_visible_stalls": ours is not None and ours.visible_stalls == 0,
            "outputs_identical": self.comparison.identical,
        }

    def pages_needed(self) -> int:
        """KV pages of the long streams together at full length."""
        prompts: dict[str, int] = {}
        for run in self.runs:
            for outcome in run.outcomes:
                name = outcome.arrival.name
                prompts[name] = max(prompts.get(name, 0), outcome.rusage.prompt_tokens)
        return sum(
            -(-(prompts[arrival.name] + arrival.output_tokens) // PAGE_TOKENS)
            for arrival in self.workload.longs
        )

    def as_json(self) -> dict[str, object]:
        shape = self.workload.shape
        return {
            "policies": {name: as_json(figures) for name, figures in self.figures.items()},
            "outputs_identical": self.comparison.identical,
            "outputs_compared": self.comparison.compared,
            "ratios": self.ratios(),
            "targets": self.targets(),
            "problems": self.problems(),
            "workload": {
                **asdict(shape),
                "seed": self.workload.seed,
                "requests": len(self.workload.arrivals),
                "first_short_s": round(self.workload.shorts[0].at_s, 3),
                "last_arrival_s": round(max(a.at_s for a in self.workload.arrivals), 3),
                "ttft_target_s": TTFT_TARGET_S,
                "stall_tolerance_s": STALL_TOLERANCE_S,
                "measured_steps_per_s": [round(pace, 1) for pace in self.paces],
            },
            "model": self.options.model,
            "pool": {
                "device_pages": self.workload.pool_pages,
                "host_pages": HOST_POOLS * self.workload.pool_pages,
                "page_tokens": PAGE_TOKENS,
                "long_streams_need_pages": self.pages_needed(),
            },
            "machine": {**self.machine, "pace_spread": round(self.pace_spread(), 2)},
            "took_s": round(self.took_s, 1),
        }


def _p95(figures: Figures) -> float | None:
    return figures.ttft_p95_s


def _p50(figures: Figures) -> float | None:
    return figures.ttft_p50_s


def _throughput(figures: Figures) -> float | None:
    return figures.output_tokens_per_s


_RATIOS: tuple[tuple[str, Callable[[Figures], float | None]], ...] = (
    ("ttft_p95", _p95), ("ttft_p50", _p50), ("throughput", _throughput),
)  # fmt: skip


class Observer:
    """Hears how a demo goes on. Does nothing itself."""

    def booting(self, policy: str) -> Progress | None:
        """A machine for `policy` is booted; what it gives is told how far."""
        return None

    def started(self, policy: str, workload: Workload) -> None: ...

    def sample(self, sample: Sample) -> None: ...

    def finished(self, policy: str, figures: Figures) -> None: ...


def run_demo(options: DemoOptions, observer: Observer | None = None) -> Report:
    """Run all policies. OSError as `boot`; TimeoutError if a run does not end."""
    observer = observer or Observer()
    began_s = time.monotonic()
    machine = describe_machine()
    paces = calibrate(options, observer)
    # The load is what the machine sustains. The bursts are placed for its best pace: too early,
    # and the first find some room; too late, and all find the streams gone.
    shape = fit(options.shape, sum(paces) / len(paces))
    workload = make_workload(options.seed, max(paces), shape, PAGE_TOKENS)
    runs: list[Run] = []
    figures: dict[str, Figures] = {}
    for policy in options.policies:
        progress = observer.booting(policy)
        with _boot(options, policy, workload.pool_pages, progress) as k:
            before = measure_pace(k, shape.long_streams)
            observer.started(policy, workload)
            run = drive(k, workload.arrivals, policy, observer.sample)
            runs.append(replace(run, paces=(before, measure_pace(k, shape.long_streams))))
        figures[policy] = measure(runs[-1])
        observer.finished(policy, figures[policy])
    return Report(
        options, workload, tuple(paces), figures, tuple(runs), compare_outputs(runs), machine,
        time.monotonic() - began_s,
    )  # fmt: skip


def calibrate(options: DemoOptions, observer: Observer) -> list[float]:
    """Decode steps per second with all long streams running, some times over, on a machine of its
    own."""
    pages = pool_pages(options.shape, PAGE_TOKENS)
    with _boot(options, OURS, pages, observer.booting(CALIBRATION)) as k:
        return [measure_pace(k, options.shape.long_streams) for _ in range(CALIBRATIONS)]


def _boot(options: DemoOptions, policy: str, pages: int, progress: Progress | None) -> Syscalls:
    return boot(
        options.model, device_pages=pages, host_pages=HOST_POOLS * pages, policy=policy,
        page_tokens=PAGE_TOKENS, progress=progress, driver=options.driver,
    )  # fmt: skip


def measure_pace(k: Syscalls, streams: int) -> float:
    """Decode `streams` short texts together: steps per second. It also warms the machine up."""
    pids = [
        k.spawn(
            f"Count from {i} to one hundred.", max_tokens=WARM_UP_TOKENS, ignore_eos=True,
            qos="batch",
        )
        for i in range(streams)
    ]  # fmt: skip
    times_s: list[float] = []
    for pid in pids:
        outputs: list[Output] = []
        while len(outputs) < WARM_UP_TOKENS:
            outputs += k.read(pid).outputs
        k.wait(pid)
        times_s = [output.time_s for output in outputs]
    # The first steps still prefill the others' prompts.
    settled = times_s[WARM_UP_TOKENS // 4 :]
    return (len(settled) - 1) / (settled[-1] - settled[0])


def describe_machine() -> dict[str, object]:
    """What figures depend on, and how busy it was."""
    import os

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": None if load is None else round(load, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def check_policies(names: Sequence[str]) -> tuple[str, ...]:
    """The policies in the order given, each once. ValueError for one that does not exist."""
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise ValueError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    return tuple(dict.fromkeys(names)) or POLICIES
