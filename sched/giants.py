"""Giants: streams many times as large as streams usually become, that have gone on for a while and
whose readers are nearly as fast as the device.

Such a reader leaves no time in which others could have its memory. A few of them that grow fill the
pool, and newcomers are refused by the dozen for the sake of each. So giants have a share of the
pool. The first by arrival hold it, at least one of them; the others are *aside*:

    run on frames that nobody else wants, and keep their lead as long as it lasts
    are in no working set and no horizon, and come back last
    yield to whoever grows or is due to come back

The first giant is never aside, and everybody becomes the first, so nobody waits without end.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Task

if TYPE_CHECKING:
    from tokenix.sched.world import World

SAMPLES = 8
"""Streams that must have ended before one can be called large."""
GAIN = 0.03
"""Weight of a stream that ends."""


@dataclass(slots=True)
class UsualSize:
    """How large streams become: the geometric mean, which few giants do not move."""

    ended: int = 0
    log_pages: float = 0.0

    def note_ended(self, pages: int) -> None:
        """A stream of so many pages is gone."""
        self.ended += 1
        self.log_pages += (math.log(max(1, pages)) - self.log_pages) * max(1 / self.ended, GAIN)

    @property
    def pages(self) -> float:
        """Infinite while too little is known."""
        return math.exp(self.log_pages) if self.ended >= SAMPLES else math.inf


def _lasts(task: Task, world: "World") -> bool:
    """Whether it streams for longer already than any newcomer would wait: then it is likely to go
    on for as long again."""
    began_s, target_s = task.entity.first_token_s, world.tunables.target_s(task.entity.qos)
    if began_s is None:
        return False
    return world.now_s - began_s > world.tunables.max_wait_targets * target_s


def find_aside(world: "World") -> dict[Pid, Task]:
    """The giants that have no part in the share, by arrival."""
    queues, tunables = world.queues, world.tunables
    large = queues.tally.large
    if len(large) < 2:
        return {}
    least = tunables.giant_times * queues.usual.pages
    giants = []
    for pid in large:
        pages, pace, _ = queues.tally.shares[pid]
        if pages <= least or world.pace_residency(pace) < tunables.giant_residency:
            continue
        task = queues.of(queues.home[pid])[pid]
        if _lasts(task, world):
            giants.append((task.entity.arrival_s, pid, pages, task))
    giants.sort(key=lambda giant: giant[:2])
    left = tunables.giant_share * world.memory.total_frames
    aside = {}
    for place, (_, pid, pages, task) in enumerate(giants):
        left -= pages
        if place and left < 0:
            aside[pid] = task
    return aside
