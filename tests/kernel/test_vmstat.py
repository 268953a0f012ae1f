"""`vmstat` tells of all and looks at few: what it costs does not grow with the crowd."""

import sys
from collections.abc import Callable
from typing import Any

from tokenix.kernel.calls import Kill, Signal, Spawn
from tokenix.kernel.params import Params
from tokenix.kernel.snapshot import vmstat
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos
from tokenix.sched.tunables import Tunables
from tokenix.tests.sim.machine import SimMachine

PATIENT = Tunables(queue_limit=10_000, target_stream_s=1e5, target_batch_s=1e5, target_idle_s=1e5)


def machine_with(processes: int) -> SimMachine:
    """Four run, the others wait, a quarter of them stopped."""
    machine = SimMachine(64, 64, params=Params(), tunables=PATIENT, audit_every_step=False)
    for at in range(processes):
        pid = machine.call(Spawn((1, 2, 3), max_tokens=5, qos=Qos.BATCH if at % 2 else Qos.STREAM))
        if at % 4 == 3:
            machine.call(Kill(pid, Signal.STOP))
    return machine


class Unlooked(dict[Pid, Any]):
    """Nobody goes through it."""

    def __iter__(self) -> Any:
        raise AssertionError("all were looked at")

    def values(self) -> Any:
        raise AssertionError("all were looked at")

    items = values


def count_calls(work: Callable[[], object]) -> int:
    """Of Python's functions and of those in C."""
    calls = 0

    def note(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_nobody_is_gone_through() -> None:
    machine = machine_with(40)
    kernel = machine.kernel
    expected = vmstat(kernel)
    kernel.processes = Unlooked(kernel.processes)
    kernel.zombies = Unlooked(kernel.zombies)
    kernel.scheduler.waiting = kernel.scheduler.queues.waiting = Unlooked(kernel.scheduler.waiting)
    assert vmstat(kernel) == expected


def test_a_crowd_costs_no_more_calls_than_a_few() -> None:
    few, many = (machine_with(number).kernel for number in (40, 400))
    assert vmstat(many)["processes.new"] > vmstat(few)["processes.new"] + 300
    spent = count_calls(lambda: vmstat(few))
    assert spent > 100, "calls are counted"
    assert count_calls(lambda: vmstat(many)) <= 1.1 * spent


def test_what_is_counted_is_what_there_is() -> None:
    machine = machine_with(40)
    kernel = machine.kernel
    states = [process.state.value for process in kernel.processes.values()]
    figures = vmstat(kernel)
    for state in set(states):
        assert figures[f"processes.{state}"] == states.count(state), state
    waiting = [task.entity for task in kernel.scheduler.waiting.values()]
    for qos in (Qos.STREAM, Qos.BATCH):
        since_s = [each.waiting_since_s for each in waiting if each.qos is qos]
        assert since_s, "the queue is not empty"
        assert figures[f"waiting.{qos.name.lower()}"] == len(since_s)
        assert figures[f"waiting.{qos.name.lower()}_oldest_s"] == kernel.now_s - min(since_s)
