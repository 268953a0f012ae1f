"""What the living need: pages that must be resident now or soon, pages alive, the mean lead."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from tokenix.sched import reader
from tokenix.sched.world import World


@dataclass(slots=True)
class Load:
    resident_pages: float
    """Pages that must be resident, each process by its share of time: the working set."""
    alive_pages: int
    mean_lead_s: float

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
    queues = world.queues
    living = [t for q in (queues.ready, queues.paused, queues.moving) for t in q.values()]
    for task in queues.held.values():
        if reader.tier_of(task.entity) == 0 and world.lead_s(task) > 0:
            living.append(task)
    streams = [
        t
        for t in living
        if reader.tier_of(t.entity) == 0 and not reader.before_first_token(t.entity)
    ]
    leads = [max(0.0, world.lead_s(t)) for t in streams]
    return Load(
        resident_pages=sum(world.footprint(t) * world.residency(t) for t in living),
        alive_pages=sum(world.footprint(t) for t in living),
        mean_lead_s=sum(leads) / len(leads) if leads else 0.0,
    )
