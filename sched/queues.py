"""Where each process stands for the planner: five queues, insertion ordered, keyed by pid; and the
books over them, so that a plan looks at what has changed and not at everybody.

    put, drop, touch      note who has changed            as often as things happen
    settle                books them                      once before decisions
    waitlist dueline runlist tally shares                 read by the planner

Sizes of a task may change without `touch` in two ways only: by the forwards that plans ordered
(`forwards` counts them), and by frames taken from the paused. Whatever else happens to pages moves
`MemoryView.upsets`, and then everybody is looked at again.
"""

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenix.mm.ids import Pid
from tokenix.sched.dueline import DueLine
from tokenix.sched.eldest import Eldest
from tokenix.sched.entity import SchedEntity, Task
from tokenix.sched.giants import UsualSize
from tokenix.sched.policy import Policy
from tokenix.sched.rates import Rates
from tokenix.sched.runlist import RunList
from tokenix.sched.shares import LOOK_FORWARDS, Shares
from tokenix.sched.tally import Tally
from tokenix.sched.tunables import Tunables
from tokenix.sched.waitlist import Waitlist

if TYPE_CHECKING:
    from tokenix.sched.world import World


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


COUNTED = (Queue.READY, Queue.PAUSED, Queue.MOVING)
"""Queues of the living, whose pages count."""


Basis = tuple[Policy, Tunables, int, int | None]
"""What the books are kept by: policy, tunables, page size, upsets. Void when it changes."""


