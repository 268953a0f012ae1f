"""Host slots: the swap tier in ordinary memory. One slot holds one page, as the arena lays it out.

A slot is valid only while its generation is set: `publish` clears it first, then writes the data
and the checksum, and sets it last. A reader that is given the right generation and finds the right
checksum has the bytes that were published; anything else is refused, never served.
"""

import numpy as np

from tokenix.drivers.cpu.arena import FrameArena, aligned_empty
from tokenix.drivers.cpu.checksum import copy_checksum
from tokenix.drivers.cpu.jit import Array

_INVALID = -1


class HostSlots:
    """`slots` pages of `frame_bytes`. The swap-out thread publishes, the swap-in thread loads."""

    def __init__(self, slots: int, frame_bytes: int) -> None:
        assert frame_bytes % 8 == 0, frame_bytes
        self.slots = slots
        self._data = aligned_empty((slots, frame_bytes // 8), np.dtype(np.uint64))
        self._generation = np.full(slots, _INVALID, np.int64)
        self._checksum = np.zeros(slots, np.uint64)

    def peek(self, slot: int) -> Array:
        """The bytes of a slot, uint8 [frame_bytes], a view."""
        self._check(slot)
        page: Array = self._data[slot].view(np.uint8)
        return page

    def publish(self, arena: FrameArena, pfn: int, slot: int, generation: int) -> None:
        """Copy a frame to a slot. IndexError if there is no such frame or slot."""
        arena.check(pfn)
        self._check(slot)
        assert generation >= 0, generation
        self._generation[slot] = _INVALID
        checksum = copy_checksum(arena.data[pfn].view(np.uint64), self._data[slot])
        self._checksum[slot] = checksum
        self._generation[slot] = generation

    def load(self, slot: int, generation: int, arena: FrameArena, pfn: int) -> str | None:
        """Copy a slot to a frame. What was wrong, if anything: the frame then holds junk."""
        arena.check(pfn)
        self._check(slot)
        before = int(self._generation[slot])
        if before != generation:
            held = "nothing" if before == _INVALID else f"generation {before}"
            return f"slot {slot} holds {held}, not generation {generation}"
        expected = self._checksum[slot]
        found = copy_checksum(self._data[slot], arena.data[pfn].view(np.uint64))
        if found != expected:
            return f"slot {slot} does not have the checksum it was published with"
        if self._generation[slot] != generation:
            return f"slot {slot} was written while it was read"
        return None

    def invalidate(self, slot: int) -> None:
        self._check(slot)
        self._generation[slot] = _INVALID

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} outside the {self.slots} host slots")
