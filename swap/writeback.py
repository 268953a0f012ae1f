"""Write-behind: full pages are copied to the host while the link is idle, so that pausing is free.

A full page never changes, so its copy stays valid. What a pause has to move then is only the last,
partly written page.
"""

from collections.abc import Iterable

from tokenix.mm.ids import Pid
from tokenix.mm.page import Page
from tokenix.mm.space import AddressSpace

BATCH_PAGES = 16
"""Pages of one write-behind copy; also the most that are in flight."""

HOST_SHARE = 0.5
"""Write-behind fills at most this share of the host tier; the rest is kept for pauses."""


def choose_pages(
    stranded: Iterable[Page], likely_victims_first: Iterable[AddressSpace], limit: int
) -> list[tuple[Pid | None, Page]]:
    """Up to `limit` pages to clean: those that block a frame for nobody, then likely victims'.

    Only full, resident pages that have no host copy and none under way, each with the process it
    was found through.
    """
    chosen: dict[Page, Pid | None] = {}
    for page in stranded:
        if len(chosen) < limit and page.leaving is None and page.loading is None:
            chosen[page] = None
    for space in likely_victims_first:
        if len(chosen) >= limit:
            break
        for page in space.pages[: space.computed // space.page_tokens]:
            if len(chosen) >= limit:
                break
            idle_link = page.leaving is None and page.loading is None
            if idle_link and page.pfn is not None and page.slot is None:
                chosen.setdefault(page, space.pid)
    return [(pid, page) for page, pid in chosen.items()]
