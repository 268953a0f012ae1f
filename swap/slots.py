"""Host slots: page-sized places in host memory, each with a generation that names its content.

    FREE -> take() -> WRITING -> publish() -> VALID -> free() -> FREE
                          `------ free() (the copy failed) ------^

A reader must present the generation; the device refuses a slot whose generation or checksum does
not match, so a reused, torn or corrupt slot is never served.
"""

import enum

from tokenix.mm.ids import Slot


class SlotState(enum.IntEnum):
    FREE = 0
    WRITING = 1
    VALID = 2


_FREE, _WRITING, _VALID = SlotState  # looked up often, and an enum's names are slow


class SlotTable:
    """All slots of the host tier. Counts: free + writing + valid == total."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: list[Slot] = [Slot(i) for i in range(total - 1, -1, -1)]
        self._state = [_FREE] * total
        self._generation = [0] * total
        self._counts = [total, 0, 0]

    def count(self, state: SlotState) -> int:
        return self._counts[state]

    def state(self, slot: Slot) -> SlotState:
        return self._state[slot]

    def take(self) -> tuple[Slot, int] | None:
        """A slot to write, with its new generation; None if the tier is full."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._generation[slot] += 1
        self._move(slot, _FREE, _WRITING)
        return slot, self._generation[slot]

    def publish(self, slot: Slot) -> None:
        """The copy into the slot has finished and was verified."""
        self._move(slot, _WRITING, _VALID)

    def free(self, slot: Slot) -> None:
        """Give a slot back, whether its copy was published or failed."""
        assert self._state[slot] is not _FREE, "a slot is freed once"
        self._move(slot, self._state[slot], _FREE)
        self._free.append(slot)

    def _move(self, slot: Slot, old: SlotState, new: SlotState) -> None:
        assert self._state[slot] is old, f"slot {slot} is {self._state[slot].name}"
        self._state[slot] = new
        self._counts[old] -= 1
        self._counts[new] += 1
