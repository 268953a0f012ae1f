"""One lower tier: page-sized places, each with a generation that names its content.

    FREE --> take() --> WRITING --> publish() --> VALID --> free() --> FREE
                           `------- free() (the copy failed) -------^
                                                    `--- free() while a copy reads it
                                                         --> DOOMED --> unpin() --> FREE

A reader must present the generation; the device refuses a place whose generation or checksum does
not match, so a reused, torn or corrupt place is never served. Host slots and blocks of the swap
file are two such tiers.
"""

import enum
from dataclasses import dataclass

from tokenix.mm.page import Page


class PlaceState(enum.IntEnum):
    FREE = 0
    WRITING = 1
    VALID = 2
    DOOMED = 3
    """Given up, but a copy still reads it."""


_FREE, _WRITING, _VALID, _DOOMED = PlaceState  # looked up often, and an enum's names are slow


@dataclass(frozen=True, slots=True)
class TierStats:
    """Pages since boot: written == returned + dropped + resident."""

    written: int
    returned: int
    """Read back at least once before they were given up."""
    dropped: int
    """Given up unread: their process ended, or they were not worth their place."""
    resident: int


class Tier:
    """All places of one tier. free + writing + valid + doomed == total."""

    def __init__(self, total: int) -> None:
        assert total >= 0
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._state = [_FREE] * total
        self._generation = [0] * total
        self._owner: list[Page | None] = [None] * total
        self._pins = [0] * total
        self._was_read = bytearray(total)
        self._counts = [total, 0, 0, 0]
        self._written = self._returned = self._dropped = 0

    # ---- look only ----

    def count(self, state: PlaceState) -> int:
        return self._counts[state]

    @property
    def places(self) -> range:
        return range(self.total)

    @property
    def free_places(self) -> int:
        return self._counts[_FREE]

    def state(self, place: int) -> PlaceState:
        return self._state[place]

    def generation(self, place: int) -> int:
        """What names the present content of the place."""
        return self._generation[place]

    def owner(self, place: int) -> Page | None:
        """The page whose copy is there, or is being written there."""
        return self._owner[place]

    def pins(self, place: int) -> int:
        return self._pins[place]

    def peek_valid(self) -> list[Page]:
        """The pages that are in the tier, by place."""
        owners = zip(self._owner, self._state, strict=True)
        return [page for page, state in owners if page is not None and state is _VALID]

    def statistics(self) -> TierStats:
        resident = self._counts[_VALID]
        return TierStats(self._written, self._returned, self._dropped, resident)

    # ---- changes ----

    def take(self, page: Page) -> tuple[int, int] | None:
        """A place to write `page` to, with its new generation; None if the tier is full."""
        if not self._free:
            return None
        place = self._free.pop()
        self._generation[place] += 1
        self._owner[place] = page
        self._was_read[place] = 0
        self._move(place, _FREE, _WRITING)
        return place, self._generation[place]

    def publish(self, place: int) -> None:
        """The copy into the place has finished and was verified."""
        self._move(place, _WRITING, _VALID)
        self._written += 1

    def note_read(self, place: int) -> None:
        """Its content was read back and verified."""
        self._was_read[place] = 1

    def free(self, place: int) -> None:
        """Give a place up, whether its copy was published or failed. It is free at once, or when
        the last copy that reads it has passed its fence."""
        state = self._state[place]
        assert state is _WRITING or state is _VALID, "a place is freed once"
        if state is _VALID:
            self._returned += self._was_read[place]
            self._dropped += 1 - self._was_read[place]
        self._owner[place] = None
        self._move(place, state, _DOOMED if self._pins[place] else _FREE)

    def pin(self, place: int) -> None:
        """A copy is going to read the place: it is not reused until `unpin`."""
        assert self._state[place] is _VALID, "only what is published is read"
        self._pins[place] += 1

    def unpin(self, place: int) -> None:
        assert self._pins[place] > 0, "unpin follows pin"
        self._pins[place] -= 1
        if self._pins[place] == 0 and self._state[place] is _DOOMED:
            self._move(place, _DOOMED, _FREE)

    def _move(self, place: int, old: PlaceState, new: PlaceState) -> None:
        assert self._state[place] is old, f"place {place} is {self._state[place].name}"
        self._state[place] = new
        self._counts[old] -= 1
        self._counts[new] += 1
        if new is _FREE:
            self._free.append(place)
