"""Prefix index: full pages found by content, so that equal prompts share one copy of their KV.

A full page is named by a chain hash: its name covers the model, the tenant's namespace and every
token from the start of the sequence, so equal names mean equal KV.

    root = H(namespace)    key(page 0) = H(root, tokens 0..15)    key(page 1) = H(key(page 0), ..)

Pages stay findable after the last process that mapped them has exited, on the device and in the
tiers below, until their last place is wanted for something better. Never across namespaces: a hit
is visible in time, and would tell one tenant what another has asked.
"""

import hashlib
import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from tokenix.mm.density import HitDensity
from tokenix.mm.evict import (
    Attention,
    IdlePages,
    Known,
    Lfu,
    Lru,
    Policy,
    Rank,
    Ranking,
    Slru,
    TailAware,
)
from tokenix.mm.page import Page
from tokenix.mm.quota import Quotas

KEY_BYTES = 16

MOST_ENDS = 1024
"""Pages kept at which a match has ended lately."""

MOST_ALIKE = 32
"""Pages behind one prefix that are compared with the beginning of another."""


def root_key(namespace: str) -> bytes:
    """The parent of the first page of every sequence in `namespace`."""
    name = namespace.encode("utf-8", "surrogatepass")  # any string names a tenant
    return hashlib.blake2b(name, digest_size=KEY_BYTES).digest()


def chain_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full page that holds `tokens` after the sequence named `parent`."""
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=KEY_BYTES, key=parent).digest()


POLICIES: dict[str, Callable[[], Policy]] = {
    "hit-density": HitDensity,
    "lru": Lru,
    "lfu": Lfu,
    "slru": Slru,
    "tail-aware": TailAware,
    "attention": Attention,
}
"""What decides which idle page goes first; the default first."""


class IdleTier:
    """Idle pages of one tier, by tenant. Those below a tenant's floor go last."""

    def __init__(self, tier: str, quotas: Quotas) -> None:
        self._tier = tier
        self._quotas = quotas
        self._by_tenant: dict[str, IdlePages[Page]] = {}

    def __len__(self) -> int:
        return sum(len(pages) for pages in self._by_tenant.values())

    def __iter__(self) -> Iterator[Known[Page]]:
        """In the order in which they would go, whoever asks, as `IdlePages` gives them."""
        return heapq.merge(*self._by_tenant.values(), key=_order)

    def peek(self) -> Known[Page] | None:
        """The one that goes next: of tenants that have more than their floor, if there is one."""
        best: Known[Page] | None = None
        kept = True
        for tenant, pages in self._by_tenant.items():
            first = pages.peek()
            keep = self._quotas.protects(tenant, self._tier)
            if first is not None and (best is None or (keep, _order(first)) < (kept, _order(best))):
                best, kept = first, keep
        return best

    def add(self, known: Known[Page]) -> None:
        self._by_tenant.setdefault(known.page.tenant, IdlePages()).add(known)

    def remove(self, known: Known[Page]) -> None:
        pages = self._by_tenant.get(known.page.tenant)
        if pages is not None:
            pages.remove(known)
            if not len(pages):
                del self._by_tenant[known.page.tenant]


def _order(known: Known[Page]) -> tuple[Rank, int, int]:
    return (known.rank, -known.depth, known.serial)


