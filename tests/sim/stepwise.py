"""A simulated device without time: each command ends when a test says so, each queue in order."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenix.drivers.ops import Command, Completion, DeviceFault
from tokenix.drivers.sim import Fault, FaultPlan, SimDevice
from tokenix.drivers.sim.fences import Flight, Queue

Effect = Callable[[], Completion | None]

FAULT_OF = {
    Queue.OUT: "fail_out", Queue.IN: "fail_in", Queue.COMPUTE: "device",
    Queue.STORE: "fail_store", Queue.FETCH: "fail_fetch",
}  # fmt: skip


class Undecided(FaultPlan):
    """Says nothing when a command is submitted: its faults are lists that can be filled later."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[Any] = []

    def take_copy_faults(
        self, command: Literal["out", "in", "store", "fetch"], pages: int
    ) -> list[Fault]:
        self.last = []
        return self.last

    def take_forward_faults(self, pids: list[int]) -> Any:
        self.last = [False, set()]
        return self.last


@dataclass(slots=True)
class Work:
    """A command in a queue."""

    command: Command
    faults: list[Any]
    effects: list[Effect] = field(default_factory=list)
    ticket: int | None = None
    """None: it has no completion."""


class StepwiseDevice(SimDevice):
    """All that a command does happens when it ends; the fences watch from its submission on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._plan = Undecided()
        super().__init__(*args, faults=self._plan, **options)
        self.lines: dict[Queue, deque[Work]] = {queue: deque() for queue in Queue}
        self._command: Command | None = None

    def submit(self, command: Command, now_s: float) -> None:
        self._command = command
        super().submit(command, now_s)

    def peek(self, queue: Queue) -> Command | None:
        """The command of `queue` that ends next and tells so."""
        return next((w.command for w in self.lines[queue] if w.ticket is not None), None)

    def end(self, queue: Queue, fails: bool = False) -> Completion:
        """The next command of `queue` ends, well or not."""
        while True:
            work = self.lines[queue].popleft()
            if fails and work.ticket is not None:
                work.faults[:] = (
                    [True, set()] if queue is Queue.COMPUTE else [Fault(FAULT_OF[queue])]
                )
            told = [effect() for effect in work.effects]
            if work.ticket is not None:
                break
        completion = told[-1]
        assert completion is not None
        assert isinstance(completion, DeviceFault) == (fails and queue is Queue.COMPUTE)
        self.fences.retire(work.ticket)
        return completion

    # ---- instead of time ----

    def _enqueue(self, key: int, flight: Flight, seconds: float) -> tuple[float, float]:
        assert self._command is not None
        self.fences.admit(key, flight)
        self._line = self.lines[flight.queue]
        self._line.append(Work(self._command, self._plan.last))
        return 0.0, 0.0

    def _at(self, at_s: float, effect: Effect) -> None:
        self._line[-1].effects.append(effect)

    def _finish(self, ticket: int, end_s: float, effect: Effect) -> None:
        self._at(end_s, effect)
        self._line[-1].ticket = ticket
