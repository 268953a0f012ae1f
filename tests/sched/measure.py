"""How long the scheduler takes. By hand: `python -m tokenix.tests.sched.measure [scale ...]`.

A machine of fakes with `256 * scale` running, 1,000 waiting and 1,000 paused decodes step by step;
what is timed are the calls of the scheduler only, in three kinds of step:

    steady      decodes only, a sixteenth of them crosses a page
    arrivals    32 newcomers, checked and queued before the plan
    pauses      memory is full: each plan pauses and resumes
"""

import dataclasses
import statistics
import sys
import time

from tokenix.sched.entity import Qos
from tokenix.sched.policies import POLICIES
from tokenix.sched.queues import Queue
from tokenix.sched.rates import Rates
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables
from tokenix.sched.view import MemoryView
from tokenix.tests.sched.fakes import PAGE, FakeTask, memory, newcomer, paused, stream

STEP_S = 0.015


class Bench:
    """Runs plans over tasks whose pages are counted, not mapped."""

    def __init__(self, running: int, waiting: int, sleeping: int, policy: str = "progress") -> None:
        tunables = Tunables(
            max_running=running,
            step_tokens=max(2048, running),
            queue_limit=100_000,
            target_interactive_s=30.0,
            target_stream_s=30.0,
        )
        self.sched = Scheduler(POLICIES[policy], tunables, Rates(STEP_S, 40_000.0))
        self.now_s = 1000.0
        self.pids = 0
        self.free = 0
        self.total = 100 * running
        for _ in range(running):
            pages = 60 + self.pids % 40
            task = stream(self.new_pid(), pages, self.pids * 0.01, self.now_s, dirty=1)
            task.length -= self.pids % PAGE
            task.space.computed -= self.pids % PAGE
            self.sched.enqueue(task, Queue.READY)
        for _ in range(sleeping):
            lead = 1.0 + self.pids % 97 * 0.2
            task = paused(self.new_pid(), 80, 0, lead, now_s=self.now_s)
            self.sched.enqueue(task, Queue.PAUSED)
        for _ in range(waiting):
            self.sched.enqueue(self.newcomer(), Queue.WAITING)

    def new_pid(self) -> int:
        self.pids += 1
        return self.pids

    def newcomer(self) -> FakeTask:
        qos = Qos.BATCH if self.pids % 4 == 0 else Qos.STREAM
        return newcomer(self.new_pid(), 100 + self.pids * 37 % 900, self.now_s, qos=qos)

    def view(self, free: int) -> MemoryView:
        known = {"upsets": 0}
        names = [field.name for field in dataclasses.fields(MemoryView)]
        fields = {name: value for name, value in known.items() if name in names}
        return memory(self.total, free, in_s_per_page=8e-5, **fields)

    def step(self, arrivals: int = 0, free: int = 10**6) -> tuple[float, float, float]:
        """Seconds that (arrivals, plan, feedback) took."""
        new = [self.newcomer() for _ in range(arrivals)]
        view = self.view(free)
        start = time.perf_counter()
        for task in new:
            self.sched.check_arrival(task, view, self.now_s)
            self.sched.enqueue(task, Queue.WAITING)
        arrived = time.perf_counter()
        plan = self.sched.plan(view, self.now_s)
        planned = time.perf_counter()
        ready, sleeping = self.sched.ready, self.sched.paused
        for pause in plan.pause:
            task = ready[pause.pid]
            self.sched.note_paused(task, self.now_s)
            task.space.active, task.space.missing = False, task.space.mapped
            self.sched.enqueue(task, Queue.PAUSED)
        for pid in plan.resume:
            self.bring_in(sleeping[pid])
            self.sched.note_resumed(ready[pid], self.now_s)
        for pid in plan.admit:
            self.bring_in(self.sched.waiting[pid])
        for refuse in plan.refuse:
            self.sched.remove(self.sched.waiting[refuse.pid])
        began, self.now_s = self.now_s, self.now_s + STEP_S
        delivered = []
        for run in plan.run:
            task = ready[run.pid]
            task.space.computed += run.tokens
            task.space.mapped = max(task.space.mapped, -(-task.space.computed // PAGE))
            if task.space.computed == task.length:
                task.length += 1
                delivered.append(task)
        prefill = sum(run.tokens for run in plan.run if run.tokens > 1)
        noted = time.perf_counter()
        self.sched.note_step(began, self.now_s, prefill, len(plan.run))
        for task in delivered:
            self.sched.note_delivered(task, self.now_s, 1)
        return arrived - start, planned - arrived, time.perf_counter() - noted

    def bring_in(self, task: FakeTask) -> None:
        task.space.active, task.space.missing, task.space.idle_resident = True, 0, 0
        task.space.mapped = -(-task.length // PAGE) + 1
        task.space.exclusive = task.space.mapped
        self.sched.enqueue(task, Queue.READY)


def report(name: str, times: list[tuple[float, float, float]]) -> None:
    parts = [f"{1e3 * statistics.median(part):8.3f}" for part in zip(*times, strict=True)]
    worst = 1e3 * max(sum(part) for part in times)
    sys.stdout.write(f"  {name:<10}" + "".join(parts) + f"   worst {worst:.2f}\n")


def main() -> None:
    scales = [float(word) for word in sys.argv[1:]] or [0.1, 1.0, 4.0]
    sys.stdout.write("  ms: arrivals, plan, feedback\n")
    for scale in scales:
        running, waiting = int(256 * scale), int(1000 * scale)
        sys.stdout.write(f"{running} running, {waiting} waiting, {waiting} paused\n")
        bench = Bench(running, waiting, waiting)
        bench.sched.controllers.eta = 0.5
        bench.step()
        report("steady", [bench.step() for _ in range(60)])
        report("arrivals", [bench.step(32) for _ in range(20)])
        bench = Bench(running, waiting, waiting)
        bench.step()
        report("pauses", [bench.step(free=0) for _ in range(40)])
    for running in (16, 256):
        bench = Bench(running, 0, 0)
        bench.step()
        report(f"{running} only", [bench.step() for _ in range(60)])


if __name__ == "__main__":
    main()
