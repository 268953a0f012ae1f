"""One plan in the making: decisions so far and the ledger that keeps them consistent.

Lives for one call of planner.make_plan and touches nothing outside: no task, no queue.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from tokenix.mm.ids import Pid
from tokenix.sched import reader
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
    fetch: dict[Pid, Task] = field(default_factory=dict)
    resume: dict[Pid, Task] = field(default_factory=dict)
    admit: dict[Pid, Task] = field(default_factory=dict)
    run: dict[Pid, int] = field(default_factory=dict)
    """Tokens of prefills, of those admitted and of those loaded."""
    decoding: bool = False
    """All decodes of the run list run, but for `resting`."""
    resting: dict[Pid, Task] = field(default_factory=dict)
    """Decodes that do not run: paused by this plan, or without a page."""
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
        ledger = Ledger.open(world.memory, world.queues.dueline.idle)
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
        gone = (self.resume, self.fetch)
        paused = self.world.queues.paused.items()
        return [task for pid, task in paused if not any(pid in those for those in gone)]

    def unread_runs(self) -> bool:
        """Whether a batch or idle process is resident and may run."""
        return any(reader.tier_of(task.entity) for task in self.ready())

    def count_paused(self) -> int:
        return len(self.world.queues.paused) - len(self.resume) - len(self.fetch)

    def newcomers(self) -> Iterator[Task]:
        """Newcomers neither refused nor admitted, in the policy's order."""
        waiting, trickle = self.world.queues.waiting, self.world.trickle
        if trickle is not None and trickle not in self.refuse:
            chosen = self.policy.newcomer_key(waiting[trickle], self.world)
        else:
            trickle = None
        for key in self.world.queues.waitlist.order:
            if trickle is not None and chosen < key:
                yield waiting[trickle]
                trickle = None
            pid = Pid(int(key[-1]))
            if pid not in self.refuse and pid not in self.admit and pid != self.world.trickle:
                yield waiting[pid]
        if trickle is not None:
            yield waiting[trickle]

    def owed(self, tiers: tuple[int, ...] = (0, 1, 2)) -> Iterator[tuple[float, Task]]:
        """(seconds until it is owed something, task) of the paused, earliest first."""
        for owed_s, pid, task in self.world.queues.dueline.peek_owed(self.world, tiers):
            if pid not in self.resume and pid not in self.fetch:
                yield owed_s, task

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
        queues = self.world.queues
        stay = len(queues.ready) - sum(pid in queues.ready for pid in self.pause)
        coming = sum(task.space.active for task in queues.moving.values())
        return stay + coming + len(self.admit) + len(self.resume)

    def alone(self) -> bool:
        """Whether nothing else runs, comes back or wants to come back."""
        queues = self.world.queues
        return not (queues.ready or queues.paused or queues.moving or self.admit or self.pause)

    def count_debt(self) -> int:
        """Pages of all who are paused and must come back, resident still or not."""
        pages = self.world.queues.dueline.mapped + sum(t.space.mapped for t in self.leaving())
        return pages - sum(task.space.mapped for task in self.resume.values())

    def count_decodes(self) -> int:
        """Decodes of the run list that run."""
        return len(self.world.queues.runlist.decodes) - len(self.resting) if self.decoding else 0

    def count_sequences(self) -> int:
        """Sequences of the step so far."""
        return self.count_decodes() + len(self.run)

    def count_tokens(self) -> int:
        """Tokens of the step so far."""
        return self.count_decodes() + sum(self.run.values())

    def tokens_left(self) -> int:
        """Of the step's budget, with everyone admitted or resumed so far taking all it can."""
        used = self.count_tokens()
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
        if pid in self.world.queues.runlist.decodes:
            self.resting[pid] = task
        self.horizon = None

    def keep_ceiling(self, task: Task) -> bool:
        """Whether its tenant may bring it in beside its others: all that run, grown as far as they
        may, have room below the tenant's ceiling, so that none of them is ever stopped for it. Its
        held ones make way."""
        tenant = task.entity.tenant
        ceiling = self.world.memory.frame_ceilings.get(tenant)
        if ceiling is None:
            return True
        queues, most = self.world.queues, self.world.most_pages
        moving = (other for other in queues.moving.values() if other.space.active)
        here = chain(self.ready(), moving, self.resume.values(), self.admit.values())
        others = [most(other) for other in here if other.entity.tenant == tenant]
        over = sum(others) + most(task) - ceiling
        if over > 0 and others:  # alone it goes on, though the ceiling was lowered since
            return False
        held = [other for other in queues.held.values() if other.entity.tenant == tenant]
        over += sum(most(other) for other in held if other.entity.pid not in self.pause)
        for other in held:
            if over > 0 and other.entity.pid not in self.pause:
                over -= most(other)
                self.do_pause(other, f"ceiling of tenant {tenant}")
        return True

    def do_fetch(self, task: Task) -> bool:
        """If pages of it are in the swap file, they rise first: that needs no frame and displaces
        nobody. Returns whether that is so."""
        if not self.world.memory.file_blocks or not task.space.deep:
            return False
        self.fetch[task.entity.pid] = task
        return True

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
        decodes = self.world.queues.runlist.pids if self.decoding else ()
        if self.resting:
            decodes = tuple(pid for pid in decodes if pid not in self.resting)
        return Plan(
            refuse=tuple(self.refuse.values()),
            pause=tuple(self.pause.values()),
            fetch=tuple(self.fetch),
            resume=tuple(self.resume),
            admit=tuple(self.admit),
            decodes=decodes,
            chunks=tuple(Run(pid, tokens) for pid, tokens in self.run.items()),
            wake_s=wake_s,
        )
