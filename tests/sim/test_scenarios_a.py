"""Group A: out of memory. No thrash, no livelock, no deadlock; nobody pays for another's size."""

import errno
from collections import Counter

import pytest

from tokenix.drivers.ops import Forward
from tokenix.drivers.sim import CostModel, Fault, FaultPlan
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import KernelError, Kill, Read, SetRlimit, Signal, Spawn, Write
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.frames import FrameState
from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.policies import POLICIES
from tokenix.sched.tunables import Tunables
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.conftest import Boot
from tokenix.tests.sim.machine import SimMachine

SLOW_READER = Reader(tokens_per_s=2.0)
TRUSTING = Tunables(retract_ratio_start=0.1)
"""Admission of `retract` reserves little, so that it must retract."""
PAGE = 4


def prompt(number: int, length: int) -> tuple[int, ...]:
    """Tokens that no other number has."""
    return tuple((number * 41 + i * 7) % 256 for i in range(length))


def crowd(machine: SimMachine, count: int, prompt_tokens: int, max_tokens: int) -> None:
    """Arrive one by one, read slowly, and need more together than there is."""
    for number in range(count):
        machine.spawn(prompt(number, prompt_tokens), max_tokens, reader=SLOW_READER)
        machine.run(until_s=machine.now_s + 0.02)


def test_a1_resume_is_whole_or_not_at_all(boot: Boot) -> None:
    """A1: resumed with frames for all and room to grow; at most two pauses without progress."""
    machine = boot(12, tunables=TRUSTING)
    lengths: dict[int, list[int]] = {}
    pause = machine.kernel.memory.pause

    def note(process, *rest):  # type: ignore[no-untyped-def]
        lengths.setdefault(process.pid, []).append(process.length)
        return pause(process, *rest)

    bring_in = machine.kernel.memory.bring_in

    def check_whole(process, *rest):  # type: ignore[no-untyped-def]
        came = bring_in(process, *rest)
        room = process.space.mapped * PAGE
        assert not came or room > process.length or room >= process.limit_tokens
        assert came or not process.space.active
        return came

    machine.kernel.memory.pause = note
    machine.kernel.memory.bring_in = check_whole
    crowd(machine, 5, 9, 24)
    machine.finish()
    assert lengths, "the story is about pauses"
    for at in lengths.values():
        assert max(Counter(at).values()) <= 2


def test_a2_victims_are_reclaimable_at_once(boot: Boot) -> None:
    """A2: a victim is not in the pass in flight, and its frames are free, or cached, or on their
    way, as soon as it is paused."""
    machine = boot(12, tunables=TRUSTING)
    memory, kernel = machine.kernel.memory, machine.kernel
    pause = memory.pause

    def check(process, *rest):  # type: ignore[no-untyped-def]
        assert kernel.in_flight is None, "frames under a fence cannot be reclaimed"
        gain = process.space.exclusive
        before = memory.view()
        result = pause(process, *rest)
        after = memory.view()
        now = after.free_frames + after.cached_frames + after.outgoing_frames
        assert now >= before.free_frames + before.cached_frames + before.outgoing_frames + gain
        return result

    memory.pause = check
    crowd(machine, 5, 9, 24)
    machine.finish()
    assert kernel.counters.preemptions


def test_a3_frames_on_their_way_count(cache: bool) -> None:
    """A3: one page is short; the link is slow, and for all the time the copy takes nobody else is
    paused for the same page."""
    machine = SimMachine(
        16, 64, "progress", Params(poison=True, prefix_cache=cache),
        cost=CostModel(out_page_s=0.3),
    )  # fmt: skip
    for number in range(4):
        machine.spawn(prompt(number, 8), 30, reader=Reader(tokens_per_s=2.0 + number))
    machine.run(until_s=0.001)
    while not machine.kernel.counters.preemptions:
        machine.advance()
    machine.run(until_s=machine.now_s + 0.1)
    assert Counter(machine.reasons()).most_common(1)[0][1] == 1, "one shortage, one victim"
    machine.finish()


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a4_a7_capacity_to_the_token(boot: Boot, extra: int) -> None:
    """A4, A7: prompt + output of capacity - 1 and capacity run to the end, capacity + 1 is E2BIG
    at once; the same for a prompt of that size."""
    machine = boot(6)
    capacity = (6 - 1) * PAGE  # one frame is left for growth
    for prompt_tokens in (3, capacity + extra - 1):
        request = Spawn(prompt(1, prompt_tokens), max_tokens=capacity + extra - prompt_tokens)
        if extra > 0:
            with pytest.raises(KernelError) as refused:
                machine.call(request)
            assert refused.value.errno == errno.E2BIG
        else:
            machine.spawn(request.tokens, request.max_tokens or 0)
            machine.finish()


