"""What a step of the model costs, beside what the machine could do at best.

Ways to keep weights take turns in one run, so that all see the same machine. The floor of a step is
the larger of two times: its bytes at the rate of memory, its multiply-adds at the rate of the
arithmetic; both rates are measured in the same run, by loops that do nothing else.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tokenix.syscalls.choices import WeightKind
from tokenix.syscalls.passes import PAGE_TOKENS, Limits, Passes, Work, measure_limits

WEIGHTS: tuple[WeightKind, ...] = ("native", "bf16", "exact")
BATCHES = (1, 8, 32)
CONTEXT = 192
"""Tokens of each sequence at its decode step, the new one included."""
PREFILL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step of `batch` sequences."""

    weights: str
    batch: int
    ms: float
    """Median."""
    best_ms: float
    floor_ms: float
    bound: str
    """memory or arithmetic: which of them the floor is made of."""
    phases_ms: dict[str, float]
    """Medians of what the step does, by its names in the driver; `around`: outside of it all."""

    @property
    def of_floor(self) -> float:
        return self.ms / self.floor_ms


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    context: int
    steps: tuple[Step, ...]
    prefill_tokens_per_s: dict[str, float]
    """Of PREFILL_TOKENS tokens, by weights."""
    read_gb_per_s: float
    dot_gmacs_per_s: float
    pair_gmacs_per_s: float
    fma_gmacs_per_s: float

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench decode --json` prints."""
        return asdict(self)


def measure(
    model: str = "smollm2",
    batches: tuple[int, ...] = BATCHES,
    rounds: int = 20,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """Errors as `boot`'s."""
    tell = watch or (lambda _: None)
    pages = -(-CONTEXT // PAGE_TOKENS)
    frames = max(batches) * pages + -(-PREFILL_TOKENS // PAGE_TOKENS)
    nets: dict[str, Passes] = {}
    for weights in WEIGHTS:
        tell(f"loading, {weights}")
        passes = nets[weights] = Passes.load(model, ("f16",), frames, weights)["f16"]
        for row in range(max(batches)):
            passes.run({row: _text(row, CONTEXT - 1)}, every=False)
    tell("measuring the machine")
    limits = measure_limits()
    times: dict[tuple[str, int], list[float]] = {}
    phases: dict[tuple[str, int], list[dict[str, float]]] = {}
    prefills: dict[str, list[float]] = {kind: [] for kind in nets}
    for done in range(rounds):
        tell(f"round {done + 1} of {rounds}")
        for batch in batches:
            for kind, passes in nets.items():
                for _ in range(2):  # the second one finds this net's weights where it left them
                    took_s = _step_s(passes, batch)
                times.setdefault((kind, batch), []).append(took_s)
                phases.setdefault((kind, batch), []).append(_phases_ms(passes, took_s))
        if done % 4 == 0:
            for kind, passes in nets.items():
                prefills[kind].append(_prefill_s(passes))
    floors = {key: _floor(key[0], nets[key[0]].work_of(key[1], CONTEXT), limits) for key in times}
    steps = tuple(
        Step(
            kind,
            batch,
            1e3 * statistics.median(each),
            1e3 * min(each),
            *floors[kind, batch],
            _medians(phases[kind, batch]),
        )
        for (kind, batch), each in times.items()
    )
    return Report(
        model,
        CONTEXT,
        steps,
        {kind: PREFILL_TOKENS / statistics.median(each) for kind, each in prefills.items()},
        limits.read_bytes_per_s / 1e9,
        limits.dot_macs_per_s / 1e9,
        limits.pair_macs_per_s / 1e9,
        limits.fma_macs_per_s / 1e9,
    )


def _text(seed: int, tokens: int) -> tuple[int, ...]:
    return tuple((seed * 131 + i * 7919) % 40_000 for i in range(tokens))


def _step_s(passes: Passes, batch: int) -> float:
    began_s = time.perf_counter()
    passes.run(dict.fromkeys(range(batch), (5,)), every=False)
    took_s = time.perf_counter() - began_s
    for row in range(batch):
        passes.rewind(row, 1)
    return took_s


def _phases_ms(passes: Passes, took_s: float) -> dict[str, float]:
    """Of the step that has just taken so long."""
    inside = passes.phases_s()
    return {name: 1e3 * part for name, part in inside.items()} | {
        "around": 1e3 * (took_s - sum(inside.values()))
    }


def _medians(each: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in each) for name in each[0]}


PREFILL = -1
"""Sequence of the prefill; others are 0, 1, .."""


def _prefill_s(passes: Passes) -> float:
    began_s = time.perf_counter()
    passes.run({PREFILL: _text(7, PREFILL_TOKENS)}, every=False)
    took_s = time.perf_counter() - began_s
    passes.rewind(PREFILL, PREFILL_TOKENS)
    return took_s


def _floor(weights: str, work: Work, limits: Limits) -> tuple[float, str]:
    """Milliseconds that a step takes at least, and what bounds it."""
    memory_s = work.bytes / limits.read_bytes_per_s
    rates = {"native": limits.dot_macs_per_s, "bf16": limits.pair_macs_per_s}
    weights_s = work.weight_macs / rates.get(weights, limits.fma_macs_per_s)
    arithmetic_s = weights_s + work.attention_macs / limits.fma_macs_per_s
    bound = "memory" if memory_s >= arithmetic_s else "arithmetic"
    return 1e3 * max(memory_s, arithmetic_s), bound
