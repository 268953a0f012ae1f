"""Two passes in flight on the fake GPU: the second finds on the device what the first has drawn."""

import ctypes

import numpy as np
import pytest

from tokenix.drivers.cuda import device as devices
from tokenix.drivers.cuda.devicetables import DeviceTables
from tokenix.drivers.ops import Forward, ForwardDone, TableDelta
from tokenix.drivers.sampling import SamplingParams
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.bench import CudaBench
from tokenix.tests.device.line import Gate, Line
from tokenix.tests.device.machine import Harness, Machine, words

pytestmark = pytest.mark.timeout(400)

VOCAB = rig.TINY.vocab_tokens
PLAIN = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.2, top_k=9, seed=4),
    SamplingParams(temperature=1.5, top_p=0.97, seed=5),
]
STEPS = 9


@pytest.fixture
def bench(fake):
    """A machine; its gate; what the compute thread does, in order."""
    machines = []

    def make(seed=1, eager_percent=10):
        gate = Gate()
        machine = Machine(
            Harness(
                "cuda", VOCAB, 16,
                lambda frames, slots, page: rig.device(
                    seed, eager_percent, frames=frames, host_slots=slots, faults=gate
                ),
            )
        )  # fmt: skip
        machines.append(machine)
        done, step = [], machine.device._step
        plain = step.launch

        def launch(rows, before, beside):
            done.append("launch")
            take = plain(rows, before, beside)
            return lambda: (done.append("take"), take())[1]

        step.launch = launch
        return machine, gate, done

    yield make
    for machine in machines:
        machine.close()
    assert rig.failures() == []


def streams(machine, draws=PLAIN):
    return [
        machine.proc(words(7 + 5 * i, VOCAB, i), range(4 * i, 4 * i + 4), params)
        for i, params in enumerate(draws)
    ]


def tokens_of(procs):
    return [[drawn.token for drawn in proc.drawn] for proc in procs]


def run_ahead(machine, gate):
    """Each pass is there before the one before it has ended."""
    procs, line = streams(machine), Line(machine)
    gate.shut()
    line.launch(procs)
    for n in range(STEPS - 1):
        line.launch(procs[:: -1 if n % 2 else 1], columns=n > 2)
        gate.open()
        line.land()
        gate.shut()
    gate.open()
    line.land()
    return procs


@pytest.mark.parametrize("seed", range(4))
def test_tokens_stay_on_the_device(bench, seed):
    """In any order in which streams may run, captured or not."""
    machine, gate, done = bench(seed=7)
    told = streams(machine)
    machine.decode(*told, tokens=STEPS)
    del done[:]
    machine, gate, done = bench(seed, eager_percent=0 if seed % 2 else 10)
    procs = run_ahead(machine, gate)
    assert tokens_of(procs) == tokens_of(told)
    assert done[:3] == ["launch", "launch", "take"]


def test_a_pass_is_queued_while_the_one_before_runs(bench, fake):
    """The host waits for nothing of it but its inputs: else the GPU is idle between two passes."""
    machine, gate, _ = bench(eager_percent=0)
    procs, line, step = streams(machine, PLAIN[:1]), Line(machine), machine.device._step
    machine.decode(*procs, tokens=3)  # warm, and captured
    counts, plain = [], step.launch

    def launch(rows, before, beside):
        take = plain(rows, before, beside)
        counts.append(fake.launches)
        return take

    step.launch = launch
    gate.shut()
    for pfn in (30, 31):
        procs[0].frames.append(pfn)  # and its table is longer
        line.launch(procs)
    before = fake.launches
    gate.open()
    line.land()
    line.land()
    assert counts == [before, before] and fake.launches > before


def test_tables_that_change_in_every_pass_are_followed(bench):
    results = []
    for ahead in (False, True):
        machine, gate, _ = bench(eager_percent=0)
        (early, late), line = streams(machine, PLAIN[:2]), Line(machine)
        machine.decode(early, tokens=2)
        early.move(early.frames)  # all of its table is told again
        gate.shut()
        line.launch([early])
        if not ahead:
            gate.open()
            line.land()
        line.launch([late])
        gate.open()
        while line.flights:
            line.land()
        results.append(tokens_of([early, late]))
    assert results[0] == results[1]


def test_tables_move_behind_the_pass_before(bench, monkeypatch):
    """There is room for one process: the second one's pass takes more while the first one's still
    has its table to read."""
    monkeypatch.setattr(DeviceTables, "FIRST_SLOTS", 1)
    results = []
    for ahead in (False, True):
        machine, gate, _ = bench(eager_percent=0)
        procs, line = streams(machine, PLAIN[:2]), Line(machine)
        before = machine.device._tables.address
        gate.shut()
        line.launch(procs[:1])
        if not ahead:
            gate.open()
            line.land()
        line.launch(procs[1:])
        gate.open()
        while line.flights:
            line.land()
        assert machine.device._tables.address != before
        machine.decode(*procs, tokens=2)
        results.append(tokens_of(procs))
    assert results[0] == results[1]


def test_more_changes_of_tables_than_there_is_room_for(fake, monkeypatch):
    """Room is used again when what was in it has been copied."""
    monkeypatch.setattr(devices, "SPARE_WORDS", 0)  # that is: room for one whole table
    for seed in range(4):
        device = CudaBench(seed, eager_percent=0)
        tables = [TableDelta(pid, 0, tuple(range(pid, pid + 20))) for pid in (1, 2, 3)]
        assert isinstance(device.do(Forward, (), tuple(tables)), ForwardDone)
        inside = device.device._tables
        shape = inside.host.pages.shape
        size = 4 * shape[0] * shape[1]
        found = np.frombuffer((ctypes.c_ubyte * size).from_address(inside.address), np.int32)
        for delta in tables:
            row = found.reshape(shape)[inside.host.row_of(delta.pid)]
            assert tuple(row[:20]) == delta.frames, (seed, delta.pid)
        device.close()


@pytest.mark.parametrize(
    "params", [SamplingParams(logprobs=2), SamplingParams(logit_bias=((1, 2),))]
)
def test_what_is_drawn_here_is_drawn_before_the_next_pass(bench, params):
    """Its logits are there only so long."""
    results = []
    for ahead in (False, True):
        machine, gate, done = bench()
        asking, other = streams(machine, [params, SamplingParams()])
        line = Line(machine)
        gate.shut()
        line.launch([asking])
        if not ahead:
            gate.open()
            line.land()
        line.launch([other])
        gate.open()
        while line.flights:
            line.land()
        assert done == ["launch", "take", "launch", "take"]
        results.append((asking.drawn, other.drawn))
    assert results[0] == results[1]


def test_a_device_closes_with_passes_in_flight(bench):
    machine, gate, _ = bench(eager_percent=0)
    procs, line = streams(machine), Line(machine)
    gate.shut()
    line.launch(procs)
    line.launch(procs)
    gate.open()
    machine.device.close()
    assert rig.failures() == []
