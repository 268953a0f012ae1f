"""Which cached page goes first: policies as sort keys, and pages without a reader in their order.

    Ranking     what is known of each findable page, and its rank by a policy
    IdlePages   those that nobody maps, lowest rank first; one for each tier that gives up pages

A page's rank is set when it is used and never falls. It is at least that of every page behind it in
its sequence, as nothing can find those without it: the container would else fill with pages that
are out of reach. Equal ranks: the deeper page goes first, then the one that was met first.

    lru          used longest ago
    lfu          used by the fewest requests
    slru         used by one request only, then by several; each by last use
    tail-aware   ends of long sequences; a use by another request counts as much as half the depth
    hit-density  `mm/density.py`
    attention    queries have looked least at it and at what is behind it; looks halve with time

lru, lfu and slru are those of SGLang's `evict_policy.py` (no bound on what slru protects).
tail-aware is greedy-dual-size-frequency (Cherkasova 1998) with the depth of a page as its size.
attention is the heavy-hitter score of H2O (Zhang, NeurIPS 2023) for whole pages of a prefix: what
is behind a page counts for it, as it is out of reach without it. Without masses it is lru.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tokenix.mm.mass import NOTHING, add_mass

GHOSTS_PER_PAGE = 4
"""Evicted pages whose use count is kept, for each page of the pool. On mooncake_conversation more
help below 2,000 blocks only, fewer cost hits everywhere. One is about 200 bytes; a page of an 8B
model is 2 MB."""
LEAST_GHOSTS = 1 << 14
"""About 3 MB, so that a small pool learns too."""

Rank = tuple[float, ...]
"""Lower goes first. All ranks of one policy have the same length."""

LOWEST: Rank = ()

P = TypeVar("P")


@dataclass(slots=True, eq=False)
class Watch:
    """Pages of one sequence that one request used last: did another one ask for them, and when?"""

    group: int
    """Of pages that are taken to return alike."""
    since_s: float
    pages: float = 1.0
    worth: float = 0.0
    """Of all of them, see `Known.worth`."""
    until_s: float | None = None
    """When they were used again or forgotten; None while neither."""
    returned: bool = False


@dataclass(slots=True, eq=False)
class Known(Generic[P]):
    """What is known of a findable page. `Ranking` writes; all else only looks."""

    page: P
    key: bytes
    parent: "Known[P] | None"
    """The page before it in its sequence."""
    serial: int
    depth: int
    """Pages before it."""
    weight: float = 1.0
    """Of its tenant."""
    recompute_s: float = 1.0
    """Seconds of prefill that a hit saves."""
    uses: int = 1
    """Different requests that mapped it, also before it was evicted if that is remembered."""
    used_s: float = 0.0
    """When somebody last had it mapped."""
    log_mass: float = NOTHING
    """Attention that it and what is behind it got, decayed (`mm/mass.py`)."""
    rank: Rank = LOWEST
    watch: Watch | None = None
    """Ends when this page is used again."""

    @property
    def worth(self) -> float:
        """Of a hit."""
        return self.weight * self.recompute_s


class Policy(Protocol):
    """A sort key. `note_*` are for those that learn."""

    @property
    def remembers(self) -> bool:
        """Whether use counts outlive the page."""
        ...

    @property
    def weighs(self) -> bool:
        """Whether it wants to be told of attention (`Ranking.note_mass`)."""
        ...

    def rank(self, page: Known[P], base: Rank) -> Rank:
        """Look-only. `base`: the highest rank evicted so far. That ranks never fall is seen to by
        `Ranking`."""
        ...

    def note_idle(self, page: Known[P]) -> None:
        """Nobody maps it since `page.used_s`; `rank` is asked next."""
        ...

    def note_end(self, watch: Watch, now_s: float, returned: bool) -> None:
        """The watched pages were used again, or will not be recognised any more."""
        ...

    def note_room(self, pages: int) -> None:
        """So many idle pages were left when one was evicted."""
        ...


class Fixed:
    """A policy that learns nothing."""

    weighs = False

    def __init__(self, remembers: bool = False) -> None:
        self.remembers = remembers

    def note_idle(self, page: Known[P]) -> None:
        pass

    def note_end(self, watch: Watch, now_s: float, returned: bool) -> None:
        pass

    def note_room(self, pages: int) -> None:
        pass


class Lru(Fixed):
    def rank(self, page: Known[P], base: Rank) -> Rank:
        return (page.used_s,)


class Lfu(Fixed):
    def rank(self, page: Known[P], base: Rank) -> Rank:
        return (page.uses, page.used_s)


class Slru(Fixed):
    def rank(self, page: Known[P], base: Rank) -> Rank:
        return (page.uses > 1, page.used_s)


class TailAware(Fixed):
    def rank(self, page: Known[P], base: Rank) -> Rank:
        return ((base[0] if base else 0.0) + page.uses / (1 + page.depth), page.used_s)


class Attention(Fixed):
    weighs = True

    def rank(self, page: Known[P], base: Rank) -> Rank:
        return (page.log_mass, page.used_s)


class Ghosts:
    """Use counts of pages that were evicted, the most recent ones."""

    def __init__(self) -> None:
        self._ghosts: dict[bytes, tuple[int, Watch | None]] = {}

    def __len__(self) -> int:
        return len(self._ghosts)

    def put(self, page: Known[P]) -> None:
        self._ghosts[page.key] = (page.uses, page.watch)

    def take(self, key: bytes) -> tuple[int, Watch | None]:
        """Uses and watch of an evicted page, (0, None) if it is not remembered."""
        return self._ghosts.pop(key, (0, None))

    def take_oldest(self) -> Watch | None:
        """Forget one."""
        return self._ghosts.pop(next(iter(self._ghosts)))[1]


class Ranking(Generic[P]):
    """Keeps the records of findable pages, and ranks them when they become idle."""

    def __init__(self, policy: Policy, pages: int) -> None:
        """`pages`: that all tiers have room for."""
        self._policy = policy
        self._most_ghosts = max(LEAST_GHOSTS, GHOSTS_PER_PAGE * pages) if policy.remembers else 0
        policy.note_room(pages)
        self._ghosts = Ghosts()
        self._met = 0
        self._base: Rank = LOWEST

    def meet(
        self, page: P, key: bytes, parent: Known[P] | None, now_s: float,
        weight: float = 1.0, recompute_s: float = 1.0,
    ) -> Known[P]:  # fmt: skip
        """The record of a page that has become findable; the request that made it is a use."""
        assert weight >= 0 and recompute_s >= 0
        uses, watch = self._ghosts.take(key)
        if watch is not None:
            self._policy.note_end(watch, now_s, returned=True)
        self._met += 1
        depth = parent.depth + 1 if parent is not None else 0
        return Known(page, key, parent, self._met, depth, weight, recompute_s, uses + 1, now_s)

    def note_use(self, page: Known[P], now_s: float) -> None:
        """Another request has found it. Also while others map it."""
        page.uses += 1
        page.used_s = now_s
        if page.watch is not None:
            self._policy.note_end(page.watch, now_s, returned=True)
            page.watch = None

    def note_mass(
        self, chain: Sequence[Known[P] | None], masses: Sequence[float], now_s: float
    ) -> None:
        """A query gave `masses` of its attention to the pages of its sequence, from the first on;
        None: a page that cannot be found. Each counts with all that is behind it."""
        behind = 0.0
        for vpn in range(len(masses) - 1, -1, -1):
            behind += masses[vpn]
            page = chain[vpn] if vpn < len(chain) else None
            if page is not None:
                page.log_mass = add_mass(page.log_mass, behind, now_s)

    def note_idle(self, page: Known[P], now_s: float) -> None:
        """Its last reader is gone: it is ranked; then comes `IdlePages.add`. Pages of one sequence
        come in order, from either end."""
        page.used_s = now_s
        self._policy.note_idle(page)
        rank = max(page.rank, self._policy.rank(page, self._base))
        above: Known[P] | None = page
        while above is not None and above.rank < rank:
            above.rank = rank
            above = above.parent

    def note_evicted(self, page: Known[P], now_s: float, left: int) -> None:
        """No tier holds it any more, and `left` idle pages are left in the last one."""
        self._base = max(self._base, page.rank)
        self._ghosts.put(page)
        self._policy.note_room(left)
        while len(self._ghosts) > self._most_ghosts:
            watch = self._ghosts.take_oldest()
            if watch is not None:
                self._policy.note_end(watch, now_s, returned=False)


@dataclass(slots=True)
class IdlePages(Generic[P]):
    """Pages that nobody maps, lowest rank first. Adding, removing, taking: O(log n), amortised.

    A heap. Entries of pages that were removed or have risen since are put right when they come up.
    """

    _heap: list[tuple[Rank, int, int, int, Known[P]]] = field(default_factory=list)
    """(rank, -depth, serial, entry, page)"""
    _entries: dict[int, int] = field(default_factory=dict)
    """Serial of a page that is in -> its valid entry."""
    _added: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, page: Known[P]) -> bool:
        return page.serial in self._entries

    def __iter__(self) -> Iterator[Known[P]]:
        """In the order in which they would go; none may come or go meanwhile. The first k take
        O(k log k), and as much for entries before them that are to be put right."""
        ahead = [(entry, at) for at, entry in enumerate(self._heap[:1])]
        while ahead:
            entry, at = heapq.heappop(ahead)
            for below in range(2 * at + 1, min(2 * at + 3, len(self._heap))) if at >= 0 else ():
                heapq.heappush(ahead, (self._heap[below], below))
            page = entry[-1]
            if not self._is_valid(entry):
                continue
            if entry[0] == page.rank:
                yield page
            else:
                heapq.heappush(ahead, (self._entry(page), -1))  # nowhere in the heap

    def add(self, page: Known[P]) -> None:
        """After `Ranking.note_idle`. Idempotent."""
        if page.serial not in self._entries:
            self._added += 1
            self._entries[page.serial] = self._added
            heapq.heappush(self._heap, self._entry(page))

    def remove(self, page: Known[P]) -> None:
        """It is used again, or lost. Idempotent."""
        self._entries.pop(page.serial, None)
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def peek(self) -> Known[P] | None:
        """The page that goes next; None if there is none."""
        while self._heap:
            entry = self._heap[0]
            page = entry[-1]
            if not self._is_valid(entry):
                heapq.heappop(self._heap)
            elif entry[0] != page.rank:
                heapq.heapreplace(self._heap, self._entry(page))
            else:
                return page
        return None

    def take(self) -> Known[P] | None:
        """Remove the page that goes next."""
        page = self.peek()
        if page is not None:
            self.remove(page)
        return page

    def _entry(self, page: Known[P]) -> tuple[Rank, int, int, int, Known[P]]:
        return (page.rank, -page.depth, page.serial, self._entries[page.serial], page)

    def _is_valid(self, entry: tuple[Rank, int, int, int, Known[P]]) -> bool:
        return self._entries.get(entry[2]) == entry[3]
