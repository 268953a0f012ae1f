"""Host slots that can be given up without any process losing a page, by what giving them up costs.

    DOUBLE   the page is in the swap file too: costs a fetch, if it is asked for
    CACHED   nobody maps it: its content might have been asked for again
    DONOR    a running process keeps it resident anyway: costs a copy out, if that is paused

A slot that a copy is reading or writing is not spare.
"""

import enum
from collections.abc import Iterable

from tokenix.mm.ids import Slot
from tokenix.mm.page import Page


class Spare(enum.Enum):
    DOUBLE = "double"
    CACHED = "cached"
    DONOR = "donor"


def spare_kind(page: Page) -> Spare | None:
    """Why the page's slot is spare; None: it is not."""
    if page.slot is None or page.loading is not None or page.storing is not None:
        return None
    if page.active > 0:
        return Spare.DONOR if page.pfn is not None else None
    if page.block is not None and page.rising is None:
        return Spare.DOUBLE
    return Spare.CACHED if page.mapped == 0 else None


class SpareSlots:
    """All spare slots, those that became so first in front."""

    def __init__(self) -> None:
        self._slots: dict[Spare, dict[Slot, Page]] = {kind: {} for kind in Spare}
        self._kind: dict[Slot, Spare] = {}

    def __len__(self) -> int:
        return len(self._kind)

    def count(self, kind: Spare) -> int:
        return len(self._slots[kind])

    def peek(self, kind: Spare) -> Page | None:
        """The page whose slot became spare for that reason first."""
        return next(iter(self._slots[kind].values()), None)

    def pages(self, kind: Spare) -> Iterable[Page]:
        return self._slots[kind].values()

    def note(self, page: Page) -> None:
        """The page has changed."""
        slot = page.slot
        if slot is None:
            return
        new, old = spare_kind(page), self._kind.get(slot)
        if new is old:
            return
        self.drop(slot)
        if new is not None:
            self._kind[slot] = new
            self._slots[new][slot] = page

    def drop(self, slot: Slot) -> None:
        """The slot is given up."""
        kind = self._kind.pop(slot, None)
        if kind is not None:
            del self._slots[kind][slot]
