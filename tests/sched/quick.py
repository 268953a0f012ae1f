"""A machine for workloads of hundreds of processes: pages are counted, not kept.

As `fakes.Machine` in what it promises, cheaper by far: of each process it knows how many pages are
mapped, resident and clean. Both directions of the link are queues of their own.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, SchedEntity
from tokenix.sched.plan import PauseMode, Plan
from tokenix.sched.policies import POLICIES
from tokenix.sched.policy import Policy
from tokenix.sched.queues import Queue
from tokenix.sched.rates import Rates
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.sched.view import MemoryView
from tokenix.tests.sched.fakes import PAGE, FakeSpace, entity


@dataclass(eq=False)
class QuickTask:
    entity: SchedEntity
    space: FakeSpace
    length: int
    clean: int = 0
    leaving: int = 0
    outputs: int = 0
    first_s: float | None = None
    late_s: float = 0.0
    """How much later than its true reader's deadline a token came, at most."""
    true_rate: float = 10.0
    true_due_s: float = 0.0

    @property
    def todo_tokens(self) -> int:
        return self.length - self.space.computed


@dataclass
class Outcome:
    """What became of a workload."""

    tasks: list[QuickTask]
    refused: dict[Pid, float]
    pauses: int = 0
    recomputed: int = 0
    now_s: float = 0.0

    def good(self, target_s: float = 1.0) -> float:
        """Share that was answered in time and never stalled by more than half a second."""
        good = [
            t.first_s is not None and t.first_s - t.entity.arrival_s <= target_s and t.late_s <= 0.5
            for t in self.tasks
        ]
        return sum(good) / len(good)

    def stalled(self) -> float:
        """Share whose reader had to wait visibly."""
        late = [t.late_s > 0.5 and t.entity.qos < Qos.BATCH for t in self.tasks]
        return sum(late) / len(late)

    def ttft_s(self, share: float) -> float:
        """Quantile over those that were served."""
        times = sorted(t.first_s - t.entity.arrival_s for t in self.tasks if t.first_s is not None)
        return times[min(len(times) - 1, int(share * len(times)))]


