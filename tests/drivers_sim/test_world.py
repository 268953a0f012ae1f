"""Random small worlds: a careful caller breaks nothing, and every process comes out true.

The caller is as simple as a kernel can be: it swaps whole processes out and in beside forwards of
the others, waits for every fence, and recomputes what a fault took.
"""

import random

import pytest

from tokenix.drivers.ops import (
    Completion,
    CopyDone,
    CopyFailed,
    Forward,
    ForwardDone,
    Sampled,
    SamplingParams,
)
from tokenix.drivers.sim import FaultPlan
from tokenix.drivers.sim.faults import Kind
from tokenix.mm.ids import Ticket
from tokenix.tests.device.machine import Proc
from tokenix.tests.drivers_sim.lab import PAGE, VOCAB, Lab

RATES: dict[Kind, float] = {
    "fail_out": 0.1,
    "fail_in": 0.1,
    "corrupt_slot": 0.05,
    "lose_slot": 0.05,
    "delay_out": 0.1,
    "delay_in": 0.1,
    "device": 0.05,
    "row": 0.03,
}
PAGES = 6
TARGET = 8


class World:
    """Four processes over five homes of six frames, and a slot for each page of each process."""

    def __init__(self, seed: int, faulty: bool, careless: bool = False) -> None:
        self.careless = careless
        self.chance = random.Random(seed)
        faults = FaultPlan(seed, RATES if faulty else {}, delay_s=9.0)
        self.lab = Lab(faults, seed=seed, host_slots=4 * PAGES)
        self.homes = [list(range(PAGES * i, PAGES * i + PAGES)) for i in range(5)]
        self.procs = [self._proc(i) for i in range(4)]
        self.away: dict[int, int] = {}
        """pid -> pages in its slots."""
        self.flying: dict[Ticket, tuple[str, Proc]] = {}

    def _proc(self, index: int) -> Proc:
        params = SamplingParams(
            temperature=self.chance.choice([0.0, 1.0]),
            seed=index,
            repetition_penalty=self.chance.choice([1.0, 1.3]),
        )
        prompt = [self.chance.randrange(VOCAB) for _ in range(self.chance.randrange(1, 13))]
        return self.lab.proc(prompt, self.homes.pop(), params)

    def run(self) -> bool:
        """Whether all processes came to their end within a generous number of steps."""
        for _ in range(1000):
            if all(self._is_complete(proc) for proc in self.procs):
                return True
            self._begin()
            if self.flying:
                self.lab._pass_time()
                for completion in self.lab.poll():
                    self._end(*self.flying.pop(completion.ticket), completion)
        return False

    def _is_complete(self, proc: Proc) -> bool:
        return len(proc.tokens) - proc.prompt >= TARGET

    def _begin(self) -> None:
        """Something for each process that has nothing in flight."""
        busy = {proc.pid for _, proc in self.flying.values()}
        for proc in self.procs:
            if proc.pid in busy or self._is_complete(proc):
                continue
            slots = range(PAGES * (proc.pid - 1), PAGES * proc.pid)
            pages = -(-proc.done // PAGE)
            if proc.pid in self.away:
                count = self.away[proc.pid]
                if not self.homes:
                    continue
                proc.move(self.homes.pop(self.chance.randrange(len(self.homes))))
                copy = self.lab.copy_in(
                    *((slots[i], proc.done, proc.frames[i]) for i in range(count))
                )
                self.flying[self.lab.submit(copy)] = ("in", proc)
            elif pages and self.chance.random() < 0.3:
                out = self.lab.copy_out(
                    *((proc.frames[i], slots[i], proc.done) for i in range(pages))
                )
                self.flying[self.lab.submit(out)] = ("out", proc)
                if self.careless:
                    self.homes.append(proc.frames)
            else:
                row = proc.row(self.chance.choice([None, 1, 3]))
                forward = Forward(self.lab.ticket(), (row,), proc.take_delta())
                self.flying[self.lab.submit(forward)] = (f"run {len(row.tokens)}", proc)

    def _end(self, what: str, proc: Proc, completion: Completion) -> None:
        if what == "out" and isinstance(completion, CopyDone):
            self.away[proc.pid] = -(-proc.done // PAGE)
            if not self.careless:
                self.lab.poison(*proc.frames)
                self.homes.append(proc.frames)
        elif what == "in":
            del self.away[proc.pid]
            if isinstance(completion, CopyFailed):
                proc.done = min(proc.done, PAGE * completion.bad[0])
        elif isinstance(completion, ForwardDone):
            (result,) = completion.results
            if result is None or isinstance(result, Sampled):
                proc.done += int(what.split()[1])
            if isinstance(result, Sampled):
                proc.tokens.append(result.token)


@pytest.mark.parametrize("faulty", [False, True], ids=["sound", "faulty"])
def test_a_careful_caller_gets_the_truth(faulty: bool) -> None:
    for seed in range(150):
        world = World(seed, faulty)
        assert world.run(), f"seed {seed}"
        assert world.lab.sim.violations == [], f"seed {seed}"
        for proc in world.procs:
            assert world.lab.is_true(proc), f"seed {seed}, pid {proc.pid}"


def test_a_careless_caller_does_not() -> None:
    """The same worlds, but a frame is given away before its copy out has completed."""
    reported = harmed = 0
    for seed in range(40):
        world = World(seed, faulty=False, careless=True)
        ended = world.run()
        reported += bool(world.lab.sim.violations)
        harmed += not (ended and all(world.lab.is_true(proc) for proc in world.procs))
    assert reported > 30
    assert harmed > 15, "and it shows without looking at the reports"
