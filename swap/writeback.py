"""Write-behind: full pages are copied to the host while the link is idle, so that pausing is free.

A full page never changes, so its copy stays valid. What a pause has to move then is only the last,
partly written page.
"""

from collections.abc import Iterable

from tokenix.mm.page import Page
from tokenix.mm.space import AddressSpace

BATCH_PAGES = 16
"""Pages of one write-behind copy; also the most that are in flight."""

HOST_SHARE = 0.5
"""Write-behind fills at most this share of the host tier; the rest is kept for pauses."""


def choose_pages(
    stranded: Iterable[Page], likely_victims_first: Iterable[AddressSpace], limit: int
) -> list[Page]:
    """Up to `limit` pages to clean: those that block a frame for nobody, then likely victims'.

    Only full, resident pages without a host copy; a page being copied is the caller's to exclude
    (its frame is pinned, see `kernel.memory`).
    """
    chosen: list[Page] = []
    for page in stranded:
        if len(chosen) >= limit:
            return chosen
        chosen.append(page)
    for space in likely_victims_first:
        if len(chosen) >= limit:
            break
        for page in space.pages[: space.computed // space.page_tokens]:
            if len(chosen) >= limit:
                break
            if page.pfn is not None and page.slot is None and not page.loading:
                chosen.append(page)
    return chosen
