"""Outputs that keep to a grammar, in worlds where everything else happens too: each of their tokens
is what an undisturbed process draws, with a grammar that reads its output from the start."""

import random
from collections.abc import Callable

import msgspec
import pytest

from tokenix.drivers.sim import FaultPlan
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import Fork, Kill, Principal, Request, Signal, Spawn
from tokenix.kernel.event import Reply
from tokenix.tests.sim.callers import VOCAB
from tokenix.tests.sim.machine import ROOT, SimMachine
from tokenix.tests.sim.world import World
from tokenix.tests.wheel import Wheel

EOS = 1
CHUNKS, CHUNK = 4, 40


class WorldOfGrammars(World):
    """Most processes have one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws = random.Random(seed)
        self.machine.kernel.images.thaw_grammar = Wheel.thaw

    def send(
        self, request: Request, who: Principal = ROOT, then: Callable[[Reply], None] | None = None
    ) -> int:
        if isinstance(request, Spawn) and self.draws.random() < 0.7:
            eos = self.spec.eos_token
            most = self.draws.randint(1, 40) if eos is not None else 1 << 20
            wheel = Wheel(VOCAB, self.draws.randint(2, 9), most, eos)
            request = msgspec.structs.replace(request, grammar=wheel)
        return super().send(request, who, then)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_worlds_with_grammars_end_well(chunk: int) -> None:
    """Calm worlds and harsh ones: pauses, faults, forks, further turns, images, the file."""
    held = 0
    for seed in range(9000 + chunk * CHUNK, 9000 + (chunk + 1) * CHUNK):
        world = WorldOfGrammars(seed)
        world.run()
        held += sum(f.process.grammar is not None for f in world.callers.followers.values())
    assert held > CHUNK, "grammars were at work"


@pytest.fixture
def machine() -> SimMachine:
    return SimMachine(40, 40, eos_token=EOS)


def test_it_ends_where_its_grammar_ends(machine: SimMachine) -> None:
    """Also with ignore_eos, and with min_tokens beyond that."""
    for options in ({}, {"ignore_eos": True}, {"min_tokens": 9}):
        pid = machine.spawn((1, 2, 3), 20, grammar=Wheel(VOCAB, 3, 5, EOS), **options)
        machine.run()
        assert len(machine.output[pid]) == 6 and machine.output[pid][-1] == EOS
        assert machine.ended[pid].reason is ExitReason.STOP


def test_a_grammar_that_leaves_nothing_ends_its_process_alone(machine: SimMachine) -> None:
    dead = machine.spawn((1, 2, 3), 20, grammar=Wheel(VOCAB, 3, 5))
    alive = machine.spawn((1, 2, 3), 20, grammar=Wheel(VOCAB, 3, 5, EOS))
    machine.run()
    assert machine.ended[dead].reason is ExitReason.ERROR and len(machine.output[dead]) == 5
    assert machine.ended[dead].error == "no token may be drawn: its grammar leaves none"
    assert machine.ended[alive].reason is ExitReason.STOP


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_are_tried_again_change_nothing(seed: int) -> None:
    """The same outputs, and those of a fork made on the way, as on a quiet machine. Whoever is
    suspected of the device's faults says the beginning of it."""

    def outputs(rough: bool) -> list[tuple[bool, list[int]]]:
        faults = FaultPlan(seed, {"device": 0.05} if rough else {}, delay_s=1.0)
        machine = SimMachine(60, 60, eos_token=EOS, faults=faults)
        pids = [
            machine.spawn((1, 2, 3 + i), 30, grammar=Wheel(VOCAB, 2 + i, 12 + i, EOS))
            for i in range(8)
        ]
        while len(machine.output[pids[0]]) < 4:
            machine.advance()
        machine.call(Kill(pids[0], Signal.STOP))
        (child,) = machine.call(Fork(pids[0]))
        known = machine.process(child).tokens[3:]
        machine.follow(child)
        for pid in (pids[0], child):
            machine.call(Kill(pid, Signal.CONT))
        machine.run()
        machine.output[child] = known + machine.output[child]
        return [
            (machine.ended[pid].reason is ExitReason.ERROR, machine.output[pid])
            for pid in (*pids, child)
        ]

    quiet, rough = outputs(rough=False), outputs(rough=True)
    for (broken, told), (_, expected) in zip(rough, quiet, strict=True):
        assert told == (expected[: len(told)] if broken else expected)
    assert sum(broken for broken, _ in rough) < 9 and not any(broken for broken, _ in quiet)
    assert quiet[0] == quiet[-1]
