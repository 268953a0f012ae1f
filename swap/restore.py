"""How a paused process gets its KV back: load what is missing, compute it again, or some of each.

    pages    [ resident ][ host ][ file ][ host ][ file ]
                         ^ cut here: compute all the rest, or
                                 ^ here: load before, compute behind, or load everything

Computing needs all that is before it, so what is loaded is always a head, what is computed a tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenix.mm.page import Page


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


def choose_cut(pages: Sequence[Page], computed: int, page_tokens: int, costs: Costs) -> int | None:
    """The page from which on the process computes again what it had; None: it loads everything.

    `computed`: tokens whose KV the pages hold. A tie goes to loading, which leaves the device free.
    """
    best_s, best = float("inf"), None
    host = deep = 0
    last = ""
    for vpn, page in enumerate(pages):
        kind = "" if page.pfn is not None else "file" if page.slot is None else "host"
        if kind and kind != last:
            again_s = costs.compute_s(computed - vpn * page_tokens)
            total_s = costs.load_s(host, deep) + again_s
            if total_s < best_s:
                best_s, best = total_s, vpn
        last = kind
        host += kind == "host"
        deep += kind == "file"
    return best if best_s < costs.load_s(host, deep) else None
