"""Copies in flight between neighbouring tiers.

    frames  --OUT-->  host slots  --STORE-->  blocks of the swap file
            <--IN---              <--FETCH--

One record per submitted copy, from its submission to its fence. Completions come in any order, and
are found by ticket, never by walking a queue.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tokenix.mm.ids import Block, Pfn, Slot, Ticket
from tokenix.mm.page import Page


class Lane(enum.StrEnum):
    OUT = "out"
    IN = "in"
    STORE = "store"
    FETCH = "fetch"


class Item(NamedTuple):
    """One page of a copy, with the places of the copy, whatever the page has now. On the lanes of
    the link `block` is -1, on those of the disk `pfn`."""

    page: Page
    slot: Slot
    pfn: Pfn = Pfn(-1)
    block: Block = Block(-1)


@dataclass(slots=True)
class Transfer:
    ticket: Ticket
    lane: Lane
    items: tuple[Item, ...]
    submitted_s: float
    deadline_s: float
    ahead_pages: int = 0
    """Pages that were in flight on the same lane when it was submitted."""
    abandoned: bool = False
    """Its deadline passed: nobody waits for it any more, only its fence is outstanding."""


class TransferTable:
    """All transfers in flight, by ticket, with the totals that pacing needs."""

    def __init__(self) -> None:
        self._by_ticket: dict[Ticket, Transfer] = {}
        self._pages = dict.fromkeys(Lane, 0)

    def add(self, transfer: Transfer) -> None:
        assert transfer.ticket not in self._by_ticket, "a ticket is used once"
        self._by_ticket[transfer.ticket] = transfer
        self._pages[transfer.lane] += len(transfer.items)

    def take(self, ticket: Ticket) -> Transfer | None:
        """Remove and return the transfer of `ticket`; None if it is not one of ours."""
        transfer = self._by_ticket.pop(ticket, None)
        if transfer is not None and not transfer.abandoned:
            self._pages[transfer.lane] -= len(transfer.items)
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
            self._pages[transfer.lane] -= len(transfer.items)
        return late

    def count_pages(self, lane: Lane) -> int:
        """Pages in flight that somebody may wait for: what was given up holds up nobody."""
        return self._pages[lane]

    def peek_all(self) -> Iterable[Transfer]:
        return self._by_ticket.values()

    def peek_on(self, *lanes: Lane) -> list[Transfer]:
        """Those on some lanes, given up or not."""
        return [transfer for transfer in self._by_ticket.values() if transfer.lane in lanes]

    def next_deadline_s(self) -> float | None:
        return min(
            (t.deadline_s for t in self._by_ticket.values() if not t.abandoned), default=None
        )