@dataclass
class Quick:
    policy: Policy | str
    tasks: list[QuickTask]
    frames: int
    host: int
    page_s: float = 2e-5
    base_s: float = 0.015
    prefill_per_s: float = 20_000.0
    tunables: Tunables = field(default_factory=Tunables)
    reads: bool = False
    """Clients read at their true rate and the kernel is told (read credits)."""
    now_s: float = 0.0

    def __post_init__(self) -> None:
        policy = POLICIES[self.policy] if isinstance(self.policy, str) else self.policy
        self.sched = Scheduler(policy, self.tunables, Rates(self.base_s, self.prefill_per_s))
        self.free, self.slots, self.outgoing = self.frames, 0, 0
        self.out_s = self.in_s = 0.0
        self.events: list[tuple[float, int, QuickTask]] = []
        self.serial = 0
        self.leaving: list[Pid] = []
        self.result = Outcome(self.tasks, {})
        self.by_pid = {t.entity.pid: t for t in self.tasks}
        self.living: dict[Pid, QuickTask] = {}
        by_time = sorted(self.tasks, key=lambda t: (t.entity.arrival_s, t.entity.pid))
        self.arrivals = deque(by_time)
        self.had: dict[str, float] = {}
        """Service by class and by tenant: prompt tokens and twice the outputs."""

    def view(self) -> MemoryView:
        idle = sum(t.space.idle_resident for t in self.living.values())
        donors = sum(t.clean for t in self.living.values() if t.space.active)
        return MemoryView(
            page_tokens=PAGE, total_frames=self.frames, free_frames=self.free, cached_frames=idle,
            outgoing_frames=self.outgoing, host_slots=self.host,
            host_free_slots=self.host - self.slots + donors,
            in_s_per_page=self.page_s, out_s_per_page=self.page_s,
            in_queue_s=max(0.0, self.in_s - self.now_s),
            swap=self.host > 0, upsets=0,
        )  # fmt: skip

    def take(self, frames: int) -> None:
        """Frames from the pool, then from the paused that are due last."""
        if frames > self.free:
            idle = [t for t in self.living.values() if t.space.idle_resident]
            idle.sort(key=lambda t: (-t.entity.due_s, t.entity.pid))
            for task in idle:
                gone = min(frames - self.free, task.space.idle_resident)
                task.space.idle_resident -= gone
                task.space.missing += gone
                self.free += gone
                if frames <= self.free:
                    break
        assert frames <= self.free, "the plan promised frames that are not there"
        self.free -= frames

    def grow(self, task: QuickTask, pages: int) -> None:
        more = max(0, pages - task.space.mapped)
        self.take(more)
        task.space.mapped += more
        self.count(task)

    def count(self, task: QuickTask) -> None:
        space = task.space
        space.exclusive = space.mapped if space.active else 0
        space.exclusive_dirty = space.mapped - task.clean if space.active else 0

    def drop_clean(self, task: QuickTask, clean: int) -> None:
        self.slots -= task.clean - clean
        task.clean = clean

    def later(self, when_s: float, task: QuickTask) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when_s, self.serial, task))

    def pause(self, task: QuickTask, mode: PauseMode) -> None:
        space = task.space
        self.result.pauses += 1
        self.sched.note_paused(task, self.now_s)
        space.active = False
        dirty = space.mapped - task.clean
        if mode is PauseMode.SWAP and self.slots + dirty > self.host:
            self.take_donors(self.slots + dirty - self.host)
        keep = mode is PauseMode.SWAP and self.slots + dirty <= self.host
        if not keep:
            clean = task.clean if mode is PauseMode.SWAP else 0
            self.free += space.mapped - clean
            self.drop_clean(task, clean)
            self.result.recomputed += max(0, space.computed - clean * PAGE)
            space.mapped, space.computed, dirty = clean, min(space.computed, clean * PAGE), 0
        space.idle_resident, space.missing = space.mapped - dirty, 0
        self.count(task)
        self.slots += dirty
        task.leaving, task.clean = dirty, space.mapped
        self.sched.enqueue(task, Queue.MOVING if dirty else Queue.PAUSED)
        if dirty:
            self.outgoing += dirty
            self.out_s = max(self.out_s, self.now_s) + dirty * self.page_s
            self.later(self.out_s, task)

    def take_donors(self, want: int) -> None:
        """Host copies of pages that are resident anyway, of whoever has least lead first; the
        plan counts on those of its own victims."""
        running = [t for t in self.living.values() if t.space.active and t.clean]
        donors = [t for t in running if t.entity.pid not in self.leaving]
        donors.sort(key=lambda t: (t.entity.due_s, t.entity.pid))
        for donor in donors:
            gone = min(want, donor.clean)
            self.drop_clean(donor, donor.clean - gone)
            self.count(donor)
            want -= gone
            if want <= 0:
                return

    def resume(self, task: QuickTask) -> None:
        space = task.space
        missing = space.missing
        space.active = True
        space.missing = space.idle_resident = 0
        self.take(missing)
        self.grow(task, -(-task.length // PAGE) + 1)
        self.drop_clean(task, min(task.clean, space.computed // PAGE))
        self.count(task)
        if missing:
            self.sched.enqueue(task, Queue.MOVING)
            self.in_s = max(self.in_s, self.now_s) + missing * self.page_s
            self.later(self.in_s, task)
        else:
            self.ready(task)

    def ready(self, task: QuickTask) -> None:
        self.sched.enqueue(task, Queue.READY)
        self.sched.note_resumed(task, self.now_s)

    def complete(self) -> None:
        while self.events and self.events[0][0] <= self.now_s:
            _, _, task = heapq.heappop(self.events)
            if task.space.active:
                self.ready(task)
            else:
                self.outgoing -= task.leaving
                task.space.idle_resident += task.leaving
                task.leaving = 0
                self.sched.enqueue(task, Queue.PAUSED)

    def execute(self, plan: Plan) -> bool:
        for refuse in plan.refuse:
            self.sched.remove(self.by_pid[refuse.pid])
            self.result.refused[refuse.pid] = self.now_s
            del self.living[refuse.pid]
        self.leaving = [pause.pid for pause in plan.pause]
        for pause in plan.pause:
            self.pause(self.by_pid[pause.pid], pause.mode)
        for pid in plan.resume:
            self.resume(self.by_pid[pid])
        for pid in plan.admit:
            task = self.by_pid[pid]
            task.space.active = True
            self.grow(task, -(-task.length // PAGE) + 1)
            self.ready(task)
        prefill = decodes = 0
        for run in plan.run:
            task = self.by_pid[run.pid]
            decodes += task.todo_tokens == 1
            prefill += run.tokens if task.todo_tokens > 1 else 0
            self.grow(task, -(-(task.space.computed + run.tokens) // PAGE))
        if not plan.run:
            return False
        began = self.now_s
        self.now_s += self.base_s + prefill / self.prefill_per_s
        self.sched.note_step(began, self.now_s, prefill, decodes)
        for run in plan.run:
            self.advance(self.by_pid[run.pid], run.tokens)
        self.write_behind(self.now_s - began)
        if self.reads:
            self.read()
        return True

    def advance(self, task: QuickTask, tokens: int) -> None:
        space, who = task.space, task.entity
        space.computed += tokens
        if space.computed < task.length:
            return
        task.length += 1
        task.outputs += 1
        for name in (who.qos.name, who.tenant):
            self.had[name] = self.had.get(name, 0.0) + 2
            self.had[name] += who.prompt_tokens if task.outputs == 1 else 0
        if task.first_s is None:
            task.first_s = task.true_due_s = self.now_s
        task.late_s = max(task.late_s, self.now_s - task.true_due_s)
        task.true_due_s = max(task.true_due_s, self.now_s) + 1 / task.true_rate
        self.sched.note_delivered(task, self.now_s, 1)
        if task.outputs >= who.max_tokens:
            self.sched.remove(task)
            self.free += space.mapped
            self.drop_clean(task, 0)
            del self.living[who.pid]

    def read(self) -> None:
        """What each client has taken by now, at its true rate."""
        for task in self.living.values():
            if task.outputs:
                unread = max(0, int((task.true_due_s - self.now_s) * task.true_rate))
                taken = task.outputs - unread - task.entity.read_tokens
                if taken > 0:
                    self.sched.note_read([(task, taken)], self.now_s)

    def write_behind(self, passed_s: float) -> None:
        budget = int((passed_s - max(0.0, self.out_s - self.now_s)) / self.page_s)
        room = self.host // 2 - self.slots
        budget = min(budget, room)
        for task in list(self.living.values()):
            if budget <= 0:
                return
            full = task.space.computed // PAGE
            if task.space.active and task.outputs and full > task.clean:
                more = min(budget, full - task.clean)
                task.clean += more
                self.slots += more
                budget -= more
                self.count(task)

    def run(self, until_s: float = 1e9, limit: int = 100_000) -> Outcome:
        """To the end of the workload, or to `until_s`."""
        arrivals, idle = self.arrivals, 0
        while (arrivals or self.living) and self.now_s < until_s:
            limit -= 1
            assert limit > 0, "no end in sight"
            self.complete()
            while arrivals and arrivals[0].entity.arrival_s <= self.now_s:
                task = arrivals.popleft()
                if self.sched.check_arrival(task, self.view(), self.now_s):
                    self.result.refused[task.entity.pid] = self.now_s
                else:
                    self.sched.enqueue(task, Queue.WAITING)
                    self.living[task.entity.pid] = task
            plan = self.sched.plan(self.view(), self.now_s)
            if self.execute(plan):
                idle = 0
                continue
            idle += 1
            assert idle < 60, "plans without work"
            times = [self.events[0][0]] if self.events else []
            times += [arrivals[0].entity.arrival_s] if arrivals else []
            times += [plan.wake_s] if plan.wake_s is not None else []
            if times:
                self.now_s = max(self.now_s, min(times))
            else:
                assert not self.living, "stuck"
        self.result.now_s = self.now_s
        return self.result


def quick_task(pid: int, prompt: int, outputs: int, **fields: object) -> QuickTask:
    made = entity(pid, prompt_tokens=prompt, max_tokens=outputs, **fields)
    return QuickTask(made, FakeSpace(active=False), prompt, true_rate=made.reader.tokens_per_s)


def chat(seed: int, count: int, per_s: float, **fields: object) -> list[QuickTask]:
    """Poisson arrivals of chat: prompts of some hundred tokens, some much longer, answers alike."""
    rng = random.Random(seed)
    at_s, tasks = 0.0, []
    for pid in range(1, count + 1):
        at_s += rng.expovariate(per_s)
        prompt = min(6000, int(rng.lognormvariate(5.8, 1.0)) + 8)
        outputs = min(1500, int(rng.lognormvariate(5.0, 0.8)) + 4)
        tasks.append(quick_task(pid, prompt, outputs, arrival_s=at_s, **fields))
    return tasks