def test_a6_a9_too_big_is_refused_and_leaves_nothing(boot: Boot) -> None:
    """A6, A9: what can never fit is refused at spawn; the others do not notice."""
    machine = boot(8)
    machine.spawn(prompt(1, 6), 12)
    before = machine.kernel.memory.view()
    for size in (8 * PAGE, 10_000):
        with pytest.raises(KernelError, match="KV pages") as refused:
            machine.call(Spawn(prompt(2, size), max_tokens=1))
        assert refused.value.errno == errno.E2BIG
    assert machine.kernel.memory.view() == before
    machine.spawn(prompt(3, 6), 12)
    machine.finish()


def test_a6_input_that_never_fits_is_refused(boot: Boot) -> None:
    """A6 for later input: stdin, a raised limit and both together are refused, not waited for."""
    machine = boot(8)
    pid = machine.spawn(prompt(1, 6), 8, keep_open=True)
    machine.call(Write(pid, prompt(2, 4)))
    for request in (Write(pid, prompt(3, 4)), SetRlimit(pid, max_tokens=12)):
        with pytest.raises(KernelError) as refused:
            machine.call(request)
        assert refused.value.errno == errno.E2BIG
    machine.call(Write(pid, eof=True))
    machine.run()
    assert machine.ended[pid].reason is ExitReason.LENGTH
    assert len(machine.output[pid]) == 16


def test_a9_who_waited_in_vain_and_goes_leaves_the_queue_moving(boot: Boot) -> None:
    """A9: a newcomer that finds no room is killed while it waits; those behind it are served
    as if it had never been."""

    def served_s(blocked: bool) -> list[float]:
        machine = boot(8, params={"max_zombies": 1})
        machine.spawn(prompt(1, 17), 8, reader=Reader(tokens_per_s=1000.0))
        machine.run(until_s=0.01)
        if blocked:
            pid = machine.spawn(prompt(2, 20), 8, qos=Qos.BATCH)
            machine.run(until_s=0.02)
            assert machine.process(pid).state is State.NEW, "there is no room for it"
            machine.call(Kill(pid, Signal.KILL))
            assert machine.ended[pid].reason is ExitReason.KILLED
        machine.run(until_s=0.02)
        times = []
        for number in (3, 4):
            small = machine.spawn(prompt(number, 5), 4)
            while small not in machine.ended:
                machine.advance()
            times.append(machine.now_s)
        machine.finish()
        return times

    assert served_s(blocked=True) == pytest.approx(served_s(blocked=False))


def test_a11_an_empty_plan_is_no_command(boot: Boot) -> None:
    """A11: with nothing that may run, no forward is submitted."""
    machine = boot(8)
    pid = machine.spawn(prompt(1, 6), 12)
    machine.run(until_s=0.02)
    machine.call(Kill(pid, Signal.STOP))
    sent: list[object] = []
    submit = machine.device.submit
    machine.device.submit = lambda command, now_s: (sent.append(command), submit(command, now_s))
    machine.run(until_s=1.0)
    for _ in range(3):
        machine.step([])
    assert not [command for command in sent if isinstance(command, Forward)]
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()


def test_a12_a16_stop_with_a_step_in_flight(boot: Boot) -> None:
    """A12, A16: stopped in the middle of a forward, its token is delivered once and is not
    computed again; the resumed stream goes on at the next one."""
    machine = boot(8)
    pid = machine.spawn(prompt(1, 6), 12)
    for _ in range(5):
        machine.advance()
        assert machine.process(pid).state is State.RUNNING
        length = machine.process(pid).length
        machine.call(Kill(pid, Signal.STOP))
        machine.run(until_s=machine.now_s + 1.0)
        assert machine.process(pid).length == length + 1
        assert machine.process(pid).state is State.SWAPPED
        machine.call(Kill(pid, Signal.CONT))
    machine.finish()
    if machine.kernel.scheduler.policy.name == "progress":
        assert machine.kernel.counters.recomputed_tokens == 0


