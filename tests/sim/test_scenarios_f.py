"""Group F: whoever goes, in whatever state, leaves nothing behind; and of group H."""

import errno
from collections.abc import Callable

import pytest

from tokenix.drivers.sim import CostModel, Fault
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import (
    CancelCall,
    Fork,
    KernelError,
    Kill,
    Principal,
    Signal,
    Spawn,
    Swapon,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.kernel.tiers import no_donors
from tokenix.mm.ids import Pid
from tokenix.mm.reclaim import reclaim
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.conftest import Boot
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(10, 27))


def slow(cache: bool) -> SimMachine:
    """Copies take long enough to be met on their way; computing takes longer."""
    cost = CostModel(prefill_token_s=0.1, in_page_s=0.01, out_page_s=0.01)
    return SimMachine(12, 32, "progress", Params(poison=True, prefix_cache=cache), cost=cost)


def to_new(machine: SimMachine) -> Pid:
    machine.spawn(tuple(range(100, 130)), 10)
    return machine.spawn(PROMPT, 10)


def to_ready(machine: SimMachine) -> Pid:
    pid = machine.spawn(PROMPT, 10)
    while machine.process(pid).state is not State.RUNNING:
        machine.advance()
    machine.now_s += 10.0
    kernel = machine.kernel
    decide, kernel.scheduler.plan = kernel.scheduler.plan, lambda m, n: type(decide(m, n))()
    machine.step(list(machine.device.poll(machine.now_s)))
    kernel.scheduler.plan = decide
    return pid


def to_running(machine: SimMachine) -> Pid:
    pid = machine.spawn(PROMPT, 10)
    machine.run(until_s=0.5)
    return pid


def to_stopped(machine: SimMachine) -> Pid:
    pid = machine.spawn(PROMPT, 4, keep_open=True)
    machine.run(until_s=5.0)
    return pid


def to_swapping_out(machine: SimMachine) -> Pid:
    pid = to_running(machine)
    machine.call(Kill(pid, Signal.STOP))
    while machine.process(pid).state is not State.SWAPPING_OUT:
        machine.advance()
    return pid


def to_swapped(machine: SimMachine) -> Pid:
    pid = to_swapping_out(machine)
    machine.run(until_s=machine.now_s + 1.0)
    return pid


def to_swapping_in(machine: SimMachine) -> Pid:
    pid = to_swapped(machine)
    machine.spawn(tuple(range(100, 130)), 10)
    machine.run(until_s=machine.now_s + 8.0)
    machine.call(Kill(pid, Signal.CONT))
    while machine.process(pid).state is not State.SWAPPING_IN:
        machine.advance()
    return pid


def to_fetching(machine: SimMachine) -> Pid:
    """Stopped, sunk to the swap file, its frames and slots wanted by others, and called back."""
    machine.start(Swapon("/", 40 * machine.kernel.info.frame_bytes))
    machine.run(until_s=0.1)
    pid = to_swapped(machine)
    memory = machine.kernel.memory
    memory.copies.store(list(memory.paused()[0].space.pages), machine.now_s)
    while memory.copies.transfers.count_pages(Lane.STORE):
        machine.run(until_s=machine.now_s + 1.0)
    memory.make_slots(memory.copies.host.total, no_donors)
    reclaim(memory.frames, memory.index, memory.frames.total, memory.latest_first())
    machine.call(Kill(pid, Signal.CONT))
    while machine.process(pid).state is not State.FETCHING:
        machine.advance()
    return pid


def to_zombie(machine: SimMachine) -> Pid:
    pid = to_running(machine)
    machine.call(Kill(pid, Signal.KILL))
    return pid


WAYS: dict[State, Callable[[SimMachine], Pid]] = {
    State.NEW: to_new,
    State.READY: to_ready,
    State.RUNNING: to_running,
    State.STOPPED: to_stopped,
    State.SWAPPING_OUT: to_swapping_out,
    State.SWAPPED: to_swapped,
    State.FETCHING: to_fetching,
    State.SWAPPING_IN: to_swapping_in,
    State.ZOMBIE: to_zombie,
}


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("state", State)
def test_every_signal_in_every_state(cache: bool, state: State, signal: Signal) -> None:
    """F1, F8: legal, twice, in effect within one step; nothing leaks, the output stays right."""
    machine = slow(cache)
    pid = WAYS[state](machine)
    assert machine.process(pid).state is state
    for _ in range(2):
        machine.call(Kill(pid, signal))
    if signal in (Signal.TERM, Signal.KILL):
        assert machine.process(pid).state is State.ZOMBIE
        assert machine.process(pid).space.mapped == 0
        assert machine.ended[pid].reason is not None
    machine.run(until_s=machine.now_s + 0.2)
    if pid in machine.kernel.processes:
        machine.call(Kill(pid, Signal.CONT))
        if machine.process(pid).stdin_open:
            machine.call(Write(pid, eof=True))
    machine.finish()


