"""Where each process stands for the planner: five queues, insertion ordered, keyed by pid."""

import enum
from dataclasses import dataclass, field

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Task


class Queue(enum.Enum):
    WAITING = "waiting"
    """NEW: no frames yet."""
    READY = "ready"
    """Holds frames and can run in the next step."""
    HELD = "held"
    """Holds frames but must not run: stopped, its pipe is full, or it waits for input."""
    PAUSED = "paused"
    """Swapped out, or thrown away to be recomputed, and wanted back."""
    MOVING = "moving"
    """Its pages are on the link: nothing to decide before they arrive."""


@dataclass(slots=True)
class Queues:
    waiting: dict[Pid, Task] = field(default_factory=dict)
    ready: dict[Pid, Task] = field(default_factory=dict)
    held: dict[Pid, Task] = field(default_factory=dict)
    paused: dict[Pid, Task] = field(default_factory=dict)
    moving: dict[Pid, Task] = field(default_factory=dict)
    seats: int = 0
    """Admissions and resumes so far."""

    def of(self, queue: Queue) -> dict[Pid, Task]:
        table: dict[Pid, Task] = getattr(self, queue.value)
        return table

    def put(self, task: Task, queue: Queue) -> None:
        """Move `task` to the end of `queue`; a new seat if it had no frames before."""
        entity = task.entity
        entity.waiting_since_s = max(entity.waiting_since_s, entity.arrival_s)
        if queue is Queue.READY and entity.pid not in self.ready and entity.pid not in self.held:
            self.seats += 1
            entity.seat = self.seats
        if entity.pid in self.of(queue):
            return
        self.drop(task)
        self.of(queue)[entity.pid] = task

    def drop(self, task: Task) -> None:
        """Remove `task` from whatever queue it is in."""
        for queue in Queue:
            self.of(queue).pop(task.entity.pid, None)