def test_a15_stop_again_and_again_is_one_stop(boot: Boot) -> None:
    """A15: preempting who is preempted changes nothing and keeps nothing."""
    machine = boot(8)
    pid = machine.spawn(prompt(1, 6), 12)
    machine.run(until_s=0.03)
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=1.0)
    counters, copied = machine.kernel.counters, machine.kernel.memory.copies.stats.pages
    pauses, copies = counters.preemptions, copied[Lane.OUT]
    assert pauses == 1
    for _ in range(50):
        machine.call(Kill(pid, Signal.STOP))
    assert (counters.preemptions, copied[Lane.OUT]) == (pauses, copies)
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()


def test_a15_books_do_not_grow_with_pauses(boot: Boot) -> None:
    """A15: two hundred stops of one process leave no more behind than one does."""
    machine = boot(8)
    pid = machine.spawn(prompt(1, 6), 12)
    machine.run(until_s=0.03)
    sizes = []
    for _ in range(200):
        for signal in (Signal.STOP, Signal.CONT):
            machine.call(Kill(pid, signal))
            if machine.device.next_completion_s() is not None:
                machine.advance()
        kernel, memory = machine.kernel, machine.kernel.memory
        books = (
            memory.dirty, kernel.deadlines, kernel.dropped, memory.frames.stranded,
            list(memory.copies.transfers.peek_all()), memory.copies.peek_frame_copies(),
        )  # fmt: skip
        sizes.append(sum(len(book) for book in books))
    assert max(sizes) <= 8 + memory.frames.total
    machine.finish()


def test_a18_a21_each_holds_what_the_other_needs(boot: Boot) -> None:
    """A18, A21: two that fit alone and hold all frames between them: one yields, both end."""
    for slots in (0, 1, 64):
        machine = boot(8, slots)
        for number in range(2):
            machine.spawn(prompt(number, 11), 16)
        machine.finish()


def test_a20_completions_are_handled_without_a_plan(cache: bool) -> None:
    """A20: a copy that lands while a forward runs moves its process at once."""
    machine = SimMachine(
        12, 64, "progress", Params(poison=True, prefix_cache=cache), cost=CostModel(base_s=0.5)
    )
    stopped = machine.spawn(prompt(1, 10), 20)
    machine.spawn(prompt(2, 4), 8)
    machine.run(until_s=1.1)
    machine.call(Kill(stopped, Signal.STOP))
    while machine.process(stopped).state is not State.SWAPPING_OUT:
        machine.advance()
    assert machine.kernel.in_flight is not None
    ticket = machine.kernel.in_flight.ticket
    while machine.process(stopped).state is State.SWAPPING_OUT:
        machine.advance()
    assert machine.kernel.in_flight is not None and machine.kernel.in_flight.ticket == ticket
    machine.call(Kill(stopped, Signal.CONT))
    machine.finish()


def test_a23_work_is_bounded(boot: Boot) -> None:
    """A23: steps grow with tokens and events, not with time or waiting."""
    machine = boot(12)
    crowd(machine, 6, 9, 24)
    machine.finish()
    tokens = sum(len(out) for out in machine.output.values())
    assert machine.kernel.counters.steps <= 3 * tokens
    assert machine.steps <= 10 * tokens


@pytest.mark.parametrize("slots", [0, 3, 64])
def test_a24_the_prefix_cache_changes_times_and_nothing_else(policy: str, slots: int) -> None:
    """A24: the same crowd, all with one system prompt, under pressure, with the cache and without:
    everybody says the same; with it, somebody has been spared work."""
    spared = []
    for cache in (True, False):
        machine = SimMachine(12, slots, policy, Params(poison=True, prefix_cache=cache))
        for number in range(5):
            machine.spawn(prompt(9, 8) + prompt(number, 3), 16, reader=SLOW_READER)
            machine.run(until_s=machine.now_s + 0.05)
        machine.run()
        refused = [pid for pid, end in machine.ended.items() if end.reason is ExitReason.REFUSED]
        assert len(refused) <= 3
        zombies = machine.kernel.zombies.values()
        spared.append(sum(zombie.usage.cached_tokens for zombie in zombies))
        machine.finish()
    assert spared[0] > spared[1] == 0


