"""How many blocks of prompts a prefix cache of some size finds, by what it evicts.

    infinite       nothing is ever evicted
    belady         what is used again latest goes first: no cache of that size can find more
    foreseeable    a cache that knows how soon pages of each use count return, but not which ones do
    lru, ...       policies of `mm/`, `syscalls/prefixcache.py`

Blocks count as found up to the first that is missing, as in serving. Time is that of arrivals; a
request is done at once.
"""

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from tokenix.bench.traces import Request
from tokenix.syscalls.prefixcache import POLICIES as KNOWN
from tokenix.syscalls.prefixcache import Visit, count_foreseeable, count_hits

POLICIES = tuple(policy for policy in KNOWN if policy != "attention")
"""A trace does not tell attention; see `attention.py`."""
SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)

# ---- a synthetic load: agents with system prompts, chats, documents that are read once ----
SPAN_S = 1800.0
AGENTS = 12
CHATS_PER_S = 0.8
DOCUMENTS_PER_S = 0.08
TURN_ON = 0.72
"""Chance that a chat has one more turn."""
THINK_S = 60.0
"""Median between two turns; 16 % take more than 2.5 times as long."""


@dataclass(frozen=True, slots=True)
class Line:
    """Shares of all blocks that are found in a cache of one size."""

    blocks: int
    belady: float
    foreseeable: float
    policies: dict[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    requests: int
    accesses: int
    distinct: int
    infinite: float
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench evict --json` prints."""
        return asdict(self)


def study(
    name: str,
    visits: Sequence[Visit],
    sizes: Sequence[int] = SIZES,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """All policies at all sizes. ValueError if no request has blocks."""
    tell = watch or (lambda _: None)
    accesses = sum(len(blocks) for _, blocks in visits)
    if not accesses:
        raise ValueError(f"{name} does not tell which prompts begin alike: no blocks")
    distinct = len({block for _, blocks in visits for block in blocks})
    foreseeable = count_foreseeable(visits, sizes)
    most = count_infinite(visits)
    lines = []
    for size, known in zip(sizes, foreseeable, strict=True):
        tell(f"{size} blocks")
        found = {policy: count_hits(visits, policy, size) / accesses for policy in POLICIES}
        best = count_belady(visits, size)
        lines.append(Line(size, best / accesses, min(known, best) / accesses, found))
    return Report(name, len(visits), accesses, distinct, most / accesses, tuple(lines))


def visits_of(requests: Iterable[Request]) -> list[Visit]:
    """Requests with their blocks, numbered anew: equal numbers have equal blocks before them."""
    numbers: dict[tuple[int, int], int] = {}
    visits: list[Visit] = []
    for request in requests:
        before, chain = -1, []
        for block in request.blocks:
            before = numbers.setdefault((before, block), len(numbers))
            chain.append(before)
        visits.append((request.arrival_s, chain))
    return visits


def count_infinite(visits: Iterable[Visit]) -> int:
    seen: set[int] = set()
    hits = 0
    for _, blocks in visits:
        hits += sum(block in seen for block in blocks)
        seen.update(blocks)
    return hits


def count_belady(visits: Sequence[Visit], size: int) -> int:
    """Farthest next use first, a new block among the others. A block is used again no later than
    those behind it, so what is found is always a run from the start."""
    asked = [block for _, blocks in visits for block in blocks]
    again = [0] * len(asked)
    later: dict[int, int] = {}
    for at in range(len(asked) - 1, -1, -1):
        again[at] = later.get(asked[at], len(asked) + at)
        later[asked[at]] = at
    kept: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = 0
    for block, next_use in zip(asked, again, strict=True):
        hits += block in kept
        kept[block] = next_use
        heapq.heappush(farthest, (-next_use, block))
        while len(kept) > size:
            use, victim = heapq.heappop(farthest)
            if kept.get(victim) == -use:
                del kept[victim]
    return hits


def make_chats(seed: int, span_s: float = SPAN_S) -> list[Visit]:
    """The synthetic load."""
    chance = random.Random(seed)
    numbers = iter(range(1 << 40))

    def blocks(least: int, most: int) -> list[int]:
        return [next(numbers) for _ in range(chance.randint(least, most))]

    heads = [blocks(2, 12) for _ in range(AGENTS)]
    popular = [1 / (1 + agent) for agent in range(AGENTS)]
    visits: list[Visit] = []
    for at_s in _arrivals(chance, CHATS_PER_S, span_s):
        (head,) = chance.choices(heads, popular)
        prompt, now_s = head + blocks(1, 10), at_s
        while now_s < span_s:
            visits.append((now_s, tuple(prompt)))
            if chance.random() >= TURN_ON:
                break
            prompt = prompt + blocks(1, 4)
            now_s += 5 + THINK_S * chance.lognormvariate(0, 0.9)
    for at_s in _arrivals(chance, DOCUMENTS_PER_S, span_s):
        visits.append((at_s, tuple(blocks(48, 192))))
    return sorted(visits, key=lambda visit: visit[0])


def _arrivals(chance: random.Random, per_s: float, span_s: float) -> Iterator[float]:
    at_s = chance.expovariate(per_s)
    while at_s < span_s:
        yield at_s
        at_s += chance.expovariate(per_s)
