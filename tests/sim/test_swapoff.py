"""The swap file comes and goes under load. Whoever asks is answered, whatever the disk does."""

import errno
from dataclasses import replace

import pytest

from tokenix.drivers.sim import CostModel, Fault
from tokenix.drivers.sim.faults import Kind
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import KernelError, Principal, Request, Signal, Swapoff, Swapon, Sysctl
from tokenix.kernel.event import Reply
from tokenix.kernel.state import State
from tokenix.kernel.swapfile import FileState
from tokenix.swap.link import DEADLINE_FLOOR_S
from tokenix.swap.sink import BATCH_PAGES
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.deep import (
    PROMPT,
    WORTH_LOADING,
    answer,
    deep_machine,
    moved,
    on_lane,
    signal,
    sink,
    speak,
    stop,
    sunk,
    swapon,
    take_all,
    until,
)
from tokenix.tests.sim.machine import SimMachine


def swapoff(machine: SimMachine) -> Reply:
    return answer(machine, machine.start(Swapoff()))


def state(machine: SimMachine) -> FileState:
    return machine.kernel.swapfile.state


def refused(machine: SimMachine, request: Request, who: Principal | None = None) -> KernelError:
    call_id = machine.start(request, who) if who else machine.start(request)
    error = answer(machine, call_id).error
    assert error is not None
    return error


def test_pages_rise_where_there_is_room_for_them() -> None:
    machine = deep_machine()
    pids = [sunk(machine, first) for first in (0, 20)]
    assert swapoff(machine).value == 0
    for pid in pids:
        space = machine.process(pid).space
        assert space.mapped == space.missing and not space.deep, "all are in the host tier"
        signal(machine, pid, Signal.CONT)
    machine.finish()
    assert machine.kernel.memory.pages_lost == 0


def test_pages_without_room_are_computed_again() -> None:
    """All of the host tier belongs to others. Nothing else happens meanwhile: it is the kernel
    itself that goes on until it can answer."""
    machine = deep_machine(slots=4)
    first = sunk(machine, 0)
    second = machine.spawn(PROMPT, 12)
    speak(machine, second, 3)
    kernel = machine.kernel
    kernel.swapfile.state = FileState.OFF  # so that it stays in the host tier
    stop(machine, second)
    kernel.swapfile.state = FileState.ON
    assert not kernel.memory.copies.host.free_places
    assert swapoff(machine).value == 0
    assert machine.process(first).space.mapped == 0 and machine.process(second).space.mapped == 4
    for pid in (first, second):
        signal(machine, pid, Signal.CONT)
    machine.finish()


def test_more_than_a_batch_without_room() -> None:
    """D12: each piece of work brings the next."""
    machine = deep_machine(frames=100, slots=100, blocks=200)
    pid = machine.spawn(tuple(range(200)) + tuple(range(120)), 12)
    speak(machine, pid, 3)
    process = sink(machine, pid)
    assert process.space.deep > BATCH_PAGES
    host = machine.kernel.memory.copies.host
    machine.kernel.memory.copies.hangs = lambda lane: True  # type: ignore[method-assign]
    assert swapoff(machine).value == 0
    assert process.space.mapped == 0 and host.free_places == host.total
    del machine.kernel.memory.copies.hangs
    signal(machine, pid, Signal.CONT)
    machine.finish()


@pytest.mark.parametrize("room", [True, False])
def test_under_load_again_and_again(cache: bool, room: bool) -> None:
    """D14, D15: streams sink, rise and run while the file goes, and a new one comes that knows
    nothing of the old; every output is right."""
    machine = deep_machine(frames=24, slots=24 if room else 3, params={"prefix_cache": cache})
    pids = [machine.spawn(tuple(range(n, n + 9)), 40) for n in range(0, 80, 20)]
    for turn in range(24):
        living = [pid for pid in pids if pid in machine.kernel.processes]
        if not living:
            break
        pid = living[turn % len(living)]
        signal(machine, pid, Signal.STOP)
        machine.run(until_s=machine.now_s + 0.02)
        take_all(machine)
        if turn % 3 == 2:
            call = (
                swapon(machine, 32) if state(machine) is FileState.OFF else machine.start(Swapoff())
            )
            machine.run(until_s=machine.now_s + 0.003)
            signal(machine, pid, Signal.CONT)
            answer(machine, call)
        signal(machine, pid, Signal.CONT)
    machine.finish()
    if state(machine) is FileState.ON:
        swapoff(machine)
    assert machine.device.fences.blocks == 0


def test_d15_a_new_file_holds_nothing_of_the_old(cache: bool) -> None:
    machine = deep_machine(params={"prefix_cache": cache})
    pid = sunk(machine, 0)
    swapoff(machine)
    assert answer(machine, swapon(machine, 32)).value == 32 * machine.kernel.info.frame_bytes
    pages = machine.process(pid).space.pages
    assert all(page.block is None for page in pages)
    machine.run(until_s=machine.now_s + 5.0)
    assert all(page.block is not None for page in pages), "they sink again"
    take_all(machine)
    signal(machine, pid, Signal.CONT)
    machine.finish()
    assert machine.kernel.counters.copies_failed == 0


def test_swapped_off_while_somebody_rises(cache: bool) -> None:
    machine = deep_machine(
        cost=CostModel(prefill_token_s=1.0, fetch_page_s=0.1), params={"prefix_cache": cache}
    )
    pids = [sunk(machine, first) for first in (0, 20)]
    signal(machine, pids[0], Signal.CONT)
    until(machine, pids[0], State.FETCHING)
    assert swapoff(machine).value == 0
    signal(machine, pids[1], Signal.CONT)
    machine.finish()
    assert machine.kernel.memory.pages_lost == 0


