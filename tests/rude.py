"""A scheduler that pauses for no reason: forced preemption, to prove that outputs do not notice."""

import random
from dataclasses import replace

from tokenix.mm.ids import Pid
from tokenix.sched.plan import Pause, PauseMode, Plan
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.view import MemoryView


def force_pauses(plan: Plan, extra: list[Pause], now_s: float) -> Plan:
    """`plan`, but these are paused as well."""
    rude = {pause.pid for pause in extra}
    decodes = tuple(pid for pid in plan.decodes if pid not in rude)
    chunks = tuple(run for run in plan.chunks if run.pid not in rude)
    pause = (*plan.pause, *extra)
    return replace(plan, pause=pause, decodes=decodes, chunks=chunks, wake_s=now_s)


class RudeScheduler(Scheduler):
    """Plans as its base class, but pauses every process after each `every` tokens of progress.

    every: 0 draws a new number of tokens (1..16) each time. modes: what a pause does, drawn anew
    each time. Both from `seed`.
    """

    def __init__(
        self, base: Scheduler, every: int, modes: tuple[PauseMode, ...], seed: int = 0
    ) -> None:
        super().__init__(base.policy, base.tunables, base.rates)
        self._every = every
        self._modes = modes
        self._random = random.Random(seed)
        self._next: dict[Pid, int] = {}
        self.forced = dict.fromkeys(PauseMode, 0)

    def plan(self, memory: MemoryView, now_s: float) -> Plan:
        plan = super().plan(memory, now_s)
        paused = {pause.pid for pause in plan.pause}
        extra: list[Pause] = []
        for pid, task in self.ready.items():
            if pid in paused or task.entity.first_token_s is None:
                continue
            if task.length >= self._next.setdefault(pid, task.length + self._interval()):
                mode = self._random.choice(self._modes)
                extra.append(Pause(pid, mode, "forced"))
                self.forced[mode] += 1
                self._next[pid] = task.length + self._interval()
        return force_pauses(plan, extra, now_s)

    def _interval(self) -> int:
        return self._every or self._random.randint(1, 16)
