"""A load by layers, between the thread that copies pages and the one that runs passes beside it.

    swap in   fence | layers 0-3 of all pages | event | layers 4-7 | event | ...    checksums | told
    compute            project 0 | wait | append and attend 0 .. 3 | project 4 | wait | ... tokens |
                                                                              told after the load

The host waits too, but only until a part has been queued: an event orders nothing before it is
recorded. Slots are verified while they are copied, so a pass may compute with pages that turn out
to be none: its tokens are told when that is known, and rows that have read such a page fail.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.intake import Batch
from tokenix.drivers.ops import CopyIn
from tokenix.drivers.tables import BlockTables

PARTS = 8
"""A pass waits so often: for an eighth of the load before it attends, and mostly not at all then.
More parts are more copies, of smaller pieces."""

PATIENCE_S = 2.0
"""A pass waits so long for a load that does not come; then it has failed."""


def parts_of(layers: int) -> list[range]:
    """At most PARTS groups of neighbouring layers, as even as can be."""
    count = min(PARTS, layers)
    bounds = [layers * i // count for i in range(count + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


class Arrival:
    """One load. `mark` and `end` are the swap-in thread's, `tell` of whoever completes commands,
    all others the compute thread's."""

    def __init__(self, driver: CudaDriver, command: CopyIn, layers: int) -> None:
        self.ticket = command.ticket
        self.parts = parts_of(layers)
        self._driver = driver
        self._pages = command.pages
        self._part_at = {part.start: number for number, part in enumerate(self.parts)}
        self._changed = threading.Condition()
        self._events: list[Any] = []
        self._over = False
        """Nothing of it is under way any more."""
        self._bad: frozenset[int] | None = None
        """Frames whose pages did not come; None: it was not told yet."""

    # ---- who copies ----

    def mark(self, event: Any) -> None:
        """The next part has been queued, with `event` behind it."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def end(self) -> None:
        """All its copies have run, or none will any more."""
        with self._changed:
            self._over = True
            events, self._events = self._events, []
            self._changed.notify_all()
        for event in events:
            self._driver.destroy_event(event)

    def tell(self, bad: Iterable[int]) -> None:
        """It has been told, with the places of the pages that failed. After `end`, if it began."""
        with self._changed:
            self._over = True
            self._bad = frozenset(self._pages[i].pfn for i in bad)
            self._changed.notify_all()

    # ---- who computes ----

    def hold(self, stream: Any, layer: int) -> None:
        """What `stream` gets from now on runs when pages have that layer. TimeoutError if nobody
        copies it."""
        part = self._part_at.get(layer)
        if part is not None:
            self._hold(stream, part)

    def hold_all(self, stream: Any) -> None:
        """Likewise, with all layers."""
        self._hold(stream, len(self.parts) - 1)

    def find_readers(
        self, batch: Batch, tables: BlockTables, page_tokens: int
    ) -> dict[int, frozenset[int]]:
        """Of the rows of a pass, by place, those that read its frames, and which."""
        mine = {page.pfn for page in self._pages}
        readers: dict[int, frozenset[int]] = {}
        for place, (row, fault) in enumerate(zip(batch.rows, batch.results, strict=True)):
            if fault is None:
                pages = -(-row.end // page_tokens)
                frames = mine.intersection(tables.pages[tables.row_of(row.pid), :pages].tolist())
                if frames:
                    readers[place] = frozenset(frames)
        return readers

    def find_spoiled(self, readers: Mapping[int, frozenset[int]]) -> Sequence[int]:
        """Wait until it was told; those of the readers who have read what did not come."""
        with self._changed:
            self._wait("verified")
            bad = self._bad or frozenset()
        return [place for place, frames in readers.items() if frames & bad]

    def _hold(self, stream: Any, part: int) -> None:
        with self._changed:
            self._wait("copied", part)
            if not self._over:
                self._driver.wait(stream, self._events[part])

    def _wait(self, what: str, part: int | None = None) -> None:
        def is_there() -> bool:
            if part is None:
                return self._bad is not None
            return self._over or len(self._events) > part

        if not self._changed.wait_for(is_there, PATIENCE_S):
            raise TimeoutError(f"pages beside the pass were not {what} within {PATIENCE_S:g} s")
