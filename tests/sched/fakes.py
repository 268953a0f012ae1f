"""A machine for the scheduler's tests: tasks whose pages are two flags each, no sharing."""

import math
from dataclasses import dataclass, field

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader, SchedEntity, Task
from tokenix.sched.plan import PauseMode, Plan
from tokenix.sched.policies import POLICIES
from tokenix.sched.queues import Queue
from tokenix.sched.rates import Rates
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.sched.view import MemoryView
from tokenix.sched.world import count_pages


@dataclass
class FakeSpace:
    """An address space by numbers; tests set what they mean."""

    computed: int = 0
    active: bool = True
    mapped: int = 0
    missing: int = 0
    exclusive: int = 0
    exclusive_dirty: int = 0
    idle_resident: int = 0
    deep: int = 0


@dataclass
class FakeTask:
    entity: SchedEntity
    space: FakeSpace
    length: int

    @property
    def todo_tokens(self) -> int:
        return max(1, self.length - self.space.computed)


PAGE = 16


def entity(pid: int, **fields: object) -> SchedEntity:
    values: dict[str, object] = {
        "pid": Pid(pid),
        "qos": Qos.STREAM,
        "nice": 0,
        "tenant": "root",
        "arrival_s": 0.0,
        "prompt_tokens": 64,
        "max_tokens": 1000,
        "reader": Reader(),
    }
    return SchedEntity(**(values | fields))  # type: ignore[arg-type]


def newcomer(pid: int, prompt: int = 64, arrival_s: float = 100.0, **fields: object) -> FakeTask:
    """A process without frames."""
    made = entity(pid, prompt_tokens=prompt, arrival_s=arrival_s, **fields)
    return FakeTask(made, FakeSpace(active=False), prompt)


