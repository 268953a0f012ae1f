"""Prompts that are computed while what is before them is loaded, layer by layer.

load      | 8 pages ..................... |
pass       | layers as they come: 20 tokens ............ |
"""

import random
from typing import Any

import pytest

from tokenix.drivers.sim import CostModel, Fault, FaultPlan, expected_tokens
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import Fork, Signal, Spawn, Sysctl, Write
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import State
from tokenix.mm.ids import Pid
from tokenix.mm.reclaim import reclaim
from tokenix.sched.entity import Qos
from tokenix.tests.sim.deep import signal, speak, stop, until
from tokenix.tests.sim.machine import SimMachine

PREFIX = tuple(range(100, 132))
PAGES = 8
NEW = tuple(range(20))

COST = CostModel(prefill_token_s=0.01, in_page_s=0.02, copy_base_s=0.0, out_page_s=1e-3)
LOAD_S = PAGES * COST.in_page_s
PREFILL_S = len(NEW) * COST.prefill_token_s


def boot(*faults: Fault, covers: bool = True, depth: int = 1, cache: bool = True) -> SimMachine:
    return SimMachine(
        60, 60, "progress", Params(poison=True, prefix_cache=cache),
        faults=FaultPlan(0, {}, faults), cost=COST, covers_loads=covers, depth=depth,
    )  # fmt: skip


def take_frames(machine: SimMachine) -> None:
    """Somebody wants all frames that can be had; what was in them is in the host tier."""
    memory = machine.kernel.memory
    reclaim(memory.frames, memory.index, memory.frames.total, memory.latest_first())


def known(machine: SimMachine, prefix: tuple[int, ...] = PREFIX) -> None:
    """Somebody has computed the prefix, which is in the host tier only now."""
    machine.spawn(prefix, 1)
    machine.run(until_s=machine.now_s + 5.0)
    take_frames(machine)


def newcomer(machine: SimMachine, new: tuple[int, ...] = NEW, tokens: int = 6) -> Process:
    """It runs beside the load of the prefix that it has in common with others."""
    pid = machine.spawn((*PREFIX, *new), tokens)
    process = machine.process(pid)
    assert process.state is State.RUNNING and machine.kernel.memory.copies.beside(pid) is not None
    return process


def first_token_s(machine: SimMachine) -> float:
    """How long a newcomer behind the known prefix waits for its first token."""
    known(machine)
    asked_s = machine.now_s
    pid = machine.spawn((*PREFIX, *NEW), 4)
    speak(machine, pid, 1)
    waited_s = machine.now_s - asked_s
    assert machine.process(pid).usage.cached_host_tokens == len(PREFIX)
    machine.finish()
    return waited_s


@pytest.mark.parametrize("depth", [1, 2])
def test_the_shorter_of_load_and_prefill_takes_no_time(depth: int) -> None:
    """But for an eighth of it."""
    plain_s = first_token_s(boot(covers=False, depth=depth))
    assert plain_s == pytest.approx(LOAD_S + PREFILL_S, abs=0.01)
    covered_s = first_token_s(boot(depth=depth))
    assert covered_s == pytest.approx(LOAD_S / 8 + PREFILL_S, abs=0.01)


def test_a_next_turn_is_computed_beside_the_turns_before(cache: bool) -> None:
    """The last page of them is partly written: the turn goes on in it."""
    machine = boot(cache=cache)
    said = expected_tokens(PREFIX[:30], 5)
    more = expected_tokens([*PREFIX[:30], *said, *NEW], 5)
    pid = machine.call(Spawn(PREFIX[:30], max_tokens=5, keep_open=True))
    machine.follow(pid)
    speak(machine, pid, 5)
    process = stop(machine, pid)
    take_frames(machine)
    assert process.space.missing == process.space.mapped
    assert process.space.computed % 4
    machine.call(Write(pid, NEW))
    signal(machine, pid, Signal.CONT)
    assert machine.kernel.memory.copies.beside(pid) is not None and process.way == "covered"
    machine.call(Write(pid, eof=True))
    machine.run()
    assert machine.output[pid] == [*said, *more]


def test_who_has_little_to_compute_waits_for_its_pages() -> None:
    """Others in its pass would have to wait for them too. So does whoever has one token to go."""
    machine = boot()
    machine.call(Sysctl("swap.restore", "swap-in"))
    known(machine)
    pid = machine.spawn((*PREFIX, *NEW[:10]), 60)
    until(machine, pid, State.SWAPPING_IN)
    speak(machine, pid, 3)
    stop(machine, pid)
    take_frames(machine)
    signal(machine, pid, Signal.CONT)
    until(machine, pid, State.SWAPPING_IN)
    machine.finish()


