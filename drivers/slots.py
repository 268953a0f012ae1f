"""Host slots: the swap tier in ordinary memory, for any driver. One slot holds one page.

A slot is valid only while its generation is set: a writer clears it first (`invalidate`), then
writes the data, and sets checksum and generation last (`publish_filled`). A reader that is given
the right generation and finds the right checksum has the bytes that were published; anything else
is refused, never served.

Slots start at multiples of 4096 bytes and are padded to them, so that a disk can read and write
them in place.
"""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenix.drivers.swapfile import ALIGNMENT, disk_memory

_INVALID = -1

Words = npt.NDArray[np.uint64]


class HostSlots:
    """`slots` pages of `page_bytes`. The swap-out thread publishes, the swap-in thread reads; the
    fetch and image threads fill and publish, the store and image threads read.

    checksum: of a page as uint64 words; several threads call it at once. memory: what they lie in,
    where others have it too."""

    def __init__(
        self,
        slots: int,
        page_bytes: int,
        checksum: Callable[[Words], Any],
        memory: mmap.mmap | None = None,
    ) -> None:
        assert page_bytes % 8 == 0, page_bytes
        self.slots = slots
        self.page_bytes = page_bytes
        self._sum = checksum
        padded = -(-page_bytes // ALIGNMENT) * ALIGNMENT
        self.memory = disk_memory(slots * padded) if memory is None else memory
        """All slots, one after another."""
        words = slots * padded // 8
        self._padded: Words = np.frombuffer(self.memory, np.uint64, words).reshape(
            slots, padded // 8
        )
        self._data = self._padded[:, : page_bytes // 8]
        self._generation = np.full(slots, _INVALID, np.int64)
        self._checksum = np.zeros(slots, np.uint64)

    @property
    def padded_bytes(self) -> int:
        """From one slot to the next."""
        return int(self._padded.shape[1]) * 8

    def peek(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of a slot, uint8 [page_bytes], a view."""
        self.check(slot)
        page: npt.NDArray[np.uint8] = self._data[slot].view(np.uint8)
        return page

    def peek_padded(self, slot: int) -> memoryview:
        """The bytes of a slot up to the next one."""
        self.check(slot)
        return memoryview(self._padded[slot].view(np.uint8))

    def peek_checksum(self, slot: int, generation: int) -> int | str:
        """What a slot was published with, or why it does not serve `generation`."""
        self.check(slot)
        wrong = self.stale(slot, generation)
        return int(self._checksum[slot]) if wrong is None else wrong

    def checksum_of(self, data: memoryview) -> int:
        """Of a page that may be padded."""
        return int(self._sum(np.frombuffer(data, np.uint64, self.page_bytes // 8)))

    def invalidate(self, slot: int) -> None:
        self.check(slot)
        self._generation[slot] = _INVALID

    def publish_filled(self, slot: int, generation: int, checksum: int) -> None:
        """After `invalidate`, and after somebody has written bytes of that checksum to the slot."""
        assert self._generation[slot] == _INVALID, "a slot is invalid while it is written"
        assert generation >= 0, generation
        self._checksum[slot] = checksum
        self._generation[slot] = generation

    def stale(self, slot: int, generation: int) -> str | None:
        """Why a slot does not serve `generation`, if it does not."""
        found = int(self._generation[slot])
        if found == generation:
            return None
        held = "nothing" if found == _INVALID else f"generation {found}"
        return f"slot {slot} holds {held}, not generation {generation}"

    def check(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} outside the {self.slots} host slots")