class PrefixIndex:
    """Names of full pages, and the unmapped ones of each tier."""

    def __init__(
        self,
        enabled: bool = True,
        policy: str = "hit-density",
        total_pages: int = 1024,
        quotas: Quotas | None = None,
    ) -> None:
        """`policy`: one of POLICIES. `total_pages`: that all tiers have room for."""
        quotas = quotas or Quotas()
        self.now_s = 0.0
        """Set by the kernel at the beginning of each step."""
        self._enabled = enabled
        chosen = POLICIES[policy]()
        self.weighs = chosen.weighs
        """Whether `note_mass` is of any use."""
        self._ranking: Ranking[Page] = Ranking(chosen, total_pages)
        self._pages: dict[bytes, Page] = {}
        self._behind: dict[bytes, dict[Page, tuple[int, ...]]] = {}
        """By the key before them: pages and their tokens."""
        self._idle: dict[Page, None] = {}
        self._ends: dict[Page, None] = {}
        """The last pages of what requests have found, the latest at the end. Between two ends of a
        sequence all pages were found equally often."""
        self.idle_frames = IdleTier("frames", quotas)
        """Those on the device, wherever else they are."""
        self.idle_slots = IdleTier("host", quotas)
        """Those in the host tier."""
        self.idle_afloat = IdleTier("host", quotas)
        """Of these, those that are not in the swap file."""
        self.idle_blocks = IdleTier("disk", quotas)
        """Those in the swap file."""

    # ---- look only ----

    def lookup(self, keys: Sequence[bytes]) -> list[Page]:
        """The longest run of pages that match `keys` from the start and are on the device or in the
        host tier. Changes nothing."""
        found: list[Page] = []
        for key in keys:
            page = self._pages.get(key)
            if page is None or page.loading is not None or page.deep:
                break
            found.append(page)
        return found

    def knows(self, key: bytes) -> bool:
        """Whether there is such a page, wherever it is."""
        return key in self._pages

    def lookup_deep(self, keys: Sequence[bytes]) -> list[Page]:
        """Of the longest run that matches from the start wherever it is, the pages that are in the
        swap file only and not on their way up."""
        found: list[Page] = []
        for key in keys:
            page = self._pages.get(key)
            if page is None or page.loading is not None:
                break
            if page.deep and page.rising is None:
                found.append(page)
        return found

    def lookup_partial(self, parent: bytes, tokens: Sequence[int]) -> tuple[Page, int] | None:
        """Of the pages behind `parent` that are on the device, the one that begins most like
        `tokens`, and how many it has in common with them. Looks at MOST_ALIKE."""
        best: tuple[Page, int] | None = None
        for page, content in islice(self._behind.get(parent, {}).items(), MOST_ALIKE):
            if page.pfn is None or page.loading is not None:
                continue
            common = 0
            for mine, its in zip(tokens, content, strict=False):
                if mine != its:
                    break
                common += 1
            if common and (best is None or common > best[1]):
                best = page, common
        return best

    def is_idle(self, page: Page) -> bool:
        """Whether it is listed as one that nobody maps."""
        return page in self._idle

    def count_idle(self) -> int:
        """Findable pages that nobody maps, in any tier."""
        return len(self._idle)

    def count(self) -> int:
        return len(self._pages)

    def pages(self) -> list[Page]:
        return list(self._pages.values())

    def peek_ends(self) -> list[Page]:
        """Last pages of what was found, of the MOST_ENDS latest that are still there."""
        return list(self._ends)

    # ---- changes ----

    def insert(self, page: Page, key: bytes, parent: bytes, tokens: Sequence[int]) -> None:
        """Make a full page of `tokens` findable, behind the one of `parent`. If its content already
        has a name-holder, it stays private."""
        assert page.key is None, "a page is named once"
        if self._enabled and key not in self._pages:
            before = self._pages.get(parent)
            page.key = key
            above = None if before is None else before.use
            page.use = self._ranking.meet(page, key, above, self.now_s)
            self._pages[key] = page
            page.parent = parent
            self._behind.setdefault(parent, {})[page] = tuple(tokens)

    def note_use(self, pages: Sequence[Page]) -> None:
        """Another request has found these pages, which follow each other."""
        for page in pages:
            if page.use is not None:
                self._ranking.note_use(page.use, self.now_s)
        if pages and pages[-1].use is not None:
            self._ends.pop(pages[-1], None)
            self._ends[pages[-1]] = None
            if len(self._ends) > MOST_ENDS:
                del self._ends[next(iter(self._ends))]

    def note_mass(self, pages: Sequence[Page], masses: Sequence[float]) -> None:
        """A query gave so much of its attention to each page of its sequence."""
        self._ranking.note_mass([page.use for page in pages], masses, self.now_s)

    def forget(self, page: Page, evicted: bool = False) -> None:
        """The page cannot be found any more: it is lost, or it was `evicted` from its last tier.
        Idempotent."""
        if page.key is None:
            return
        del self._pages[page.key]
        alike = self._behind[page.parent]
        del alike[page]
        if not alike:
            del self._behind[page.parent]
        page.key = None
        self._ends.pop(page, None)
        self.note(page)
        assert page.use is not None, "what can be found is known"
        if evicted:
            self._ranking.note_evicted(page.use, self.now_s, len(self._idle))
        page.use = None

    def note(self, page: Page) -> None:
        """The page has changed: list it with the idle ones of the tiers that it is in, but not
        where a copy of it is under way."""
        idle = page.mapped == 0 and page.key is not None
        if not idle and page not in self._idle:
            return
        known = page.use
        assert known is not None, "what can be found is known"
        if not idle:
            del self._idle[page]
        elif page not in self._idle:
            self._idle[page] = None
            self._ranking.note_idle(known, self.now_s)
        for pages, here in (
            (self.idle_frames, page.pfn is not None and not (page.loading or page.leaving)),
            (self.idle_slots, page.slot is not None and not page.storing),
            (
                self.idle_afloat,
                page.slot is not None and page.block is None and not page.storing,
            ),
            (self.idle_blocks, page.block is not None and not page.rising),
        ):
            if idle and here:
                pages.add(known)
            else:
                pages.remove(known)