def test_one_at_a_time() -> None:
    """The next one on the link waits for its pages as ever."""
    machine = boot()
    known(machine)
    known(machine, PREFIX[::-1])
    prompts = [(*PREFIX, *NEW), (*PREFIX[::-1], *NEW)]
    calls = [machine.make_call(Spawn(prompt, max_tokens=6)) for prompt in prompts]
    machine.step([*calls])
    pids = [machine.replies[call.call_id].value for call in calls]
    first, second = (machine.process(pid) for pid in pids)
    assert (first.state, second.state) == (State.RUNNING, State.SWAPPING_IN)
    assert (first.way, second.way) == ("covered", "swap-in")
    for pid, prompt in zip(pids, prompts, strict=True):
        machine.follow(pid)
        machine.asked[pid] = Spawn(prompt, max_tokens=6)
    machine.finish()


def test_streams_beside_it_go_on() -> None:
    """A pass with it takes as long as without the load, but for the first layers."""
    machine = boot(depth=2)
    known(machine)
    stream = machine.spawn((1, 2, 3), 40)
    speak(machine, stream, 5)
    newcomer_at_s = machine.now_s
    pid = machine.spawn((*PREFIX, *NEW), 6)
    speak(machine, pid, 1)
    assert machine.process(pid).way == "covered"
    assert machine.now_s - newcomer_at_s < PREFILL_S + LOAD_S / 8 + 0.03
    machine.finish()


def adopt(machine: SimMachine, parent: Process) -> Pid:
    """A fork, followed."""
    (child,) = machine.call(Fork(parent.pid))
    machine.asked[child] = machine.asked[parent.pid]
    machine.output[child] = parent.tokens[parent.prompt_tokens :]
    machine.follow(child)
    return Pid(child)


def stop_and_go(machine: SimMachine, process: Process) -> None:
    signal(machine, process.pid, Signal.STOP)
    until(machine, process.pid, State.SWAPPED)
    take_frames(machine)
    signal(machine, process.pid, Signal.CONT)


def kill(machine: SimMachine, process: Process) -> None:
    signal(machine, process.pid, Signal.KILL)
    copies = machine.kernel.memory.copies
    assert copies.covered is None and copies.transfers.peek_all(), "frames wait for the copy"


def fork(machine: SimMachine, process: Process) -> None:
    """A child has the pages that are on their way too."""
    child = adopt(machine, process)
    assert machine.process(child).space.mapped == PAGES


def same_prefix(machine: SimMachine, process: Process) -> None:
    """Another one that would use the pages on their way."""
    machine.spawn((*PREFIX, *NEW[::-1]), 6)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("what", [stop_and_go, kill, fork, same_prefix], ids=lambda f: f.__name__)
@pytest.mark.parametrize("fault", [None, "fail_in", "hang_in"])
def test_calls_meet_it_while_both_run(what: Any, fault: Any, depth: int) -> None:
    named = [Fault(fault, nth=0, pages=(3,))] if fault else []
    machine = boot(*named, depth=depth)
    known(machine)
    process = newcomer(machine)
    machine.advance(machine.now_s + LOAD_S / 2)
    what(machine, process)
    machine.run(until_s=machine.now_s + 30.0)
    assert not machine.kernel.processes
    for pid in machine.asked:
        machine.check_output(pid, complete=machine.ended[pid].reason is ExitReason.LENGTH)


def test_stopped_before_its_pass() -> None:
    """It has its frames while a pass of others runs, and is paused before it is in one: its pages
    come all the same, and it waits for them when it is back before they are."""
    machine = boot()
    stream = machine.spawn((1, 2, 3), 100)
    pid = machine.call(Spawn(PREFIX, max_tokens=4, keep_open=True))
    machine.follow(pid)
    speak(machine, pid, 4)
    process = stop(machine, pid, rest_s=0.1)
    take_frames(machine)
    machine.call(Write(pid, NEW, eof=True))
    signal(machine, pid, Signal.CONT)
    while process.state is State.SWAPPED:
        assert machine.advance()
    assert process.state is State.READY and process.way == "covered"
    signal(machine, pid, Signal.STOP)
    until(machine, pid, State.SWAPPED)
    signal(machine, pid, Signal.CONT)
    until(machine, pid, State.SWAPPING_IN)
    machine.run()
    said = expected_tokens(PREFIX, 4)
    assert machine.output[pid] == [*said, *expected_tokens([*PREFIX, *said, *NEW], 4)]
    machine.check_output(stream)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page", [0, 3, -1])
