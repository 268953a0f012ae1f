"""Pages between frames and host slots, on the two copy engines.

    out   | copies of a group ... | event |             the GPU writes slots
                                  | checksums | publish       threads of the host, meanwhile the
          |                       | copies of the next group | event                 next group
    in    | checksums | copies | event, then the completion   only what was verified is copied;
                                                              those of later groups are made
                                                              meanwhile

    in, by layers   | copies of some layers of all pages | event | copies of the next | event | ...
                                         checksums meanwhile: what runs beside it (`arrival.py`)
                                         counts when all of them are right

Neighbouring pages are one copy. Each direction has a stream of its own, so both links are busy at
once. The host waits for an event before it reads what a copy wrote, and before it says that a copy
is done.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from tokenix.drivers.cuda.arena import FrameArena
from tokenix.drivers.cuda.arrival import Arrival
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.fence import Fence
from tokenix.drivers.cuda.hostmemory import pinned_address
from tokenix.drivers.ops import PageIn, PageOut
from tokenix.drivers.slots import HostSlots

GROUP_BYTES = 16 << 20
"""Bytes between two events: long enough for the link, short enough to overlap with checksums."""

CHECKERS = 16
"""Threads for checksums, each some 10 GB/s: more than a link of 55 both ways at once."""


class Run(NamedTuple):
    """Neighbouring frames and as many neighbouring slots."""

    pfn: int
    slot: int
    pages: int


def merge(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Runs of (frame, slot)s. In any order: a command names each frame or slot it writes once."""
    runs: list[Run] = []
    for pfn, slot in sorted(pairs):
        last = runs[-1] if runs else None
        if last is not None and (pfn, slot) == (last.pfn + last.pages, last.slot + last.pages):
            runs[-1] = last._replace(pages=last.pages + 1)
        else:
            runs.append(Run(pfn, slot, 1))
    return runs


