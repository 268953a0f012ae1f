"""Prefix index: full pages found by content, so that equal prompts share one copy of their KV.

A full page is named by a chain hash: its name covers the model, the tenant's namespace and every
token from the start of the sequence, so equal names mean equal KV.

    root = H(namespace)    key(page 0) = H(root, tokens 0..15)    key(page 1) = H(key(page 0), ..)

Pages stay findable after the last process that mapped them has exited, until their frame is
reclaimed (`mm/reclaim.py`). Never across namespaces: a hit is visible in time, and would tell one
tenant what another has asked.
"""

import hashlib
from array import array
from collections.abc import Sequence

from tokenix.mm.frames import FrameTable
from tokenix.mm.page import Page

KEY_BYTES = 16


def root_key(namespace: str) -> bytes:
    """The parent of the first page of every sequence in `namespace`."""
    return hashlib.blake2b(namespace.encode(), digest_size=KEY_BYTES).digest()


def chain_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full page that holds `tokens` after the sequence named `parent`."""
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=KEY_BYTES, key=parent).digest()


class PrefixIndex:
    """Names of full pages, and the unmapped ones in the order of their last use."""

    def __init__(self, frames: FrameTable, enabled: bool = True) -> None:
        self._frames = frames
        self._enabled = enabled
        self._pages: dict[bytes, Page] = {}
        self._idle: dict[bytes, Page] = {}

    def lookup(self, keys: Sequence[bytes]) -> list[Page]:
        """The longest run of resident pages that match `keys` from the start. Changes nothing."""
        found: list[Page] = []
        for key in keys:
            page = self._pages.get(key)
            if page is None or page.pfn is None or page.loading is not None:
                break
            found.append(page)
        return found

    def insert(self, page: Page, key: bytes) -> None:
        """Make a full page findable. If its content already has a name-holder, it stays private."""
        assert page.key is None, "a page is named once"
        if self._enabled and key not in self._pages:
            page.key = key
            self._pages[key] = page

    def forget(self, page: Page) -> None:
        """The page cannot be found any more (reclaimed or lost). Idempotent."""
        if page.key is not None:
            del self._pages[page.key]
            self._idle.pop(page.key, None)
            page.key = None

    def mark_idle(self, page: Page) -> None:
        """Nobody maps the page now; it is the most recently used of the idle ones."""
        assert page.key is not None and page.mapped == 0, "only unmapped findable pages are idle"
        self._idle[page.key] = page

    def mark_used(self, page: Page) -> None:
        """Somebody maps the page again."""
        if page.key is not None:
            self._idle.pop(page.key, None)

    def peek_idle(self) -> Page | None:
        """The idle page that was used longest ago."""
        return next(iter(self._idle.values()), None)

    def count_idle(self) -> int:
        return len(self._idle)

    def count(self) -> int:
        return len(self._pages)

    def pages(self) -> list[Page]:
        return list(self._pages.values())