@pytest.mark.parametrize("state", [s for s in State if s is not State.ZOMBIE])
def test_every_state_can_be_forked(cache: bool, state: State) -> None:
    """A child of a parent in any state goes on where the parent was, and outlives it."""
    machine = slow(cache)
    pid = WAYS[state](machine)
    made = machine.process(pid).output_tokens
    (child,) = machine.call(Fork(pid))
    machine.call(Kill(pid, Signal.KILL))
    machine.follow(child)
    machine.call(Kill(child, Signal.CONT))
    if machine.process(child).stdin_open:
        machine.call(Write(child, eof=True))
    machine.run()
    request = machine.asked[pid]
    machine.asked[child] = request
    machine.output[child] = machine.output[pid][:made] + machine.output[child]
    assert machine.ended[child].reason is ExitReason.LENGTH
    machine.check_output(child)
    machine.finish()


def test_f1_killed_while_loading(cache: bool) -> None:
    """F1: the frames come back when the load has passed its fence, not before, and not never."""
    machine = slow(cache)
    pid = to_swapping_in(machine)
    machine.call(Kill(pid, Signal.KILL))
    assert list(machine.kernel.memory.copies.transfers.peek_all())
    machine.finish()


def test_f1_killed_while_a_copy_is_about_to_fail(cache: bool) -> None:
    """F1: nobody is left to do without the pages that could not be copied."""
    machine = slow(cache)
    machine.device._faults.named = (Fault("fail_out"),)
    pid = to_swapping_out(machine)
    machine.call(Kill(pid, Signal.KILL))
    machine.finish()


def test_f2_f3_gone_before_it_had_anything(boot: Boot) -> None:
    """F2, F3: killed in the step of its spawn, and before its first frames."""
    machine = boot(8)
    pid = machine.spawn(PROMPT, 8)
    machine.call(Kill(pid, Signal.KILL))
    assert machine.ended[pid].reason is ExitReason.KILLED
    machine.finish()


def test_f4_unknown_processes(boot: Boot) -> None:
    """F4: naming a process that never was, or was reaped, is ESRCH and nothing else."""
    machine = boot(8)
    pid = machine.spawn(PROMPT, 2)
    machine.finish()
    for stranger in (pid, Pid(999), Pid(-1)):
        with pytest.raises(KernelError) as unknown:
            machine.call(Kill(stranger, Signal.KILL))
        assert unknown.value.errno == errno.ESRCH
        assert machine.call(CancelCall(12345)) is False


def test_f6_plain_load_leaks_nothing(boot: Boot) -> None:
    """F6: wave after wave, and the machine is as at its boot."""
    machine = boot(10)
    for wave in range(4):
        for number in range(4):
            machine.spawn(tuple(range(wave + number, wave + number + 7)), 9)
        machine.finish()


def test_f8_a_lost_client_ends_within_a_step(boot: Boot) -> None:
    """F8: after SIGKILL no forward has a row of the process, and its token in flight is void."""
    machine = boot(8)
    pid = machine.spawn(PROMPT, 10)
    machine.run(until_s=0.02)
    machine.call(Kill(pid, Signal.KILL))
    made = machine.process(pid).usage.output_tokens
    machine.run()
    assert machine.process(pid).usage.output_tokens == made == len(machine.output[pid])
    machine.finish()


def test_f9_calls_are_answered_while_the_device_works(boot: Boot) -> None:
    """F9: no call waits for a forward."""
    machine = boot(8, cost=CostModel(base_s=10.0))
    pid = machine.spawn(PROMPT, 10)
    machine.advance()
    assert machine.kernel.in_flight is not None
    for request in (Spawn((1, 2), max_tokens=1), Fork(pid), Kill(pid, Signal.KILL)):
        machine.call(request)
    assert machine.kernel.in_flight is not None
    for process in list(machine.kernel.processes.values()):
        machine.follow(process.pid)
    machine.run()


def test_h1_every_pause_is_on_record(cache: bool) -> None:
    """H1: who, why, how, how much."""
    machine = slow(cache)
    pid = to_swapped(machine)
    events = machine.kernel.trace.since(0, 1 << 30, pid)
    (pause,) = [dict(event.detail) for event in events if event.kind == "pause"]
    assert pause["reason"] == "stopped" and pause["mode"] == "swap"
    assert pause["pages"] >= pause["dirty"] > 0 and pause["tokens"] > len(PROMPT)
    assert pause["tier"] == "host" and pause["kept"] == pause["clean"] + pause["dirty"]
    usage = machine.process(pid).usage
    assert usage.preemptions == 1 and usage.swapped_out_bytes > 0
    machine.call(Kill(pid, Signal.KILL), Principal("default"))
    events = machine.kernel.trace.since(0, 1 << 30, pid)
    (end,) = [dict(event.detail) for event in events if event.kind == "pause-end"]
    assert end["way"] == "exit" and end["paused_s"] > 1.0
    machine.finish()
