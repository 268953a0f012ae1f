"""Host slots: the swap tier in ordinary memory. One slot holds one page, as the arena lays it out.

A slot is valid only while its generation is set: `publish` clears it first, then writes the data
and the checksum, and sets it last. A reader that is given the right generation and finds the right
checksum has the bytes that were published; anything else is refused, never served.

Slots start at multiples of 4096 bytes and are padded to them, so that a disk can read and write
them in place.
"""

from collections.abc import Sequence

import numpy as np

from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.checksum import copy_checksum, copy_checksums
from tokenix.drivers.cpu.jit import Array
from tokenix.drivers.ops import PageIn
from tokenix.drivers.swapfile import ALIGNMENT, disk_memory

_INVALID = -1


class HostSlots:
    """`slots` pages of `frame_bytes`. The swap-out thread publishes, the swap-in thread loads; the
    fetch thread fills and publishes, the store thread reads."""

    def __init__(self, slots: int, frame_bytes: int) -> None:
        assert frame_bytes % 8 == 0, frame_bytes
        self.slots = slots
        padded = -(-frame_bytes // ALIGNMENT) * ALIGNMENT
        memory = disk_memory(slots * padded)
        words = slots * padded // 8
        self._padded = np.frombuffer(memory, np.uint64, words).reshape(slots, padded // 8)
        self._data = self._padded[:, : frame_bytes // 8]
        self._generation = np.full(slots, _INVALID, np.int64)
        self._checksum = np.zeros(slots, np.uint64)

    def peek(self, slot: int) -> Array:
        """The bytes of a slot, uint8 [frame_bytes], a view."""
        self._check(slot)
        page: Array = self._data[slot].view(np.uint8)
        return page

    def peek_padded(self, slot: int) -> memoryview:
        """The bytes of a slot up to the next one."""
        self._check(slot)
        return memoryview(self._padded[slot].view(np.uint8))

    def peek_checksum(self, slot: int, generation: int) -> int | str:
        """What a slot was published with, or why it does not serve `generation`."""
        self._check(slot)
        wrong = self._stale(slot, generation)
        return int(self._checksum[slot]) if wrong is None else wrong

    def publish(self, arena: FrameArena, pfn: int, slot: int, generation: int) -> None:
        """Copy a frame to a slot. IndexError if there is no such frame or slot."""
        arena.check(pfn)
        self._check(slot)
        assert generation >= 0, generation
        self._generation[slot] = _INVALID
        checksum = copy_checksum(arena.data[pfn].view(np.uint64), self._data[slot])
        self._checksum[slot] = checksum
        self._generation[slot] = generation

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
            self._check(page.slot)
        except IndexError as error:
            return f"IndexError: {error}"
        return self._stale(page.slot, page.generation)

    def invalidate(self, slot: int) -> None:
        self._check(slot)
        self._generation[slot] = _INVALID

    def publish_filled(self, slot: int, generation: int, checksum: int) -> None:
        """After `invalidate`, and after somebody has written bytes of that checksum to the slot."""
        assert self._generation[slot] == _INVALID, "a slot is invalid while it is written"
        assert generation >= 0, generation
        self._checksum[slot] = checksum
        self._generation[slot] = generation

    def _stale(self, slot: int, generation: int) -> str | None:
        found = int(self._generation[slot])
        if found == generation:
            return None
        held = "nothing" if found == _INVALID else f"generation {found}"
        return f"slot {slot} holds {held}, not generation {generation}"

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} outside the {self.slots} host slots")
