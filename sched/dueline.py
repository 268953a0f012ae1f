"""PAUSED as the planner needs it: by the time they are owed something, with sums of their pages.

A key is a time before which nothing is owed. For most it is the deadline itself; for a measured
reader who stands still it may be too early, and is set anew when that shows.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tokenix.mm.ids import Pid
from tokenix.sched import reader
from tokenix.sched.entity import Task
from tokenix.sched.sums import SortedSums

if TYPE_CHECKING:
    from tokenix.sched.world import World

IDLE_COUNTS = 8
"""Of so many the idle pages are counted again after each forward."""

STALE_S = 1.0
"""A key that is earlier than the truth by more than this is set anew."""


@dataclass(frozen=True, slots=True)
class Sleeper:
    """What was counted for a paused process."""

    task: Task
    tier: int
    key: tuple[float, Pid] | None
    """None: its deadline follows the measured rates; it is looked at every time."""
    pages: int
    mapped: int
    todo_tokens: int
    stream: bool


class DueLine:
    def __init__(self) -> None:
        self.sleepers: dict[Pid, Sleeper] = {}
        self.loose: dict[Pid, Task] = {}
        """Those without a key."""
        self.mapped = 0
        """Pages of all that are paused, resident or not."""
        self.todo_tokens = 0
        """Tokens that all of them have to compute."""
        self.idle = 0
        """Pages of them that are resident and nobody needs. Others take such pages at any time, so
        that this is a bound until everybody was counted again."""
        self.streams = 0
        self._stale: dict[Pid, Task] = {}
        """Keys that turned out to be too early."""
        self._lines: list[SortedSums[tuple[float, Pid]]] = [SortedSums() for _ in range(3)]
        self._idle: dict[Pid, int] = {}
        """Of whom how many were counted, the one that was counted longest ago first."""
        self._due_sum = 0.0
        self._longest = (0, 0)
        self._longest_known = True

    # ---- look only ----

    def peek_owed(
        self, world: "World", tiers: tuple[int, ...] = (0, 1, 2)
    ) -> Iterator[tuple[float, Pid, Task]]:
        """(seconds until it is owed something, pid, task), the earliest first."""
        if not self.sleepers and not self.loose:  # as mostly
            return
        heap = [
            (world.owed_s(task), pid, task)
            for pid, task in self.loose.items()
            if reader.tier_of(task.entity) in tiers
        ]
        heapq.heapify(heap)
        lines = (
            heapq.merge(*(self._lines[tier] for tier in tiers))
            if len(tiers) > 1
            else iter(self._lines[tiers[0]])
        )
        for at_s, pid in lines:
            while heap and heap[0][0] < at_s - world.now_s - 1e-9:
                yield heapq.heappop(heap)
            task = self.sleepers[pid].task
            owed_s = world.owed_s(task)
            if not heap and owed_s <= at_s - world.now_s:  # none of the later keys is earlier
                yield owed_s, pid, task
                continue
            if owed_s > at_s - world.now_s + STALE_S:
                self._stale[pid] = task
            heapq.heappush(heap, (owed_s, pid, task))
        while heap:
            yield heapq.heappop(heap)

    def peek_line(self) -> Iterator[Pid]:
        """Everybody by key, those without one last. No scan: who wants some looks at some."""
        for _, pid in heapq.merge(*self._lines):
            yield pid
        yield from self.loose

    def longest_restore_s(self, world: "World") -> float:
        """No paused process needs longer to come back, once it is its turn."""
        if not self._longest_known:
            self._longest = (
                max((s.mapped for s in self.sleepers.values()), default=0),
                max((s.todo_tokens for s in self.sleepers.values()), default=0),
            )
            self._longest_known = True
        mapped, todo_tokens = self._longest
        return world.longest_copies_s(mapped) + world.prefill_s(max(0, todo_tokens - 1))

    def count_needed(self, world: "World", horizon_s: float) -> int:
        """Pages of those that must begin to come back before `horizon_s` from now."""
        end_s = world.now_s + horizon_s
        pages = sum(line.below((end_s, Pid(0))) for line in self._lines)
        near = [self.loose[pid] for pid in self.loose]
        last_s = end_s + self.longest_restore_s(world) + 1e-9
        for line in self._lines:
            for at_s, pid in line.iter_from((end_s, Pid(0))):
                if at_s > last_s:
                    break
                near.append(self.sleepers[pid].task)
        for task in near:
            if world.owed_s(task) - world.restore_s(task) < horizon_s:
                pages += self.sleepers[task.entity.pid].pages
        return pages

    def sum_leads(self, now_s: float) -> float:
        """Leads of the paused streams, each at least 0, by their deadlines."""
        leads = self._due_sum - self.streams * now_s
        for at_s, pid in self._lines[0]:
            if at_s >= now_s:
                break
            if self.sleepers[pid].stream:
                leads += now_s - at_s
        return leads

    # ---- changes, by queues.py ----

    def take_stale(self) -> list[Task]:
        """Those whose key is to be set anew."""
        stale = list(self._stale.values())
        self._stale.clear()
        return stale

    def count_idle_again(self) -> None:
        """Count the pages of a few again, in turn."""
        for pid in list(islice(self._idle, IDLE_COUNTS)):
            idle = self.sleepers[pid].task.space.idle_resident
            self.idle += idle - self._idle.pop(pid)
            self._idle[pid] = idle

    def insert(self, task: Task, world: "World") -> None:
        entity, pid = task.entity, task.entity.pid
        tier = reader.tier_of(entity)
        owed_at_s = reader.owed_at_s(entity, world.now_s, world.tunables)
        key = (owed_at_s, pid) if owed_at_s is not None else None
        stream = tier == 0 and not reader.before_first_token(entity)
        sleeper = Sleeper(
            task, tier, key, world.footprint(task), task.space.mapped, task.todo_tokens, stream
        )
        self.sleepers[pid] = sleeper
        self.mapped += sleeper.mapped
        self.todo_tokens += sleeper.todo_tokens
        self._idle[pid] = task.space.idle_resident
        self.idle += self._idle[pid]
        longest = (
            max(self._longest[0], sleeper.mapped),
            max(self._longest[1], sleeper.todo_tokens),
        )
        self._longest = longest
        if key is None:
            self.loose[pid] = task
        else:
            self._lines[tier].add(key, sleeper.pages)
        if stream and key is not None:
            self.streams += 1
            self._due_sum += key[0]

    def drop(self, pid: Pid) -> None:
        sleeper = self.sleepers.pop(pid)
        self.mapped -= sleeper.mapped
        self.todo_tokens -= sleeper.todo_tokens
        self.idle -= self._idle.pop(pid)
        if sleeper.mapped == self._longest[0] or sleeper.todo_tokens == self._longest[1] > 1:
            self._longest_known = False
        if sleeper.key is None:
            del self.loose[pid]
        else:
            self._lines[sleeper.tier].remove(sleeper.key)
        if sleeper.stream and sleeper.key is not None:
            self.streams -= 1
            self._due_sum -= sleeper.key[0]
        if not self.streams:
            self._due_sum = 0.0
        assert math.isfinite(self._due_sum)