@pytest.mark.parametrize("slots", [0, 1, 3, 64])
def test_a25_out_of_space_kills_nobody(boot: Boot, slots: int) -> None:
    """A25: neither the device's nor the host tier's end is anybody's end."""
    machine = boot(10, slots)
    crowd(machine, 5, 9, 20)
    machine.finish()
    ends = {ended.reason for ended in machine.ended.values()}
    assert ends <= {ExitReason.LENGTH, ExitReason.REFUSED}
    assert Counter(e.reason for e in machine.ended.values())[ExitReason.LENGTH] >= 2


@pytest.mark.parametrize("name", list(POLICIES))
def test_a27_all_or_nothing(name: str) -> None:
    """A27: bringing in a process that does not fit takes nothing."""
    machine = SimMachine(8, 64, name)
    big = machine.spawn(prompt(1, 17), 8)
    machine.advance()
    machine.call(Spawn(prompt(2, 17), max_tokens=8, qos=Qos.BATCH))
    memory = machine.kernel.memory
    waiting = next(p for p in machine.kernel.processes.values() if p.pid != big)
    if waiting.state is State.NEW:
        before = [memory.frames.count(state) for state in FrameState]
        assert not memory.bring_in(waiting, 1000.0, machine.now_s)
        assert [memory.frames.count(state) for state in FrameState] == before
        assert not waiting.space.active and waiting.space.mapped == 0
    machine.follow(waiting.pid)
    machine.finish()


def test_a28_a_stuck_device_is_seen(boot: Boot) -> None:
    """A28: the kernel does not spin while the device does not answer, and `steps` stands still."""
    machine = boot(8)
    machine.spawn(prompt(1, 6), 12)
    machine.run(until_s=0.01)
    steps = machine.kernel.counters.steps
    for _ in range(100):
        assert machine.kernel.step(machine.now_s, []) == []
    assert machine.kernel.counters.steps == steps
    machine.finish()


def test_full_pipes_let_others_have_the_memory(boot: Boot) -> None:
    """A reader that does not read keeps no frames from those that do."""
    machine = boot(8, params={"pipe_tokens": 4})
    lazy = machine.call(Spawn(prompt(1, 9), max_tokens=12))
    machine.asked[lazy] = Spawn(prompt(1, 9), max_tokens=12)
    machine.run(until_s=0.1)
    for number in (2, 3):
        machine.spawn(prompt(number, 12), 12)
        machine.run(until_s=machine.now_s + 1.0)
        assert machine.ended[max(machine.ended)].reason is ExitReason.LENGTH
    machine.follow(lazy, take=1)
    machine.finish()
    assert len(machine.output[lazy]) == 12


def test_readers_faster_than_the_device_share_it(boot: Boot) -> None:
    """Everybody is always due: progress goes on all the same."""
    machine = boot(10)
    for number in range(5):
        machine.spawn(prompt(number, 7), 20, reader=Reader(tokens_per_s=10_000.0))
    machine.finish()


def test_measured_readers_that_do_not_read(boot: Boot) -> None:
    """Output that nobody takes is lead: its process waits without harm."""
    machine = boot(10)
    for number in range(4):
        request = Spawn(prompt(number, 7), max_tokens=16, reader=Reader(ReaderKind.MEASURED))
        machine.asked[machine.call(request)] = request
    machine.run(until_s=machine.now_s + 5.0)
    for pid in machine.asked:
        machine.follow(pid, take=1)
    machine.finish()


def test_copies_that_fail_for_ever(boot: Boot) -> None:
    """A host tier that takes nothing is as good as none."""
    faults = FaultPlan(0, {}, (Fault("fail_out"),))
    machine = boot(10, 64, faults=faults)
    crowd(machine, 5, 9, 20)
    machine.finish()


def test_blocked_reads_take_no_steps(boot: Boot) -> None:
    """A23 for callers: a blocked read is not polled."""
    machine = boot(8)
    pid = machine.spawn(prompt(1, 6), 4)
    machine.call(Kill(pid, Signal.STOP))
    for _ in range(20):
        machine.start(Read(pid))
    steps = machine.steps
    machine.run(until_s=100.0)
    assert machine.steps - steps <= 10
    machine.call(Kill(pid, Signal.KILL))
    machine.finish()
