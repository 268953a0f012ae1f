"""Write-behind: full pages are copied to the host while the link is idle, so that pausing is free.

A full page never changes, so its copy stays valid. What a pause has to move then is only the last,
partly written page.
"""

from collections import deque
from collections.abc import Iterable

from tokenix.mm.ids import Pid
from tokenix.mm.page import Page

BATCH_PAGES = 16
"""Pages of one write-behind copy; also the most that are in flight."""

HOST_SHARE = 0.5
"""Write-behind fills at most this share of the host tier; the rest is kept for pauses."""


def can_clean(page: Page) -> bool:
    """Whether the page is resident, has no copy below, none is under way, and it is wanted."""
    still = page.leaving is None and page.loading is None
    wanted = page.mapped > 0 or page.key is not None
    return still and page.pfn is not None and not page.clean and wanted


def choose_stranded(stranded: Iterable[Page], limit: int) -> list[Page]:
    """Up to `limit` of the pages that block a frame for nobody."""
    chosen: list[Page] = []
    for page in stranded:
        if len(chosen) >= limit:
            break
        if can_clean(page):
            chosen.append(page)
    return chosen


class DirtyQueue:
    """Full pages without a host copy, each once it has become full, in that order.

    The oldest come first: they belong to the streams that have run longest, which are the likely
    victims. A page is looked at again only when it is taken, so a step costs what has changed.
    """

    def __init__(self, capacity: int) -> None:
        self._pages: deque[tuple[Pid, Page]] = deque()
        self._capacity = capacity

    def push(self, pid: Pid, page: Page) -> None:
        """`page` of process `pid` has become full, or has lost its host copy."""
        self._pages.append((pid, page))
        if len(self._pages) > 2 * self._capacity:
            known = {page: pid for pid, page in self._pages if can_clean(page)}
            self._pages = deque((pid, page) for page, pid in known.items())

    def take(self, limit: int) -> list[tuple[Pid, Page]]:
        """Up to `limit` pages to clean now, with the process that filled each."""
        chosen: dict[Page, Pid] = {}
        while self._pages and len(chosen) < limit:
            pid, page = self._pages.popleft()
            if can_clean(page):
                chosen[page] = pid
        return [(pid, page) for page, pid in chosen.items()]

    def __len__(self) -> int:
        return len(self._pages)
