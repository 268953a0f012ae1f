"""READY as the planner needs it: decodes that only need their token, those that need a page now,
and everything that has more to compute.

A decode computes one token per forward at most, so the forward at which its last page may be full
is known when it is looked at, and it is not looked at before.
"""

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Task


class RunList:
    def __init__(self, forwards: int = 0) -> None:
        self.decodes: dict[Pid, Task] = {}
        self.growing: dict[Pid, Task] = {}
        """Of `decodes`: the next token needs a page."""
        self.others: dict[Pid, Task] = {}
        """Prefills, and what has nothing to compute."""
        self._pids: tuple[Pid, ...] | None = ()
        self._wheel: dict[int, list[Pid]] = {}
        self.turned = forwards
        """Forwards that have been taken into account."""
        self._page_tokens = 1

    # ---- look only ----

    @property
    def pids(self) -> tuple[Pid, ...]:
        """Of all decodes."""
        if self._pids is None:
            self._pids = tuple(self.decodes)
        return self._pids

    # ---- changes, by queues.py ----

    def take_turned(self, forwards: int) -> list[Task]:
        """Those that may stand elsewhere after so many forwards: a page may be full, or has
        come, or a prefill is over."""
        turned = [task for task in self.growing.values() if not self._needs_page(task)]
        turned += [task for task in self.others.values() if task.todo_tokens == 1]
        for tick in range(self.turned + 1, forwards + 1):
            for pid in self._wheel.pop(tick, ()):
                task = self.decodes.get(pid)
                if task is not None and pid not in self.growing:
                    turned.append(task)
        self.turned = max(self.turned, forwards)
        return turned

    def look_again(self, task: Task, forwards: int) -> bool:
        """Whether `task` is a decode still; it is placed by its page then."""
        pid = task.entity.pid
        if pid not in self.decodes or task.todo_tokens != 1:
            return False
        self.growing.pop(pid, None)
        self._place(task, forwards)
        return True

    def insert(self, task: Task, page_tokens: int, forwards: int) -> None:
        pid = task.entity.pid
        self._page_tokens = page_tokens
        if task.todo_tokens != 1:
            self.others[pid] = task
            return
        self.decodes[pid] = task
        self._pids = None
        self._place(task, forwards)

    def drop(self, pid: Pid) -> None:
        if self.others.pop(pid, None) is not None:
            return
        del self.decodes[pid]
        self.growing.pop(pid, None)
        self._pids = None

    def _place(self, task: Task, forwards: int) -> None:
        if self._needs_page(task):
            self.growing[task.entity.pid] = task
            return
        left = task.space.mapped * self._page_tokens - task.space.computed
        self._wheel.setdefault(forwards + left, []).append(task.entity.pid)

    def _needs_page(self, task: Task) -> bool:
        """Whether the next token has no page."""
        return task.space.computed >= task.space.mapped * self._page_tokens
