"""A prefix cache of some blocks, without a kernel: what eviction policies find in it.

The ranking and the container are the production ones. A request looks up its blocks, computes those
behind the first that is missing, and is done at once; then all that is too much is evicted, the
blocks of this request among the others.
"""

from collections.abc import Callable, Iterable, Sequence

from tokenix.mm.density import group_of, learn, spend
from tokenix.mm.evict import IdlePages, Known, Policy, Ranking, Slru, Watch
from tokenix.mm.prefix import POLICIES as KNOWN

POLICIES: dict[str, Callable[[], Policy]] = {
    **KNOWN,
    "slru+ghosts": lambda: Slru(remembers=True),
}

Visit = tuple[float, Sequence[int]]
"""When a request came, and its blocks. A block's number stands for all that is before it, too."""


class PrefixCache:
    """Room for `blocks`, given up by `policy`."""

    def __init__(self, policy: str, blocks: int) -> None:
        self._room = blocks
        self._ranking: Ranking[None] = Ranking(POLICIES[policy](), blocks)
        self._found: dict[int, Known[None]] = {}
        self._idle: IdlePages[None] = IdlePages()

    def visit(
        self,
        now_s: float,
        blocks: Sequence[int],
        made: Sequence[int] = (),
        masses: Iterable[Sequence[float]] = (),
    ) -> int:
        """One request. Returns how many blocks from the start of its prompt were there. `made`: the
        blocks that its output fills; `masses`: how some of its queries spread their attention over
        prompt and output, by block."""
        chain: list[Known[None]] = []
        for block in blocks:
            page = self._found.get(block)
            if page is None:
                break
            self._idle.remove(page)
            self._ranking.note_use(page, now_s)
            chain.append(page)
        hits = len(chain)
        assert self._found.keys().isdisjoint(blocks[hits:]), "no page is kept without those before"
        for block in (*blocks[hits:], *made):
            page = self._found.get(block)
            if page is None:
                key = block.to_bytes(8, "little")
                page = self._ranking.meet(None, key, chain[-1] if chain else None, now_s)
                self._found[block] = page
            self._idle.remove(page)
            chain.append(page)
        for mass in masses:
            self._ranking.note_mass(chain, mass, now_s)
        for page in chain:
            self._ranking.note_idle(page, now_s)
            self._idle.add(page)
        self._shrink(now_s)
        return hits

    def _shrink(self, now_s: float) -> None:
        while len(self._idle) > self._room:
            page = self._idle.take()
            assert page is not None
            del self._found[int.from_bytes(page.key, "little")]
            self._ranking.note_evicted(page, now_s, len(self._idle))


def count_hits(visits: Iterable[Visit], policy: str, blocks: int) -> int:
    """Blocks that are found, of all visits."""
    cache = PrefixCache(policy, blocks)
    return sum(cache.visit(now_s, asked) for now_s, asked in visits)


def count_foreseeable(visits: Sequence[Visit], sizes: Sequence[int]) -> list[float]:
    """Hits of a cache of each size that is told beforehand how soon blocks of each use count
    return, but not which. A fluid model: sizes hold on average, sequences are divisible."""
    last: dict[int, Watch] = {}
    uses: dict[int, int] = {}
    watches: list[Watch] = []
    for now_s, asked in visits:
        for block in asked:
            before = last.get(block)
            if before is not None:
                before.until_s, before.returned = now_s, True
            uses[block] = uses.get(block, 0) + 1
            last[block] = Watch(group_of(uses[block]), now_s, worth=1.0)
            watches.append(last[block])
    if not visits:
        return [0.0 for _ in sizes]
    span_s = max(visits[-1][0] - visits[0][0], 1e-9)
    groups = learn(watches, visits[-1][0])
    return [spend(groups, span_s, size).worth * span_s for size in sizes]