def stream(
    pid: int,
    pages: int = 10,
    lead_s: float = 5.0,
    now_s: float = 100.0,
    dirty: int = 1,
    full: bool = False,
    **fields: object,
) -> FakeTask:
    """A decode with `pages` pages at time `now_s`; `full`: its next token needs a page."""
    made = entity(pid, prompt_tokens=pages * PAGE // 2, **fields)
    made.first_token_s = 1.0
    made.delivered_tokens = 100
    made.due_s = now_s + lead_s
    computed = pages * PAGE - (0 if full else 3)
    space = FakeSpace(computed, True, pages, 0, pages, dirty)
    return FakeTask(made, space, computed + 1)


def prefilling(pid: int, prompt: int, done: int = 0, **fields: object) -> FakeTask:
    """Admitted, in the middle of its prompt."""
    made = entity(pid, prompt_tokens=prompt, **({"arrival_s": 99.9} | fields))
    pages = count_pages(prompt, PAGE) + 1
    return FakeTask(made, FakeSpace(done, True, pages, 0, pages, pages), prompt)


def paused(
    pid: int, pages: int = 10, idle: int = 0, lead_s: float = 5.0, **fields: object
) -> FakeTask:
    """A stream that was paused; `idle` of its pages are still on the device."""
    task = stream(pid, pages, lead_s, **fields)  # type: ignore[arg-type]
    task.space = FakeSpace(task.space.computed, False, pages, pages - idle, 0, 0, idle)
    return task


def memory(total: int = 100, free: int = 0, **fields: object) -> MemoryView:
    values: dict[str, object] = {
        "page_tokens": PAGE,
        "total_frames": total,
        "free_frames": free,
        "cached_frames": 0,
        "outgoing_frames": 0,
        "host_slots": 10 * total,
        "host_free_slots": 10 * total,
        "in_s_per_page": 1e-4,
        "out_s_per_page": 1e-4,
        "in_queue_s": 0.0,
    }
    return MemoryView(**(values | fields))  # type: ignore[arg-type]


def scheduler(policy: str = "progress", **queues: list[FakeTask]) -> Scheduler:
    """A scheduler with S = 10 ms, F = 10,000 tokens/s and the given queues."""
    made = Scheduler(POLICIES[policy], Tunables(), Rates(0.01, 10_000.0))
    for name, tasks in queues.items():
        for task in tasks:
            made.enqueue(task, Queue(name))
    return made


# ---- a whole machine, for liveness ---------------------------------------------------------


@dataclass
class PageFlags:
    resident: bool = True
    clean: bool = False
    leaving: bool = False


@dataclass
class SimSpace:
    pages: list[PageFlags] = field(default_factory=list)
    computed: int = 0
    active: bool = False

    @property
    def mapped(self) -> int:
        return len(self.pages)

    @property
    def deep(self) -> int:
        return 0

    @property
    def missing(self) -> int:
        return sum(not p.resident for p in self.pages)

    @property
    def exclusive(self) -> int:
        return sum(p.resident for p in self.pages) if self.active else 0

    @property
    def exclusive_dirty(self) -> int:
        return sum(p.resident and not p.clean for p in self.pages) if self.active else 0

    @property
    def idle_resident(self) -> int:
        return 0 if self.active else sum(p.resident for p in self.pages)


@dataclass
class SimTask:
    entity: SchedEntity
    space: SimSpace
    length: int

    @property
    def todo_tokens(self) -> int:
        return self.length - self.space.computed

    @property
    def outputs(self) -> int:
        return self.length - self.entity.prompt_tokens


@dataclass
class Machine:
    """Carries plans out in virtual time. Pages are private; a copied-out page stays resident and
    is cached until somebody takes its frame."""

    sched: Scheduler
    tasks: list[SimTask]
    total: int
    page_tokens: int = 4
    host: int = 0
    page_s: float = 0.001
    prefill_per_s: float = 1000.0
    write_behind: bool = True
    now_s: float = 0.0
    copies: list[tuple[float, SimTask]] = field(default_factory=list)
    done: dict[Pid, float] = field(default_factory=dict)
    refused: dict[Pid, float] = field(default_factory=dict)
    plans: int = 0
    pauses: int = 0
    holds: dict[Pid, tuple[int, float]] = field(default_factory=dict)
    """pid -> (hold it after that many outputs, for so many seconds)."""
    held_until: list[tuple[float, SimTask]] = field(default_factory=list)
    input_tokens: int = 0
    """Tokens of new input that a held process gets when it goes on; 0: it was only stopped."""

    def used(self) -> int:
        return sum(p.resident for t in self.tasks for p in t.space.pages)

    def slots(self) -> int:
        return sum(p.clean or p.leaving for t in self.tasks for p in t.space.pages)

    def donors(self) -> list[PageFlags]:
        """Pages of running processes whose host copies may be dropped."""
        running = [t for t in self.tasks if t.space.active]
        return [p for t in running for p in t.space.pages if p.clean and p.resident]

    def view(self) -> MemoryView:
        idle = [p for t in self.tasks if not t.space.active for p in t.space.pages if p.resident]
        donors = self.donors()
        return MemoryView(
            page_tokens=self.page_tokens,
            total_frames=self.total,
            free_frames=self.total - self.used(),
            cached_frames=sum(p.clean for p in idle),
            outgoing_frames=sum(not p.clean for p in idle),
            host_slots=self.host,
            host_free_slots=self.host - self.slots() + len(donors),
            in_s_per_page=self.page_s,
            out_s_per_page=self.page_s,
            in_queue_s=0.0,
            swap=self.host > 0,
            upsets=0,
        )

    def take_frames(self, count: int) -> None:
        """Free frames first, then clean pages of the paused, latest deadline first."""
        short = count - (self.total - self.used())
        victims = [t for t in self.tasks if not t.space.active]
        victims.sort(key=lambda t: (-t.entity.due_s, t.entity.pid))
        for task in victims:
            for page in task.space.pages:
                if short > 0 and page.resident and page.clean:
                    page.resident = False
                    short -= 1
        assert short <= 0, "the plan promised frames that are not there"

    def map_to(self, task: SimTask, pages: int) -> None:
        new = max(0, pages - task.space.mapped)
        self.take_frames(new)
        task.space.pages += [PageFlags() for _ in range(new)]

    def whole(self, task: SimTask) -> int:
        return count_pages(task.length, self.page_tokens) + 1

    def execute(self, plan: Plan) -> bool:
        """Carry `plan` out; whether anything ran."""
        by_pid = {t.entity.pid: t for t in self.tasks}
        for refuse in plan.refuse:
            self.refused[refuse.pid] = self.now_s
            self.sched.remove(by_pid[refuse.pid])
        for pause in plan.pause:
            self.do_pause(by_pid[pause.pid], pause.mode)
        for pid in plan.resume:
            self.do_resume(by_pid[pid])
        for pid in plan.admit:
            task = by_pid[pid]
            task.space.active = True
            self.map_to(task, self.whole(task))
            self.sched.enqueue(task, Queue.READY)
        prefill = decodes = 0
        for run in plan.run:
            task = by_pid[run.pid]
            assert run.pid in self.sched.ready, "only the ready run"
            assert 0 < run.tokens <= task.todo_tokens
            decodes += task.todo_tokens == 1
            prefill += run.tokens if task.todo_tokens > 1 else 0
            after = count_pages(task.space.computed + run.tokens, self.page_tokens)
            self.map_to(task, after)
        if not plan.run:
            return False
        started = self.now_s
        self.now_s += 0.01 + prefill / self.prefill_per_s
        self.sched.note_step(started, self.now_s, prefill, decodes)
        for run in plan.run:
            self.advance(by_pid[run.pid], run.tokens)
        return True

    def do_pause(self, task: SimTask, mode: PauseMode) -> None:
        self.pauses += 1
        was_held = task.entity.pid in self.sched.held
        space = task.space
        self.sched.note_paused(task, self.now_s)
        space.active = False
        if mode is PauseMode.RECOMPUTE:
            space.pages, space.computed = [], 0
            leaving = False
        else:
            leaving = self.copy_out(task)
        if was_held:
            self.sched.remove(task)
        else:
            self.sched.enqueue(task, Queue.MOVING if leaving else Queue.PAUSED)
        if leaving:
            dirty = sum(p.leaving for p in space.pages)
            self.copies.append((self.now_s + dirty * self.page_s, task))

    def copy_out(self, task: SimTask) -> bool:
        """Give each dirty page a slot, from running processes if need be; the rest is dropped."""
        space = task.space
        donors = self.donors()
        for index, page in enumerate(space.pages):
            if page.resident and not page.clean:
                if self.slots() == self.host and donors:
                    donors.pop().clean = False
                if self.slots() == self.host:
                    del space.pages[index:]
                    space.computed = min(space.computed, index * self.page_tokens)
                    break
                page.leaving = True
        return any(p.leaving for p in space.pages)

    def do_resume(self, task: SimTask) -> None:
        space = task.space
        assert task.entity.pid in self.sched.paused
        space.active = True
        missing = space.missing
        for page in space.pages:
            if not page.resident:
                self.take_frames(1)
                page.resident = True
        self.map_to(task, self.whole(task))
        if missing:
            self.sched.enqueue(task, Queue.MOVING)
            self.copies.append((self.now_s + missing * self.page_s, task))
        else:
            self.sched.enqueue(task, Queue.READY)
            self.sched.note_resumed(task, self.now_s)

    def advance(self, task: SimTask, tokens: int) -> None:
        space = task.space
        space.computed += tokens
        full = space.computed // self.page_tokens
        for index, page in enumerate(space.pages):
            room = self.slots() < self.host // 2
            page.clean = index < full and (page.clean or (self.write_behind and room))
        if space.computed < task.length:
            return
        task.length += 1
        self.sched.note_delivered(task, self.now_s, 1)
        pid = task.entity.pid
        if task.outputs >= task.entity.max_tokens:
            self.done[pid] = self.now_s
            self.sched.remove(task)
            space.pages, space.active = [], False
        elif pid in self.holds and task.outputs >= self.holds[pid][0]:
            self.held_until.append((self.now_s + self.holds.pop(pid)[1], task))
            self.sched.enqueue(task, Queue.HELD)

    def complete(self) -> None:
        """Copies and stops that are over by now."""
        for when, task in [c for c in self.copies if c[0] <= self.now_s]:
            self.copies.remove((when, task))
            for page in task.space.pages:
                page.clean |= page.leaving
                page.leaving = False
            if task.space.active:
                self.sched.enqueue(task, Queue.READY)
                self.sched.note_resumed(task, self.now_s)
            elif not any(t is task for _, t in self.held_until):
                self.sched.enqueue(task, Queue.PAUSED)
        for when, task in [h for h in self.held_until if h[0] <= self.now_s]:
            self.held_until.remove((when, task))
            if self.input_tokens:
                self.sched.restart_turn(task, self.now_s)
                task.length += self.input_tokens
                task.entity.prompt_tokens += self.input_tokens
            copying = any(t is task for _, t in self.copies)
            queue = Queue.READY if task.space.active else Queue.MOVING if copying else Queue.PAUSED
            self.sched.enqueue(task, queue)

    def finish(self, limit: int = 20_000) -> None:
        """Run until every task is done or refused; fails if nothing can ever happen again."""
        arrivals = sorted(self.tasks, key=lambda t: (t.entity.arrival_s, t.entity.pid))
        idle_plans = 0
        while len(self.done) + len(self.refused) < len(self.tasks):
            self.plans += 1
            assert self.plans < limit, "no end in sight"
            self.complete()
            while arrivals and arrivals[0].entity.arrival_s <= self.now_s:
                task = arrivals.pop(0)
                if self.sched.check_arrival(task, self.view(), self.now_s):
                    self.refused[task.entity.pid] = self.now_s
                else:
                    self.sched.enqueue(task, Queue.WAITING)
            before = self.view()
            plan = self.sched.plan(before, self.now_s)
            if self.execute(plan):
                idle_plans = 0
                continue
            idle_plans += 1
            assert idle_plans < 50, "plans without work"
            times = [when for when, _ in (*self.copies, *self.held_until)]
            times += [arrivals[0].entity.arrival_s] if arrivals else []
            times += [plan.wake_s] if plan.wake_s is not None else []
            if len(self.done) + len(self.refused) < len(self.tasks):
                assert times, f"stuck: {plan} {self.sched.queues}"
                self.now_s = max(self.now_s, min(times))


def sim_task(pid: int, prompt: int, outputs: int, **fields: object) -> SimTask:
    made = entity(pid, prompt_tokens=prompt, max_tokens=outputs, **fields)
    return SimTask(made, SimSpace(), prompt)


def tasks_of(sched: Scheduler) -> list[Task]:
    return [t for q in Queue for t in sched.queues.of(q).values()]


INF = math.inf