class SwapLanes:
    """The way out, used by the swap-out thread, and the way in, by the swap-in thread."""

    def __init__(
        self,
        driver: CudaDriver,
        arena: FrameArena,
        slots: HostSlots,
        computed: Fence,
        offset_bytes: int = 0,
    ) -> None:
        """computed: behind all that was written to frames, and read from them. offset_bytes: where
        in a slot frames of this arena go, if not all of it is theirs."""
        self._driver = driver
        self._arena = arena
        self.slots = slots
        self._computed = computed
        self._group = max(1, GROUP_BYTES // arena.shape.stride_bytes)
        self._base = pinned_address(slots.memory) + offset_bytes
        self._out, self._in = driver.stream(), driver.stream()
        self._checkers = ThreadPoolExecutor(CHECKERS, "tokenix-checksum")

    def close(self) -> None:
        """Wait for what is under way."""
        self._checkers.shutdown(wait=True)
        for stream in (self._out, self._in):
            self._driver.destroy_stream(stream)

    # ---- out ----

    def publish(self, pages: Sequence[PageOut]) -> list[str | None]:
        """Copy frames to slots; what was wrong with each, if anything."""
        wrong: list[str | None] = [None] * len(pages)
        for i, page in enumerate(pages):
            try:
                self._arena.at(page.pfn)
                self.slots.invalidate(page.slot)
            except IndexError as error:
                wrong[i] = f"IndexError: {error}"
        good = [i for i, why in enumerate(wrong) if why is None]
        self._computed.hold(self._out)
        with self._all_done(self._out):
            events = [
                (group, self._copy_out([pages[i] for i in group])) for group in self._groups(good)
            ]
            for group, event in events:
                self._settle(event)
                sums = self._checksums(pages[i].slot for i in group)
                for i, checksum in zip(group, sums, strict=True):
                    self.slots.publish_filled(pages[i].slot, pages[i].generation, checksum)
        return wrong

    def _copy_out(self, pages: list[PageOut]) -> Any:
        """The event behind the copies."""
        size = self._arena.shape.stride_bytes
        for run in self._runs((page.pfn, page.slot) for page in pages):
            source, to = self._arena.at(run.pfn), self._at(run.slot)
            self._driver.copy_out(to, source, run.pages * size, self._out)
        return self._mark(self._out)

    # ---- in ----

    def load(self, pages: Sequence[PageIn]) -> list[str | None]:
        """Copy slots to frames; what was wrong with each, if anything: its frame is untouched, or
        holds junk."""
        wrong = [self._outside(page) for page in pages]
        good = [i for i, why in enumerate(wrong) if why is None]
        self._computed.hold(self._in)
        with self._all_done(self._in):
            sums = self._checksums(pages[i].slot for i in good)
            for group in self._groups(good):
                for i in group:
                    wrong[i] = self._differs(pages[i], next(sums))
                self._copy_in([pages[i] for i in group if wrong[i] is None])
        self._find_written(pages, wrong)
        return wrong

    def _copy_in(self, pages: list[PageIn]) -> None:
        size = self._arena.shape.stride_bytes
        for run in self._runs((page.pfn, page.slot) for page in pages):
            to, source = self._arena.at(run.pfn), self._at(run.slot)
            self._driver.copy_in(to, source, run.pages * size, self._in)

    def load_by_layers(self, pages: Sequence[PageIn], arrival: Arrival) -> list[str | None]:
        """The same, one part of the layers of all pages after the other. A frame may hold a page
        that turns out to be wrong."""
        wrong = [self._outside(p) or self.slots.stale(p.slot, p.generation) for p in pages]
        good = [i for i, why in enumerate(wrong) if why is None]
        runs = self._runs((pages[i].pfn, pages[i].slot) for i in good)
        self._computed.hold(self._in)
        try:
            with self._all_done(self._in):
                for part in arrival.parts:
                    self._copy_part(runs, part)
                    arrival.mark(self._mark(self._in))
                sums = self._checksums(pages[i].slot for i in good)
                for i, checksum in zip(good, sums, strict=True):
                    wrong[i] = self._differs(pages[i], checksum)
        finally:
            arrival.end()
        self._find_written(pages, wrong)
        return wrong

    def _copy_part(self, runs: Sequence[Run], layers: range) -> None:
        shape = self._arena.shape
        first, width = (4 * shape.layer_words * count for count in (layers.start, len(layers)))
        for run in runs:
            to, source = self._arena.at(run.pfn) + first, self._at(run.slot) + first
            self._driver.copy_in_rows(to, source, width, run.pages, shape.stride_bytes, self._in)

    def _find_written(self, pages: Sequence[PageIn], wrong: list[str | None]) -> None:
        """Of those that were fine, the slots that were written meanwhile."""
        for i, page in enumerate(pages):
            if wrong[i] is None and self.slots.stale(page.slot, page.generation):
                wrong[i] = f"slot {page.slot} was written while it was read"

    def _outside(self, page: PageIn) -> str | None:
        try:
            self._arena.at(page.pfn)
            self.slots.check(page.slot)
        except IndexError as error:
            return f"IndexError: {error}"
        return None

    def _differs(self, page: PageIn, checksum: int) -> str | None:
        """Why a slot of that checksum does not serve a page."""
        expected = self.slots.peek_checksum(page.slot, page.generation)
        if isinstance(expected, str):
            return expected
        if expected != checksum:
            return f"slot {page.slot} does not have the checksum it was published with"
        return None

    # ---- both ----

    def _groups(self, places: list[int]) -> Iterator[list[int]]:
        for first in range(0, len(places), self._group):
            yield places[first : first + self._group]

    def _checksums(self, slots: Iterable[int]) -> Iterator[int]:
        """Of what slots hold now, in order: threads are ahead of who takes them."""
        views = [self.slots.peek_padded(slot) for slot in slots]
        if len(views) == 1:
            return iter([self.slots.checksum_of(views[0])])
        return self._checkers.map(self.slots.checksum_of, views)

    def _runs(self, pairs: Iterable[tuple[int, int]]) -> list[Run]:
        """What goes in one copy. Parts of slots are no neighbours."""
        if self.slots.padded_bytes == self._arena.shape.stride_bytes:
            return merge(pairs)
        return [Run(pfn, slot, 1) for pfn, slot in pairs]

    def _at(self, slot: int) -> int:
        return self._base + slot * self.slots.padded_bytes

    def _mark(self, stream: Any) -> Any:
        event = self._driver.event()
        self._driver.record(event, stream)
        return event

    def _settle(self, event: Any) -> None:
        """Wait for it; nobody else does."""
        self._driver.sync_event(event)
        self._driver.destroy_event(event)

    @contextmanager
    def _all_done(self, stream: Any) -> Iterator[None]:
        """Whatever happens inside, no copy is under way afterwards."""
        try:
            yield
        finally:
            self._driver.sync(stream)
