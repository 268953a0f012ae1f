"""The scheduler as the kernel calls it: queues, feedback from what happened, and plans.

`plan` decides from (queues, memory, now) and changes nothing but two fields of the controllers:
`pressure` is set if the plan found a shortage, `working_set_pages` to what it counted. Asking
again with less memory is therefore free. All other methods only record.
"""

from collections.abc import Iterable, Iterator

import msgspec

from tokenix.mm.ids import Pid
from tokenix.sched import levels, reader
from tokenix.sched.controllers import Controllers
from tokenix.sched.entity import SchedEntity, Task
from tokenix.sched.giants import find_aside
from tokenix.sched.plan import Plan, Refuse
from tokenix.sched.planner import draft_plan, wake_time_s
from tokenix.sched.policy import Policy
from tokenix.sched.queues import Queue, Queues
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables
from tokenix.sched.view import MemoryView
from tokenix.sched.world import World, find_trickle


class Scheduler:
    def __init__(self, policy: Policy, tunables: Tunables, rates: Rates) -> None:
        self.policy = policy
        self.tunables = tunables
        """Replaced as a whole by sysctl; takes effect with the next call."""
        self.rates = rates
        self.controllers = Controllers()
        self.queues = Queues()
        self.waiting: dict[Pid, Task] = self.queues.waiting
        self.ready: dict[Pid, Task] = self.queues.ready
        self.held: dict[Pid, Task] = self.queues.held
        self.paused: dict[Pid, Task] = self.queues.paused
        self.moving: dict[Pid, Task] = self.queues.moving
        self._total_frames = 0

    # ---- queues -------------------------------------------------------------------------------

    def enqueue(self, task: Task, queue: Queue) -> None:
        """Move `task` to `queue`, from wherever it is."""
        self.queues.put(task, queue)

    def remove(self, task: Task) -> None:
        """Forget `task`; harmless if it is in no queue."""
        self.queues.drop(task)

    def note_changed(self, task: Task) -> None:
        """Something of its constants (nice, max_tokens, deadline) was changed by a call."""
        self.queues.touch(task)

    # ---- decisions ----------------------------------------------------------------------------

    def check_arrival(self, task: Task, memory: MemoryView, now_s: float) -> Refuse | None:
        """Whether a newcomer is refused at once (EAGAIN). Call it before `enqueue`."""
        if not self.policy.arrival_checks:
            return None
        self.queues.shares.mark(task.entity)
        world = self._world(memory, now_s)
        for check in self.policy.arrival_checks:
            refusal = check(world, task)
            if refusal is not None:
                self.queues.shares.note_refused(task.entity.qos, now_s, self.tunables)
                return refusal
        return None

    def plan(self, memory: MemoryView, now_s: float) -> Plan:
        """The next step. Call it only when no forward is in flight."""
        self._total_frames = memory.total_frames
        draft = draft_plan(self._world(memory, now_s), self.policy)
        self.controllers.note_plan(draft.pressure, draft.load)
        return draft.close(wake_time_s(draft))

    def lead_s(self, task: Task, now_s: float) -> float:
        """Seconds until the reader of `task` notices a pause; inf for batch."""
        return reader.lead_s(task.entity, now_s, self.tunables, self.rates)

    def place(self, task: Task, now_s: float) -> levels.Placement:
        """Level, quantum left and reason at `now_s`; changes nothing."""
        return levels.place(task.entity, now_s, self.tunables, self.rates)

    def queue_position(self, task: Task) -> int | None:
        """How many newcomers are before it, by the order of the last decision; None: it does not
        wait for its first frames."""
        if self.queues.home.get(task.entity.pid) is not Queue.WAITING:
            return None
        return self.queues.waitlist.count_ahead(task.entity.pid)

    def peek_waiting(self) -> Iterator[Task]:
        """Newcomers in the order of the last decision."""
        for pid in self.queues.waitlist.peek_newcomers():
            task = self.waiting.get(pid)
            if task is not None:
                yield task

    def peek_paused(self) -> Iterator[Task]:
        """Those paused, by when they are owed something, as the last decision found them."""
        for pid in self.queues.dueline.peek_line():
            task = self.paused.get(pid)
            if task is not None:
                yield task

    def target_s(self, task: Task) -> float:
        """Within which a newcomer should have its first token."""
        return self.tunables.target_s(task.entity.qos)

    # ---- feedback -----------------------------------------------------------------------------

    def note_step(self, started_s: float, now_s: float, prefill_tokens: int, decodes: int) -> None:
        """A forward finished: learn the rates, let the controllers act."""
        self.rates.note_step(now_s - started_s, prefill_tokens, decodes, self.tunables)
        self.queues.note_forward(now_s, self.tunables, self.rates)
        self.controllers.note_step(now_s, self._total_frames, self.tunables)
        if self.policy.reserves_outputs and decodes and not prefill_tokens:
            self.controllers.note_decode_step(self.tunables)

    def note_delivered(self, task: Task, now_s: float, tokens: int) -> None:
        """`tokens` of output reached its pipe."""
        if task.entity.first_token_s is None:
            self.queues.touch(task)
        reader.note_delivered(task.entity, now_s, tokens, self.tunables)

    def note_decoded(self, tasks: Iterable[Task], now_s: float) -> None:
        """Each of the tasks, all past their first token, was delivered one more token."""
        reader.note_decoded(tasks, now_s, self.tunables)

    def note_read(self, taken: Iterable[tuple[Task, int]], now_s: float) -> None:
        """The clients of these tasks took so many tokens from their pipes."""
        for task, tokens in reader.note_followed(taken, now_s):
            entity = task.entity
            rate = reader.rate_of(entity)
            reader.note_read(entity, now_s, tokens, self.tunables)
            learnt = reader.rate_of(entity)
            differs = learnt != rate and reader.pace_of(learnt) != reader.pace_of(rate)
            if differs or entity.pid in self.paused:
                self.queues.touch(task)

    def note_paused(self, task: Task, now_s: float) -> None:
        """A pause of the plan was carried out."""
        reader.note_paused(task.entity, now_s, self.tunables)
        self.queues.touch(task)
        if self.policy.reserves_outputs:
            others = [t for pid, t in self.ready.items() if pid != task.entity.pid]
            self.controllers.note_retraction(others, self.tunables)

    def note_resumed(self, task: Task, now_s: float) -> None:
        """It is ready again, with all its pages (or with none, to be recomputed)."""
        reader.note_resumed(task.entity, task.space.computed, now_s, self.tunables)

    def restart_turn(self, task: Task, now_s: float) -> None:
        """New input after a finished turn: it is again before its first token."""
        reader.restart_turn(task.entity, now_s)
        self.queues.touch(task)

    def inherit(self, parent: SchedEntity, child: SchedEntity) -> None:
        """A fork continues where its parent stands."""
        reader.inherit(parent, child)

    def revive(
        self, entity: SchedEntity, delivered: int, read: int, read_rate: float, now_s: float
    ) -> None:
        """A process of an image: its reader begins to wait now."""
        reader.revive(entity, delivered, read, read_rate, now_s)

    # ---- inside -------------------------------------------------------------------------------

    def _world(self, memory: MemoryView, now_s: float) -> World:
        """All that a decision depends on, the books brought up to date."""
        world = World(
            queues=self.queues,
            memory=memory,
            now_s=now_s,
            tunables=self.tunables,
            rates=self.rates,
            eta=self.controllers.eta,
            new_token_ratio=self.controllers.ratio(self.tunables),
        )
        self.queues.settle(world, self.policy)
        trickle = find_trickle(self.queues, now_s, self.tunables)
        aside = find_aside(world) if self.policy.sets_aside else {}
        if trickle is None and not aside:
            return world
        return msgspec.structs.replace(world, trickle=trickle, aside=aside)
