"""Copies in flight between the device and the host tier.

One record per submitted copy, from its submission to its fence. Completions come in any order, and
are found by ticket, never by walking a queue.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tokenix.mm.ids import Pfn, Slot, Ticket
from tokenix.mm.page import Page


class Direction(enum.Enum):
    OUT = "out"
    IN = "in"


class Item(NamedTuple):
    """One page of a copy. `pfn` and `slot` are those of the copy, whatever the page has now."""

    page: Page
    pfn: Pfn
    slot: Slot
    generation: int


@dataclass(slots=True)
class Transfer:
    ticket: Ticket
    direction: Direction
    items: tuple[Item, ...]
    submitted_s: float
    deadline_s: float
    ahead_pages: int = 0
    """Pages that were in flight in the same direction when it was submitted."""
    abandoned: bool = False
    """Its deadline passed: nobody waits for it any more, only its fence is outstanding."""


class TransferTable:
    """All transfers in flight, by ticket, with the totals that pacing needs."""

    def __init__(self) -> None:
        self._by_ticket: dict[Ticket, Transfer] = {}
        self._pages = {Direction.OUT: 0, Direction.IN: 0}

    def add(self, transfer: Transfer) -> None:
        assert transfer.ticket not in self._by_ticket, "a ticket is used once"
        self._by_ticket[transfer.ticket] = transfer
        self._pages[transfer.direction] += len(transfer.items)

    def take(self, ticket: Ticket) -> Transfer | None:
        """Remove and return the transfer of `ticket`; None if it is not one of ours."""
        transfer = self._by_ticket.pop(ticket, None)
        if transfer is not None and not transfer.abandoned:
            self._pages[transfer.direction] -= len(transfer.items)
        return transfer

    def take_overdue(self, now_s: float) -> list[Transfer]:
        """Mark and return the transfers whose deadline has passed; their fences stay awaited."""
        late = [
            transfer
            for transfer in self._by_ticket.values()
            if transfer.deadline_s <= now_s and not transfer.abandoned
        ]
        for transfer in late:
            transfer.abandoned = True
            self._pages[transfer.direction] -= len(transfer.items)
        return late

    def count_pages(self, direction: Direction) -> int:
        """Pages in flight that somebody may wait for: what was given up holds up nobody."""
        return self._pages[direction]

    def peek_all(self) -> Iterable[Transfer]:
        return self._by_ticket.values()

    def next_deadline_s(self) -> float | None:
        return min(
            (t.deadline_s for t in self._by_ticket.values() if not t.abandoned), default=None
        )
