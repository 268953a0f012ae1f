"""What the living need, kept while they come, grow and go: pages alive, and pages by pace."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tokenix.mm.ids import Pid
from tokenix.sched import reader
from tokenix.sched.entity import Task

if TYPE_CHECKING:
    from tokenix.sched.world import World


class Share(NamedTuple):
    """What was counted for one process."""

    pages: int
    pace: float
    tier: int


@dataclass(slots=True)
class Tally:
    """Over all that run, are paused or move."""

    alive_pages: int = 0
    unread: int = 0
    """Batch and idle processes."""
    paces: dict[float, int] = field(default_factory=dict)
    """Pages by the pace of their readers (`pace_of`)."""
    shares: dict[Pid, Share] = field(default_factory=dict)
    large: dict[Pid, None] = field(default_factory=dict)
    """Those with `giant_least` of the pool and more."""

    def insert(self, task: Task, world: "World") -> None:
        entity = task.entity
        share = Share(world.footprint(task), pace_of(task), reader.tier_of(entity))
        self.shares[entity.pid] = share
        self.alive_pages += share.pages
        self.unread += share.tier > 0
        self.paces[share.pace] = self.paces.get(share.pace, 0) + share.pages
        self._note_size(entity.pid, share.pages, world)

    def resize(self, task: Task, world: "World") -> None:
        """It has more pages, or fewer."""
        old = self.shares[task.entity.pid]
        pages = world.footprint(task)
        if pages != old.pages:
            self.shares[task.entity.pid] = Share(pages, old.pace, old.tier)
            self.alive_pages += pages - old.pages
            self.paces[old.pace] += pages - old.pages
            self._note_size(task.entity.pid, pages, world)

    def _note_size(self, pid: Pid, pages: int, world: "World") -> None:
        if pages >= world.tunables.giant_least * world.memory.total_frames:
            self.large[pid] = None
        else:
            self.large.pop(pid, None)

    def drop(self, pid: Pid) -> None:
        share = self.shares.pop(pid)
        self.large.pop(pid, None)
        self.alive_pages -= share.pages
        self.unread -= share.tier > 0
        left = self.paces[share.pace] - share.pages
        if left:
            self.paces[share.pace] = left
        else:
            del self.paces[share.pace]

    def resident_pages(self, world: "World") -> float:
        """Pages that must be resident, each process by its share of the time."""
        return sum(
            pages * (1.0 if pace == math.inf else world.pace_residency(pace))
            for pace, pages in self.paces.items()
        )


def pace_of(task: Task) -> float:
    """Tokens per second that it must be resident for, to a tenth; inf before its first token."""
    entity = task.entity
    if reader.tier_of(entity) == 0 and reader.before_first_token(entity):
        return math.inf
    return reader.pace_of(reader.rate_of(entity))
