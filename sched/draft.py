"""One plan in the making: decisions so far and the ledger that keeps them consistent.

Lives for one call of planner.make_plan and touches nothing outside: no task, no queue.
"""

from dataclasses import dataclass, field

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Task
from tokenix.sched.ledger import Ledger
from tokenix.sched.load import Horizon, Load
from tokenix.sched.plan import Pause, PauseMode, Plan, Refuse, Run
from tokenix.sched.policy import Policy
from tokenix.sched.world import World


@dataclass(slots=True)
class Draft:
    world: World
    policy: Policy
    ledger: Ledger
    in_queue_s: float
    """Seconds queued on the link towards the device, with the resumes of this plan."""
    refuse: dict[Pid, Refuse] = field(default_factory=dict)
    pause: dict[Pid, Pause] = field(default_factory=dict)
    resume: dict[Pid, Task] = field(default_factory=dict)
    admit: dict[Pid, Task] = field(default_factory=dict)
    run: dict[Pid, int] = field(default_factory=dict)
    loaded: dict[Pid, Task] = field(default_factory=dict)
    """Of `resume`, those with nothing to load: they can run in this very step."""
    grants: dict[Pid, int] = field(default_factory=dict)
    """Growth frames promised to decodes of this plan."""
    pressure: bool = False
    """A due resume or a growing decode found no room: the working set is too big."""
    blocked: bool = False
    """Someone ahead of the newcomers (or a newcomer) was refused memory."""
    load: Load | None = None
    """What the working-set test counted, if it was asked."""
    horizon: Horizon | None = None
    """What the horizon test counted; void after a pause or a resume."""

    @classmethod
    def open(cls, world: World, policy: Policy) -> "Draft":
        """An empty plan."""
        idle = sum(task.space.idle_resident for task in world.queues.paused.values())
        ledger = Ledger.open(world.memory, idle)
        return cls(world, policy, ledger, world.memory.in_queue_s)

    # ---- what stands where, with this plan carried out --------------------------------------

    def ready(self) -> list[Task]:
        """Resident before this plan, runnable, and not paused by it."""
        return [t for pid, t in self.world.queues.ready.items() if pid not in self.pause]

    def runnable(self) -> list[Task]:
        """All that may run in this step."""
        return [*self.ready(), *self.loaded.values(), *self.admit.values()]

    def paused(self) -> list[Task]:
        """Paused before this plan and not resumed by it."""
        return [t for pid, t in self.world.queues.paused.items() if pid not in self.resume]

    def waiting(self) -> list[Task]:
        """Newcomers neither refused nor admitted."""
        return [
            t
            for pid, t in self.world.queues.waiting.items()
            if pid not in self.refuse and pid not in self.admit
        ]

    def arriving(self) -> list[Task]:
        """On the link towards the device, before this plan and by it."""
        moving = [t for t in self.world.queues.moving.values() if t.space.active]
        return [*moving, *(t for pid, t in self.resume.items() if pid not in self.loaded)]

    def leaving(self) -> list[Task]:
        """On the link towards the host: paused, but not back yet."""
        return [t for t in self.world.queues.moving.values() if not t.space.active]

    def displaced(self) -> list[Task]:
        """Paused by this plan, except those that were stopped before."""
        ready = self.world.queues.ready
        return [ready[pid] for pid in self.pause if pid in ready]

    def count_running(self) -> int:
        """Sequences that run or are about to."""
        return len(self.runnable()) + len(self.arriving())

    def alone(self) -> bool:
        """Whether nothing else runs, comes back or wants to come back."""
        return not (self.count_running() or self.paused() or self.leaving() or self.pause)

    def tokens_left(self) -> int:
        """Of the step's budget, with everyone admitted or resumed so far taking all it can."""
        used = sum(self.run.values())
        for task in (*self.loaded.values(), *self.admit.values()):
            if task.entity.pid not in self.run:
                used += task.todo_tokens
        return self.world.tunables.step_tokens - used

    # ---- decisions --------------------------------------------------------------------------

    @property
    def pause_mode(self) -> PauseMode:
        """The policy's, where there is a host tier."""
        return self.policy.pause_mode if self.world.memory.swap else PauseMode.RECOMPUTE

    def do_pause(self, task: Task, reason: str) -> None:
        pid, mode = task.entity.pid, self.pause_mode
        assert pid not in self.pause and pid not in self.admit and pid not in self.resume
        self.pause[pid] = Pause(pid, mode, reason)
        self.ledger.pause(task, mode)
        self.ledger.give_back(self.grants.pop(pid, 0))
        self.run.pop(pid, None)
        self.horizon = None

    def do_resume(self, task: Task) -> None:
        pid = task.entity.pid
        mine = task.space.idle_resident
        # Its own clean pages are there for sure only if nothing taken before it may eat them.
        if task.space.missing == 0 and (mine == 0 or self.ledger.untouched >= 0):
            self.loaded[pid] = task
        self.ledger.take(self.world.need(task), mine)
        self.resume[pid] = task
        self.horizon = None
        self.in_queue_s += task.space.missing * self.world.memory.in_s_per_page

    def do_admit(self, task: Task) -> None:
        self.ledger.take(self.world.need(task))
        self.admit[task.entity.pid] = task
        if self.load is not None:
            self.load.add(self.world.need(task), self.world.stream_residency(task))

    def do_grow(self, task: Task, frames: int) -> None:
        self.ledger.take(frames)
        self.grants[task.entity.pid] = frames

    def close(self, wake_s: float | None) -> Plan:
        """The plan as a frozen value."""
        return Plan(
            refuse=tuple(self.refuse.values()),
            pause=tuple(self.pause.values()),
            resume=tuple(self.resume),
            admit=tuple(self.admit),
            run=tuple(Run(pid, tokens) for pid, tokens in self.run.items()),
            wake_s=wake_s,
        )
