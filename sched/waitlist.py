"""WAITING as the planner needs it: in the policy's order, by patience, and the work in it.

Keys hold until somebody says otherwise: an order that changes with time says when (`until`), and
the time to give up, which follows the measured rates, is kept as a bound that a change of the
prefill rate within `RATE_BAND` does not break.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tokenix.mm.ids import Pid
from tokenix.sched import reader
from tokenix.sched.entity import Task
from tokenix.sched.policy import Policy
from tokenix.sched.sums import SortedSums

if TYPE_CHECKING:
    from tokenix.sched.world import World

RATE_BAND = 0.05
"""Share by which the prefill rate may move before the bounds on patience are taken anew."""

Rank = tuple[int, int, int]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a newcomer stands in the lists."""

    key: tuple[float, ...]
    until_s: float
    rank: Rank
    todo: tuple[int, Pid]
    patience: tuple[float, Pid] | None
    age: tuple[float, Pid] | None
    """Batch and idle: the oldest of them trickles in."""


class Waitlist:
    def __init__(self) -> None:
        self.order: list[tuple[float, ...]] = []
        """Keys of the policy, which end in the pid."""
        self.ages: list[tuple[float, Pid]] = []
        self._places: dict[Pid, Place] = {}
        self._turns: list[tuple[float, Pid]] = []
        self._patience: list[tuple[float, Pid]] = []
        self._work: dict[Rank, SortedSums[tuple[int, Pid]]] = {}
        self._tokens = 0
        self._rate = 0.0

    # ---- look only ----

    def peek_newcomers(self) -> Iterator[Pid]:
        """Pids in the policy's order."""
        for key in self.order:
            yield Pid(int(key[-1]))

    def peek_impatient(self, now_s: float, step_s: float) -> Iterator[Pid]:
        """All who may have to give up by `now_s`, and perhaps some more."""
        for bound_s, pid in self._patience:
            if bound_s - step_s > now_s:
                return
            yield pid

    def count_tokens_ahead(self, rank: Rank, todo_tokens: int) -> int:
        """Prefill tokens of more urgent classes, and of those of this one that are no longer."""
        ahead = 0
        for other, work in self._work.items():
            if other < rank:
                ahead += work.below((1 << 62, Pid(0)))
            elif other == rank:
                ahead += work.below((todo_tokens + 1, Pid(0)))
        return ahead

    def count_tokens(self) -> int:
        """Tokens that all of them have to compute."""
        return self._tokens

    def count_ahead(self, pid: Pid) -> int:
        """How many are before it in the policy's order; one that is not in the lists yet is last.
        No scan, so that everybody can be asked about."""
        place = self._places.get(pid)
        return len(self.order) if place is None else bisect_left(self.order, place.key)

    # ---- changes, by queues.py ----

    def take_turned(self, now_s: float) -> list[Pid]:
        """Those whose key changes at this time."""
        turned = []
        while self._turns and self._turns[0][0] <= now_s:
            until_s, pid = heapq.heappop(self._turns)
            place = self._places.get(pid)
            if place is not None and place.until_s == until_s:
                turned.append(pid)
        return turned

    def rate_moved(self, world: "World") -> bool:
        """Whether the bounds on patience must be taken anew."""
        rate = world.rates.prefill_tokens_per_s
        return abs(rate - self._rate) > RATE_BAND * self._rate

    def renew_patience(self, world: "World", tasks: dict[Pid, Task], policy: Policy) -> None:
        """The prefill rate has moved: all bounds anew."""
        self._rate = world.rates.prefill_tokens_per_s
        self._patience = []
        for pid, place in list(self._places.items()):
            patience = _patience_key(tasks[pid], world, policy)
            self._places[pid] = msgspec.structs.replace(place, patience=patience)
            if patience is not None:
                self._patience.append(patience)
        self._patience.sort()

    def insert(self, task: Task, world: "World", policy: Policy) -> None:
        entity, pid = task.entity, task.entity.pid
        rank = reader.rank_of(entity)
        place = Place(
            key=policy.newcomer_key(task, world),
            until_s=policy.newcomer_until_s(task, world),
            rank=rank,
            todo=(task.todo_tokens, pid),
            patience=_patience_key(task, world, policy),
            age=(entity.waiting_since_s, pid) if reader.tier_of(entity) else None,
        )
        self._places[pid] = place
        self._tokens += place.todo[0]
        insort(self.order, place.key)
        if place.until_s < math.inf:
            heapq.heappush(self._turns, (place.until_s, pid))
        if place.patience is not None:
            insort(self._patience, place.patience)
        if place.age is not None:
            insort(self.ages, place.age)
        if place.todo[0] > 1:
            work = self._work.get(rank)
            if work is None:
                work = self._work[rank] = SortedSums()
            work.add(place.todo, place.todo[0])

    def drop(self, pid: Pid) -> None:
        place = self._places.pop(pid)
        self._tokens -= place.todo[0]
        _drop(self.order, place.key)
        if place.patience is not None:
            _drop(self._patience, place.patience)
        if place.age is not None:
            _drop(self.ages, place.age)
        if place.todo[0] > 1:
            self._work[place.rank].remove(place.todo)


def _patience_key(task: Task, world: "World", policy: Policy) -> tuple[float, Pid] | None:
    """A bound: it gives up (`give_up_s`) no earlier than this, less the step time.

    With a prefill of p seconds, weight w, target T and factor f it gives up at
    since + w max(T, f (p + S)) - p - S, which is at least since + max(w T - p, (w f - 1) p) - S.
    """
    entity = task.entity
    if not policy.patience or entity.delivered_tokens or reader.tier_of(entity):
        return None
    tunables = world.tunables
    weight = reader.weight_of(entity)
    own_s = world.prefill_s(task.todo_tokens)
    slow_s = own_s / (1 - RATE_BAND)
    gain = weight * tunables.patience_factor - 1
    long_s = gain * (own_s / (1 + RATE_BAND) if gain > 0 else slow_s)
    bound_s = max(weight * tunables.target_s(entity.qos) - slow_s, long_s)
    return (entity.waiting_since_s + bound_s, entity.pid)


def _drop(keys: list[tuple[float, Pid]] | list[tuple[float, ...]], key: tuple[float, ...]) -> None:
    at = bisect_left(keys, key)
    assert keys[at] == key, "what was inserted is there"
    del keys[at]
