"""What arrives, and when: long streams that fill the KV pool, then bursts of short requests.

    long 1  |--------------------------------------------------->
    long 2   |-------------------------------------------------->      pool full
    ...        |------------------------------------------------>          v
    short                                      ||||   |||  |||||  ||||   (bursts, open loop)

A workload is a value: the same seed and pace give the same one, and every policy gets the same.
"""

import math
import random
from dataclasses import dataclass, replace

from tokenix.syscalls.types import Prompt

SUBJECTS = (
    "a lighthouse keeper", "a city under the sea", "the first train across a desert",
    "a clockmaker in Prague", "two rival bakers", "a library that lends memories",
    "a whale that sings alone", "the last radio station", "an island with no birds",
    "a painter who is losing her sight", "a bridge between two villages", "a winter without snow",
)  # fmt: skip

THINGS = (
    "a page fault", "a mutex", "a hash table", "a semaphore", "a linker", "a cache line",
    "a pipe", "an interrupt", "a scheduler", "a socket", "a heap", "a stack", "a compiler",
    "a checksum", "a kernel", "a thread", "a file system", "a bloom filter", "a deadlock",
    "a system call", "a symbolic link", "a race condition", "a page table", "a time slice",
    "a zombie process", "a signal handler", "a ring buffer", "a write barrier", "a memory leak",
    "a daemon", "a shell", "a branch predictor",
)  # fmt: skip

ASIDES = (
    "", "Answer in one sentence.", "Explain it to a child who likes trains.",
    "Say where a programmer meets it first, and keep it short.",
    "I know some Python but nothing of operating systems, so use plain words, please.",
)  # fmt: skip

TITLE_TOKENS = 48
"""About what the chat template and the question take of a long stream's prompt."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `at_s` counts from the start of the run."""

    name: str
    at_s: float
    prompt: Prompt
    output_tokens: int
    qos: str
    tokens_per_s: float
    """Pace of its reader."""

    @property
    def long(self) -> bool:
        return self.qos == "stream"


@dataclass(frozen=True, slots=True)
class Shape:
    """How much arrives. Times that follow from the device are in `make_workload`."""

    long_streams: int = 7
    long_tokens: int = 640
    """Output of each long stream."""
    stagger_s: float = 0.2
    """Between two arrivals of long streams."""
    shorts: int = 32
    burst: int = 4
    """Short requests of a burst."""
    short_tokens: tuple[int, int] = (16, 32)
    """Output of a short request: from, to."""
    tokens_per_s: float = 6.0
    """Pace of all readers; people read about 5 tokens a second."""
    pool_share: float = 0.6
    """Size of the KV pool, in what the long streams need at full length."""
    filled: float = 1.0
    """Part of the pool that the long streams hold when the first burst comes."""
    span: float = 1.2
    """The last burst comes after that many times what the long streams take in a large pool."""


FULL = Shape()
QUICK = Shape(long_streams=4, long_tokens=160, shorts=8)

FULL_SPEED_STEPS_PER_S = 28.0
"""A device that decodes the long streams that fast gets the shape as it is."""

FAST_STEPS_PER_S = 200.0
"""From there on (GPUs) streams would end before the next one comes: all times are shorter."""

LEAST_LONG_TOKENS = 400
LEAST_SHORTS = 24
LEAST_TOKENS_PER_S = 2.0


def fit(shape: Shape, steps_per_s: float) -> Shape:
    """The shape for a device that decodes the long streams together at `steps_per_s`.

    A slower one gets shorter streams, fewer short requests in smaller bursts, and slower readers,
    in proportion: what is asked of it stays as far within its means, and the run about as long.
    The KV pool shrinks with the streams, so the pressure on it is the same. A fast one gets
    arrivals nearer to each other and faster readers, in proportion.
    """
    if steps_per_s >= FAST_STEPS_PER_S:
        times = steps_per_s / FULL_SPEED_STEPS_PER_S
        return replace(
            shape, stagger_s=shape.stagger_s / times, tokens_per_s=shape.tokens_per_s * times
        )
    part = min(1.0, steps_per_s / FULL_SPEED_STEPS_PER_S)
    return replace(
        shape,
        long_tokens=max(min(LEAST_LONG_TOKENS, shape.long_tokens), int(part * shape.long_tokens)),
        stagger_s=shape.stagger_s / part,
        shorts=max(min(LEAST_SHORTS, shape.shorts), int(part * shape.shorts)),
        burst=max(1, int(part * shape.burst)),
        tokens_per_s=max(LEAST_TOKENS_PER_S, round(part * shape.tokens_per_s, 1)),
    )


@dataclass(frozen=True, slots=True)
class Workload:
    arrivals: tuple[Arrival, ...]
    pool_pages: int
    seed: int
    shape: Shape

    @property
    def longs(self) -> tuple[Arrival, ...]:
        return tuple(arrival for arrival in self.arrivals if arrival.long)

    @property
    def shorts(self) -> tuple[Arrival, ...]:
        return tuple(arrival for arrival in self.arrivals if not arrival.long)


def pool_pages(shape: Shape, page_tokens: int = 16) -> int:
    """Pages of the KV pool. The long streams alone need 1/`pool_share` times as much."""
    each = math.ceil((TITLE_TOKENS + shape.long_tokens) / page_tokens)
    pages = int(shape.pool_share * shape.long_streams * each)
    assert pages > each + 1, "every stream fits alone"
    return pages


def make_workload(
    seed: int, steps_per_s: float, shape: Shape = FULL, page_tokens: int = 16
) -> Workload:
    """The workload of `seed` for a device that decodes the long streams together at `steps_per_s`.

    The pace of the device only places the bursts: the first comes when the long streams, left
    alone, hold the share `filled` of the pool; the last at `span`.
    """
    assert steps_per_s > 0
    chance = random.Random(seed)
    pool = pool_pages(shape, page_tokens)
    longs = [
        Arrival(
            f"long {i + 1}", shape.stagger_s * i,
            f"Write a long and detailed story about {subject}. Take your time.",
            shape.long_tokens, "stream", shape.tokens_per_s,
        )
        for i, subject in enumerate(chance.sample(SUBJECTS, shape.long_streams))
    ]  # fmt: skip
    each = pool * page_tokens / shape.long_streams - TITLE_TOKENS
    first_s = longs[-1].at_s + shape.filled * each / steps_per_s
    last_s = max(first_s + 1.0, longs[-1].at_s + shape.span * shape.long_tokens / steps_per_s)
    shorts = _make_shorts(chance, shape, first_s, last_s)
    return Workload((*longs, *shorts), pool, seed, shape)


def _make_shorts(
    chance: random.Random, shape: Shape, first_s: float, last_s: float
) -> list[Arrival]:
    """Bursts evenly over [first_s, last_s], each jittered, its requests 0 to 50 ms apart."""
    things = [THINGS[i % len(THINGS)] for i in range(shape.shorts)]
    chance.shuffle(things)
    bursts = math.ceil(shape.shorts / shape.burst)
    gap_s = (last_s - first_s) / max(1, bursts - 1)
    shorts: list[Arrival] = []
    for number, thing in enumerate(things):
        if number % shape.burst == 0:
            at_s = first_s + number // shape.burst * gap_s + chance.uniform(0, 0.3 * gap_s)
        else:
            at_s += chance.uniform(0, 0.05)
        prompt = f"What is {thing}? {chance.choice(ASIDES)}".strip()
        tokens = chance.randint(*shape.short_tokens)
        shorts.append(
            Arrival(f"short {number + 1}", at_s, prompt, tokens, "interactive", shape.tokens_per_s)
        )
    return shorts