@dataclass(slots=True)
class Queues:
    waiting: dict[Pid, Task] = field(default_factory=dict)
    ready: dict[Pid, Task] = field(default_factory=dict)
    held: dict[Pid, Task] = field(default_factory=dict)
    paused: dict[Pid, Task] = field(default_factory=dict)
    moving: dict[Pid, Task] = field(default_factory=dict)
    home: dict[Pid, Queue] = field(default_factory=dict)
    """Where each of them is."""
    seats: int = 0
    """Admissions and resumes so far."""
    forwards: int = 0
    """Forward passes that have retired."""

    eldest: Eldest = field(default_factory=Eldest)
    waitlist: Waitlist = field(default_factory=Waitlist)
    dueline: DueLine = field(default_factory=DueLine)
    runlist: RunList = field(default_factory=RunList)
    tally: Tally = field(default_factory=Tally)
    shares: Shares = field(default_factory=Shares)
    usual: UsualSize = field(default_factory=UsualSize)
    _booked: dict[Pid, Queue] = field(default_factory=dict)
    _touched: dict[Pid, Task] = field(default_factory=dict)
    _basis: Basis | None = None
    _looked: tuple[float, int] | None = None
    """Time and forwards of the last look for those whose place depends on them."""

    def of(self, queue: Queue) -> dict[Pid, Task]:
        table: dict[Pid, Task] = getattr(self, queue.value)
        return table

    # ---- as things happen ----

    def put(self, task: Task, queue: Queue) -> None:
        """Move `task` to the end of `queue`; a new seat if it had no frames before."""
        entity = task.entity
        pid = entity.pid
        home = self.home.get(pid)
        if home is queue:
            return
        entity.waiting_since_s = max(entity.waiting_since_s, entity.arrival_s)
        if queue is Queue.READY and home is not Queue.HELD:
            self.seats += 1
            entity.seat = self.seats
        self._note_leaving(entity, home)
        if home is not None:
            del self.of(home)[pid]
        else:
            self.shares.note_present(entity)
        if queue is Queue.WAITING:
            self.eldest.put(entity)
            self.shares.note_waiting(entity.qos, 1)
            self.shares.mark(entity)
        self.home[pid] = queue
        self.of(queue)[pid] = task
        self._touched[pid] = task

    def drop(self, task: Task) -> None:
        """Remove `task` from whatever queue it is in."""
        home = self.home.pop(task.entity.pid, None)
        if home is not None:
            del self.of(home)[task.entity.pid]
            self._touched[task.entity.pid] = task
            share = self.tally.shares.get(task.entity.pid)
            if share is not None and share.tier == 0 and share.pace < math.inf:
                self.usual.note_ended(share.pages)
            self._note_leaving(task.entity, home)
            self.shares.note_gone(task.entity)

    def _note_leaving(self, entity: SchedEntity, home: Queue | None) -> None:
        if home is Queue.WAITING:
            self.eldest.drop(entity)
            self.shares.note_waiting(entity.qos, -1)
            if self._booked.get(entity.pid) is Queue.WAITING:
                self._unbook(entity.pid)  # now, so that the others' place in the line is right
        elif home is Queue.READY:
            self.shares.charge(entity)

    def note_forward(self, now_s: float, tunables: Tunables, rates: Rates) -> None:
        """A forward has retired. Now and then, who has had how much is looked at."""
        self.forwards += 1
        if self.forwards % LOOK_FORWARDS:
            return
        for task in self.ready.values():
            self.shares.charge(task.entity)
        if self.shares.look(now_s, tunables, rates):
            for task in self.waiting.values():
                self.shares.mark(task.entity)
                self.touch(task)

    def touch(self, task: Task) -> None:
        """Something of `task` has changed that decisions depend on."""
        if task.entity.pid in self.home:
            self._touched[task.entity.pid] = task

    # ---- before decisions ----

    def settle(self, world: "World", policy: Policy) -> None:
        """Book all that has changed. `world` is without a trickle."""
        memory = world.memory
        basis: Basis = (policy, world.tunables, memory.page_tokens, memory.upsets)
        if self._is_void(basis):
            self._start_over()
            self._basis = basis
        elif self._looked != (world.now_s, self.forwards):
            self._find_turned(world)
        self._looked = (world.now_s, self.forwards)
        for pid, task in self._touched.items():
            self._unbook(pid)
            self._book(pid, task, world, policy)
        self._touched.clear()
        if policy.patience and self.waitlist.rate_moved(world):
            self.waitlist.renew_patience(world, self.waiting, policy)

    def _is_void(self, basis: Basis) -> bool:
        if self._basis is None or basis[-1] is None:
            return True
        (policy, tunables, *sizes), (old_policy, old_tunables, *old_sizes) = basis, self._basis
        return policy is not old_policy or tunables is not old_tunables or sizes != old_sizes

    def _start_over(self) -> None:
        self.waitlist, self.dueline = Waitlist(), DueLine()
        self.runlist, self.tally = RunList(self.forwards), Tally()
        self._booked.clear()
        self._touched = {pid: self.of(queue)[pid] for pid, queue in self.home.items()}

    def _find_turned(self, world: "World") -> None:
        """Those whose place depends on time or on forwards."""
        for pid in self.waitlist.take_turned(world.now_s):
            if pid not in self._touched:
                self._touched[pid] = self.waiting[pid]
        for task in self.dueline.take_stale():
            self.touch(task)
        if self.runlist.turned != self.forwards:
            self.dueline.count_idle_again()
        for task in self.runlist.take_turned(self.forwards):
            pid = task.entity.pid
            if pid in self._touched:
                continue
            if self.runlist.look_again(task, self.forwards):
                self.tally.resize(task, world)
            else:
                self._touched[pid] = task

    def _unbook(self, pid: Pid) -> None:
        queue = self._booked.pop(pid, None)
        if queue is Queue.WAITING:
            self.waitlist.drop(pid)
        elif queue is Queue.PAUSED:
            self.dueline.drop(pid)
        elif queue is Queue.READY:
            self.runlist.drop(pid)
        if queue in COUNTED:
            self.tally.drop(pid)

    def _book(self, pid: Pid, task: Task, world: "World", policy: Policy) -> None:
        queue = self.home.get(pid)
        if queue is None:
            return
        self._booked[pid] = queue
        if queue is Queue.WAITING:
            self.waitlist.insert(task, world, policy)
        elif queue is Queue.PAUSED:
            self.dueline.insert(task, world)
        elif queue is Queue.READY:
            self.runlist.insert(task, world.memory.page_tokens, self.forwards)
        if queue in COUNTED:
            self.tally.insert(task, world)
