"""What the living need: pages that must be resident now or soon, pages alive, the mean lead."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from tokenix.sched import reader
from tokenix.sched.entity import Task
from tokenix.sched.tally import pace_of
from tokenix.sched.world import World


@dataclass(slots=True)
class Load:
    resident_pages: float
    """Pages that must be resident, each process by its share of time: the working set."""
    alive_pages: int

    def add(self, pages: int, residency: float) -> None:
        """A newcomer was admitted."""
        self.resident_pages += pages * residency
        self.alive_pages += pages


@dataclass(frozen=True, slots=True)
class Horizon:
    """Pages by the time they must be resident, summed up in that order."""

    always: int
    times_s: list[float]
    sums: list[int]

    @classmethod
    def of(cls, always: int, times: list[tuple[float, int]]) -> "Horizon":
        """`times`: (seconds from now, pages)."""
        times = sorted(times)
        sums = list(accumulate((pages for _, pages in times), initial=0))
        return cls(always, [time_s for time_s, _ in times], sums)

    def pages_before(self, horizon_s: float) -> int:
        """Pages that must be resident at some time before `horizon_s` from now."""
        return self.always + self.sums[bisect_left(self.times_s, horizon_s)]


def measure_load(world: World) -> Load:
    """Over all that run, are paused or move. A stopped process counts as long as its reader has
    something to read: after that it does not come back by itself."""
    tally = world.queues.tally
    load = Load(tally.resident_pages(world), tally.alive_pages)
    for task in _held_with_lead(world):
        load.add(world.footprint(task), residency(world, task))
    for task in world.aside.values():
        load.add(-world.footprint(task), residency(world, task))
    return load


def residency(world: World, task: Task) -> float:
    """Share of the time it must be resident: 1 before the first token, then reader / device."""
    pace = pace_of(task)
    return 1.0 if pace == math.inf else world.pace_residency(pace)


def mean_lead_s(world: World) -> float:
    """Of all streams with a first token; whoever is late counts as without lead."""
    queues = world.queues
    streams = [
        task
        for task in (*queues.ready.values(), *queues.moving.values(), *_held_with_lead(world))
        if reader.tier_of(task.entity) == 0 and not reader.before_first_token(task.entity)
    ]
    count = len(streams) + queues.dueline.streams
    leads = sum(max(0.0, world.lead_s(task)) for task in streams)
    return (leads + queues.dueline.sum_leads(world.now_s)) / count if count else 0.0


def _held_with_lead(world: World) -> list[Task]:
    return [
        task
        for task in world.queues.held.values()
        if reader.tier_of(task.entity) == 0 and world.lead_s(task) > 0
    ]
