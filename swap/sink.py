"""What sinks from the host tier to the swap file, so that there is always room for a pause.

    between two watermarks of slots that are free, or spare because the page is in the file already:
    1. pages of processes that wait for something other than their turn (input, a signal)
    2. pages that nobody maps, the least worth keeping first
    3. pages of paused streams whose readers have long to read, the longest first

A page that has sunk keeps its slot until the slot is wanted, so nothing is lost if it is needed
sooner than was thought.
"""

from collections.abc import Iterable
from itertools import chain

from tokenix.mm.page import Page

BATCH_PAGES = 64
"""Pages of one store; also the most that are in flight."""

STORE_TRIES = 3
"""So often a page is stored in vain. It may be the slot that is bad, and not the disk."""


def can_sink(page: Page) -> bool:
    """Whether the page is in the host tier, not in the file, and no copy reads it or brings it; nor
    has it been tried too often."""
    still = page.loading is None and page.storing is None and page.failed_stores < STORE_TRIES
    wanted = page.mapped > 0 or page.key is not None
    return still and page.slot is not None and page.block is None and page.active == 0 and wanted


def choose_sinking(
    waiting: Iterable[Page], idle: Iterable[Page], patient: Iterable[Page], limit: int
) -> list[Page]:
    """Up to `limit` pages to store, in the order above. Each iterable is in its own order."""
    chosen: dict[Page, None] = {}
    for page in chain(waiting, idle, patient):
        if len(chosen) >= limit:
            break
        if can_sink(page):
            chosen[page] = None
    return list(chosen)
