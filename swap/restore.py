"""How a paused process gets its KV back: load what is missing, compute it again, or some of each.

    pages    [ resident ][ host ][ file ][ host ][ host ]
    load                  <----------------------------->
    cut                   <----->[ computed when it runs ]      computing needs what is before it,
    split                [ computed now ]<--------------->      so a tail, or a head beside the load

The cheapest in seconds is taken, by rates that every copy and every step correct.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenix.mm.page import Page

SPLIT_GAIN = 0.8
"""A head is computed beside the load only if all is there in this share of the time: computing
takes the device from others, loading does not."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What is measured of the machine now."""

    in_s_per_page: float
    fetch_s_per_page: float
    in_queue_s: float
    """Seconds of copies in flight towards the device."""
    fetch_queue_s: float
    """Seconds of copies in flight from the swap file."""
    prefill_tokens_per_s: float

    def load_s(self, host_pages: int, deep_pages: int) -> float:
        """Until so many pages are on the device; those of the file pass through the host tier."""
        if not host_pages and not deep_pages:
            return 0.0
        fetch_s = self.fetch_queue_s + deep_pages * self.fetch_s_per_page if deep_pages else 0.0
        return self.in_queue_s + fetch_s + (host_pages + deep_pages) * self.in_s_per_page

    def compute_s(self, tokens: int) -> float:
        return tokens / max(self.prefill_tokens_per_s, 1e-9)

    def is_covered(self, host_pages: int, tokens: int) -> bool:
        """Whether a pass of so many tokens, layer by layer beside the load of so many pages, takes
        no longer than without it, but for the first layers: nobody else in it has to wait then."""
        return self.load_s(host_pages, 0) <= self.compute_s(tokens)


@dataclass(frozen=True, slots=True)
class Restore:
    """What to do with the pages of a process, and how long it takes."""

    seconds: float
    cut: int | None = None
    """The page from which on everything is computed again; None: nothing is, at the end."""
    head: tuple[int, int] | None = None
    """(first, behind the last) of the pages that are computed while those behind them load."""

    @property
    def way(self) -> str:
        """Its name, for people."""
        if self.head is not None:
            return "split"
        if self.cut is None:
            return "swap-in"
        return "recompute"


WAYS = ("auto", "swap-in", "recompute", "split")
"""The cheapest, or always the same where that can be (for experiments)."""


def choose_restore(
    pages: Sequence[Page], computed: int, page_tokens: int, costs: Costs, way: str = "auto"
) -> Restore:
    """The way back for a process whose `pages` hold the KV of `computed` tokens: the cheapest, or
    the one of WAYS that is asked for. A tie goes to loading, which leaves the device free."""
    load = Restore(costs.load_s(*_count(pages)))
    cuts = _cuts(pages, computed, page_tokens, costs)
    split = best_split(pages, computed, page_tokens, costs)
    match way:
        case "swap-in":
            return load
        case "recompute":
            return cuts[0] if cuts else load
        case "split":
            return split or load
    best = min((load, *cuts), key=lambda way: way.seconds)
    return split if split is not None and split.seconds < SPLIT_GAIN * best.seconds else best


def _count(pages: Sequence[Page]) -> tuple[int, int]:
    """Those that are in the host tier, and those that are in the file only."""
    deep = sum(page.deep for page in pages)
    return sum(page.pfn is None for page in pages) - deep, deep


def _cuts(pages: Sequence[Page], computed: int, page_tokens: int, costs: Costs) -> list[Restore]:
    """Each kind of page loaded up to where another kind begins. Within a run of one kind the time
    changes evenly, so the best is at an end of it; but the last page may be partly written."""
    found = []
    host = deep = 0
    last = ""
    for vpn, page in enumerate(pages):
        kind = "" if page.pfn is not None else "file" if page.slot is None else "host"
        if kind and (kind != last or vpn == len(pages) - 1):
            again_s = costs.compute_s(computed - vpn * page_tokens)
            found.append(Restore(costs.load_s(host, deep) + again_s, cut=vpn))
        last = kind
        host += kind == "host"
        deep += kind == "file"
    return found


def best_split(
    pages: Sequence[Page], computed: int, page_tokens: int, costs: Costs
) -> Restore | None:
    """The head to compute so that it is done when the rest is loaded. None where a page of the file
    is missing: those rise before their process has any frame; and where what is before the head is
    being loaded for somebody else: computing reads it."""
    first = next((vpn for vpn, page in enumerate(pages) if page.pfn is None), None)
    last = computed // page_tokens
    if first is None or any(page.deep for page in pages):
        return None
    if any(page.loading is not None for page in pages[:first]):
        return None
    if last * page_tokens == computed:
        last -= 1  # a page at least is loaded
    best: Restore | None = None
    missing = sum(page.pfn is None for page in pages[first:])
    for vpn in range(first + 1, last + 1):
        missing -= pages[vpn - 1].pfn is None
        head_s = costs.compute_s((vpn - first) * page_tokens)
        seconds = max(head_s, costs.load_s(missing, 0))
        if missing and (best is None or seconds < best.seconds):
            best = Restore(seconds, head=(first, vpn))
        if best is not None and head_s > best.seconds:
            break  # nor will a longer one be quicker
    return best