@pytest.mark.parametrize("kind", ["fail_in", "hang_in"])
def test_a_page_that_does_not_come_voids_the_pass(kind: Any, page: int, depth: int) -> None:
    """It and all behind it are computed; the stream beside it notices nothing."""
    pages = (page % PAGES,) if kind == "fail_in" else None
    machine = boot(Fault(kind, nth=0, pages=pages), depth=depth)
    known(machine)
    stream = machine.spawn((1, 2, 3), 40)
    speak(machine, stream, 5)
    pid = machine.spawn((*PREFIX, *NEW), 6)
    until(machine, pid, State.RUNNING)
    if kind == "hang_in":  # it waits until that is given up
        until(machine, pid, State.SWAPPING_IN)
    machine.run(until_s=machine.now_s + 30.0)
    assert machine.kernel.memory.pages_lost
    for one in (stream, pid):
        assert machine.ended[one].reason is ExitReason.LENGTH
        machine.check_output(one)
    lost = PAGES - page % PAGES if kind == "fail_in" else PAGES
    assert machine.process(pid).usage.recomputed_tokens == 4 * lost


@pytest.mark.parametrize("kind", ["device", "row"])
def test_a_pass_that_fails_beside_a_load(kind: Any) -> None:
    machine = boot(Fault(kind, nth=2))
    known(machine)
    process = newcomer(machine)
    machine.run()
    failed = machine.ended[process.pid].reason is ExitReason.ERROR
    assert failed == (kind == "row") and not machine.kernel.memory.pages_lost
    machine.check_output(process.pid, complete=not failed)


class Talk:
    """Conversations about a few documents, on little memory: turns come, somebody stops, goes on,
    forks or is killed, and copies and passes fail."""

    def __init__(self, seed: int, depth: int) -> None:
        self.chance = random.Random(seed)
        kinds: Any = ["fail_in", "hang_in", "delay_in", "corrupt_slot", "lose_slot", "device"]
        rates = {kind: 0.08 for kind in kinds if seed % 2 and self.chance.random() < 0.5}
        self.machine = SimMachine(
            self.chance.choice([28, 36, 60]), 80, "progress", Params(poison=True),
            faults=FaultPlan(seed, rates, delay_s=4.0), cost=COST, covers_loads=True,
            depth=depth, seed=seed,
        )  # fmt: skip
        self.covered = 0
        copies = self.machine.kernel.memory.copies
        cover = copies.cover

        def count(*args: Any) -> None:
            self.covered += 1
            cover(*args)

        copies.cover = count  # type: ignore[method-assign]

    def act(self) -> None:
        machine, chance = self.machine, self.chance
        living = list(machine.kernel.processes.values())
        which = chance.random()
        if which < 0.35 or not living:
            document = chance.choice([PREFIX, PREFIX[:16], PREFIX[::-1]])
            new = tuple(chance.randrange(256) for _ in range(chance.randrange(8, 30)))
            machine.spawn((*document, *new), chance.randrange(1, 12), qos=Qos.BATCH)
            return
        process = chance.choice(living)
        pid = process.pid
        if which < 0.45:
            signal(machine, pid, Signal.STOP)
        elif which < 0.6:
            signal(machine, pid, Signal.CONT)
        elif which < 0.65:
            signal(machine, pid, Signal.KILL)
        elif which < 0.9:
            take_frames(machine)
        elif len(living) < 6:
            adopt(machine, process)

    def run(self) -> None:
        machine = self.machine
        for _ in range(40):
            self.act()
            machine.run(until_s=machine.now_s + self.chance.choice([0.0, 0.01, 0.1, 0.6]))
        machine.device._faults.rates.clear()
        for pid in list(machine.kernel.processes):
            signal(machine, pid, Signal.CONT)
        while machine.kernel.processes:
            assert machine.advance(), "nothing will ever happen"
        for pid in machine.asked:
            ended = machine.ended[pid]
            machine.check_output(pid, complete=ended.reason is ExitReason.LENGTH)
            faulty = "planned" in ended.error or "never ended" in ended.error
            assert ended.reason is not ExitReason.ERROR or faulty, ended.error


@pytest.mark.parametrize("depth", [1, 2])
def test_conversations_end_well(depth: int) -> None:
    covered = 0
    for seed in range(10):
        talk = Talk(seed, depth)
        try:
            talk.run()
        except Exception as why:
            raise AssertionError(f"seed {seed}: {type(why).__name__}: {why}") from why
        covered += talk.covered
    assert covered > 8, "there were such loads"


def test_the_beginning_of_a_page_is_not_copied_from_a_frame_that_was_taken() -> None:
    """Room for a newcomer's pages was made of the very page that begins as its last one does."""
    Talk(2014, 1).run()