def test_a_disk_that_does_not_answer_keeps_nobody_at_swapon() -> None:
    """The caller is told; the file is there when the disk has answered, and can be given back."""
    slow = replace(WORTH_LOADING, disk_base_s=100.0)
    machine = deep_machine(blocks=0, cost=slow, params={"lost_copy_s": 30.0})
    told = answer(machine, swapon(machine, 8), limit_s=40.0).error
    assert told is not None and told.errno == errno.EIO and "does not answer" in told.message
    assert 30.0 <= machine.now_s < 31.0 and state(machine) is FileState.OPENING
    machine.run(until_s=101.0)
    assert state(machine) is FileState.ON
    off = machine.start(Swapoff())
    machine.run(until_s=300.0)
    assert machine.replies[off].error is not None, "as slow as before"
    assert state(machine) is FileState.OFF


def test_what_is_refused() -> None:
    machine = deep_machine(blocks=0, disk_blocks=64)
    frame = machine.kernel.info.frame_bytes
    tenant = Principal("red")
    assert refused(machine, Swapon("/", frame), tenant).errno == errno.EPERM
    assert refused(machine, Swapoff(), tenant).errno == errno.EPERM
    assert refused(machine, Swapoff()).errno == errno.EINVAL
    for directory, size in (("/", frame - 1), ("/", -frame), ("/", 4e9), ("/", "8"), (None, 80)):
        assert refused(machine, Swapon(directory, size)).errno == errno.EINVAL  # type: ignore[arg-type]
    full = refused(machine, Swapon("/", 65 * frame))
    assert full.errno == errno.ENOSPC and "no room for 65 blocks" in full.message
    assert state(machine) is FileState.OFF, "and another may be tried"
    first = machine.start(Swapon("/", 64 * frame + 1))
    assert refused(machine, Swapon("/", frame)).errno == errno.EBUSY
    assert refused(machine, Swapoff()).errno == errno.EINVAL, "it is not there yet"
    assert answer(machine, first).value == 64 * frame
    assert refused(machine, Swapon("/", frame)).errno == errno.EBUSY
    sunk(machine, 0)
    off = machine.start(Swapoff())
    assert refused(machine, Swapoff()).errno == errno.EBUSY
    assert refused(machine, Swapon("/", frame)).errno == errno.EBUSY
    assert answer(machine, off).value == 0
    assert refused(deep_machine(slots=0, blocks=0), Swapon("/", 800)).errno == errno.EINVAL


@pytest.mark.parametrize("kind", ["hang_store", "hang_fetch", "delay_store", "delay_fetch"])
def test_d8_a_disk_that_hangs_is_told(cache: bool, kind: Kind) -> None:
    """D8: swapoff is answered although a copy never ends. Nothing sinks any more; all go on.
    Should the copy end after all, the file goes, and a new one may come."""
    machine = deep_machine(
        Fault(kind, nth=0, delay_s=100.0), params={"prefix_cache": cache}, frames=16
    )
    pid = machine.spawn(PROMPT, 12)
    other = machine.spawn(tuple(range(20, 29)), 40, keep_open=True)
    speak(machine, pid, 3)
    if kind.endswith("fetch"):
        sink(machine, pid)
        signal(machine, pid, Signal.CONT)
        until(machine, pid, State.FETCHING)
    else:
        signal(machine, pid, Signal.STOP)
        while not on_lane(machine, Lane.STORE):
            assert machine.advance()
    begun_s, lost_s = machine.now_s, machine.kernel.params.lost_copy_s
    told = swapoff(machine)
    assert told.error is not None and told.error.errno == errno.EIO
    assert machine.now_s - begun_s <= DEADLINE_FLOOR_S + lost_s + 1.0
    assert refused(machine, Swapon("/", 800)).errno == errno.EBUSY
    signal(machine, pid, Signal.CONT)
    stores = moved(machine, Lane.STORE)
    stop(machine, other)
    machine.run(until_s=machine.now_s + 2.0)
    assert machine.ended[pid].reason is ExitReason.LENGTH
    assert moved(machine, Lane.STORE) == stores and machine.kernel.memory.copies.host.total == 16
    begun_s = machine.now_s
    again = swapoff(machine)
    assert machine.now_s - begun_s <= lost_s + 1.0
    if kind.startswith("hang"):
        assert again.error is not None and again.error.errno == errno.EIO
        assert state(machine) is FileState.DRAINING
        machine.check_output(pid)
        return
    while state(machine) is not FileState.OFF:
        assert machine.advance(), "it goes when the copy ends"
    assert answer(machine, swapon(machine, 8)).error is None
    signal(machine, other, Signal.CONT)
    signal(machine, other, Signal.TERM)
    machine.finish()


def test_d8_the_device_does_not_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """D8: nor is it waited for the closing of the file for ever."""
    machine = deep_machine(cost=WORTH_LOADING)
    pid = sunk(machine, 0)
    finish = machine.device._finish
    held: list[tuple[object, ...]] = []
    monkeypatch.setattr(machine.device, "_finish", lambda *what: held.append(what))
    machine.kernel.memory.copies.hangs = lambda lane: True  # type: ignore[method-assign]
    call_id = machine.start(Swapoff())
    told = answer(machine, call_id, limit_s=machine.kernel.params.lost_copy_s + 1.0)
    assert told.error is not None and told.error.errno == errno.EIO
    assert state(machine) is FileState.CLOSING
    monkeypatch.undo()
    ((ticket, _, effect),) = held
    again = machine.start(Swapoff())
    finish(ticket, machine.now_s + 1.0, effect)  # type: ignore[arg-type]
    assert answer(machine, again).value == 0
    assert machine.call(Sysctl("swap.file")) == "off"
    signal(machine, pid, Signal.CONT)
    machine.finish()
