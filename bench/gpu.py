"""What the whole machine does on a GPU: `make gpu-check` runs it, with a model of random weights.

    steady   streams that decode together: the share of a step in which the GPU has nothing to do
    resume   streams of 4,096 tokens with readers, in a pool that does not hold them all: what their
             coming back costs beside the bare link, and whether a reader notices

Every figure is a dict of name, value, unit and, where there is a goal, `least` or `most`.
"""

import json
import sys
from dataclasses import dataclass

from tokenix.bench.drive import Run, drive
from tokenix.bench.latency import resumes_s
from tokenix.bench.metrics import percentile
from tokenix.bench.reader import lateness
from tokenix.bench.workload import Arrival
from tokenix.syscalls.gpuclock import GpuMachine, MakeDevice, open_gpu, open_random

PAGE_TOKENS = 16

Figure = dict[str, float | str]

MOST_IDLE, MOST_TIMES_LINK = 0.05, 1.3


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything."""

    batches: tuple[int, ...] = (1, 32, 256)
    prompt: int = 8
    """Tokens, of streams that decode together."""
    steps: int = 52
    frames: int = 1100
    longs: int = 8
    """Streams that do not all fit."""
    long_prompt: int = 4096
    long_tokens: int = 384
    """Their output."""
    tokens_per_s: float = 50.0
    """Of their readers."""
    stagger_s: float = 0.3


def measure(load: Load | None = None, make: MakeDevice = open_random) -> list[Figure]:
    """All figures. OSError ENODEV without a GPU; RuntimeError for a stream that fails."""
    load = load or Load()
    slots = load.longs * -(-(load.long_prompt + load.long_tokens) // PAGE_TOKENS)
    with open_gpu(load.frames, slots, make) as gpu:
        return [*measure_steady(gpu, load), *measure_resume(gpu, load)]


def measure_steady(gpu: GpuMachine, load: Load) -> list[Figure]:
    """GPU idle in steps of each batch, decoded twice: the first time compiles and captures."""
    found: list[Figure] = []
    for batch in load.batches:
        for _ in range(2):
            _decode(gpu, batch, load.prompt, load.steps)
            gaps = gpu.clock.gaps(batch)
        name = f"decode, batch {batch}"
        if gaps is None:
            raise RuntimeError(f"{name}: no steps of all streams followed one another")
        found += [
            {"name": f"{name}: step, with the kernel", "value": gaps.step_s * 1e3, "unit": "ms"},
            {"name": f"{name}: GPU idle, of the step", "value": gaps.idle_share, "most": MOST_IDLE},
        ]
    return found


def _decode(gpu: GpuMachine, batch: int, prompt: int, steps: int) -> None:
    """Streams that decode together, but for the passes that compute their prompts."""
    k = gpu.k
    pids = [
        k.spawn(_tokens(gpu, stream, prompt), max_tokens=steps, ignore_eos=True, reader="batch")
        for stream in range(batch)
    ]
    for pid in pids:
        ended = k.wait(pid)
        if ended.error:
            raise RuntimeError(f"a stream has failed: {ended.error}")


def measure_resume(gpu: GpuMachine, load: Load) -> list[Figure]:
    """What happens to streams that take turns in the pool."""
    arrivals = [
        Arrival(
            f"long {number}", number * load.stagger_s, _tokens(gpu, number, load.long_prompt),
            load.long_tokens, "stream", load.tokens_per_s,
        )
        for number in range(load.longs)
    ]  # fmt: skip
    run = drive(gpu.k, arrivals, "progress", limit_s=100.0)
    failed = [outcome.error or outcome.refused for outcome in run.outcomes if not outcome.finished]
    if failed:
        raise RuntimeError(f"a stream has failed: {failed[0]}")
    return describe(run, load, gpu.link_s / gpu.page_bytes)


def describe(run: Run, load: Load, link_s_per_byte: float) -> list[Figure]:
    """The figures of a run of long streams."""
    name = f"{load.long_prompt} tokens"
    back_s = [seconds for seconds in resumes_s(run.events) if seconds > 0]
    moved = sum(outcome.rusage.swapped_in_bytes for outcome in run.outcomes)
    late_s = [max(lateness(o.times_s, load.tokens_per_s), default=0.0) for o in run.outcomes]
    found: list[Figure] = [
        {"name": f"{name}: returns with pages to load", "value": len(back_s), "least": 1},
        {
            "name": f"{name}: visible stalls",
            "value": sum(o.stalls for o in run.outcomes),
            "most": 0,
        },
        {"name": f"{name}: latest token behind its reader", "value": max(late_s), "unit": "s"},
    ]
    if back_s and moved:
        times, p95_s = sum(back_s) / (moved * link_s_per_byte), percentile(back_s, 95) or 0.0
        found += [
            {"name": f"{name}: return, p95", "value": 1e3 * p95_s, "unit": "ms"},
            {"name": f"{name}: returns, times the link's", "value": times, "most": MOST_TIMES_LINK},
        ]
    return found


def _tokens(gpu: GpuMachine, stream: int, count: int) -> list[int]:
    """A prompt that no other stream has."""
    return [1 + (7919 * (stream + 1) + 31 * at) % (gpu.vocab_tokens - 1) for at in range(count)]


def main(make: MakeDevice = open_random, load: Load | None = None) -> int:
    """Figures as JSON. Exit code 1, and a line that says why, if there are none."""
    try:
        sys.stdout.write(json.dumps(measure(load, make)) + "\n")
    except (OSError, MemoryError, RuntimeError) as why:  # of the machine, of CUDA, of torch
        said = str(why).splitlines()
        sys.stderr.write(f"{said[0] if said else type(why).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
