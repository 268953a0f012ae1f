"""Host slots of the CPU device: pages between them and the arena, copied and summed in one pass."""

from collections.abc import Sequence

import numpy as np

from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.checksum import checksum, copy_checksum, copy_checksums
from tokenix.drivers.ops import PageIn
from tokenix.drivers.slots import HostSlots, Words


class ArenaSlots(HostSlots):
    """`slots` pages as the arena lays them out."""

    def __init__(self, slots: int, frame_bytes: int) -> None:
        super().__init__(slots, frame_bytes, checksum)

    def peek_first(self, slots: int) -> Words:
        """The memory of the first slots, those that are used first; [slots or all, words]."""
        return self._padded[:slots]

    def publish(self, arena: FrameArena, pfn: int, slot: int, generation: int) -> None:
        """Copy a frame to a slot. IndexError if there is no such frame or slot."""
        arena.check(pfn)
        self.invalidate(slot)
        found = copy_checksum(arena.data[pfn].view(np.uint64), self._data[slot])
        self.publish_filled(slot, generation, int(found))

    def load(self, pages: Sequence[PageIn], arena: FrameArena) -> list[str | None]:
        """Copy slots to frames. What was wrong with each, if anything: the frame then holds junk.

        One call for all: between two the thread would have to wait for the interpreter.
        """
        wrong = [self._unfit(page, arena) for page in pages]
        fit = [i for i, why in enumerate(wrong) if why is None]
        rows = np.array([pages[i].slot for i in fit], np.int64)
        to_rows = np.array([pages[i].pfn for i in fit], np.int64)
        expected, found = self._checksum[rows], np.empty(len(fit), np.uint64)
        words = self._data.shape[1]
        copy_checksums(self._padded, rows, arena.data.view(np.uint64), to_rows, words, found)
        for i, right in zip(fit, found == expected, strict=True):
            slot = pages[i].slot
            if not right:
                wrong[i] = f"slot {slot} does not have the checksum it was published with"
            elif self._generation[slot] != pages[i].generation:
                wrong[i] = f"slot {slot} was written while it was read"
        return wrong

    def _unfit(self, page: PageIn, arena: FrameArena) -> str | None:
        try:
            arena.check(page.pfn)
            self.check(page.slot)
        except IndexError as error:
            return f"IndexError: {error}"
        return self.stale(page.slot, page.generation)
