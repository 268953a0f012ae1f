"""Loads by layers on the fake GPU: each layer of the pass beside one waits for its part of the
pages, and for no more; and nothing counts before all of them are verified.

Nothing runs on the fake before somebody waits for it, and then in an order that is drawn: what no
event orders is in the wrong order in some of them.
"""

import threading
from dataclasses import replace

import pytest

from tokenix.drivers.cuda import arrival
from tokenix.drivers.cuda.arrival import parts_of
from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    Decodes,
    DeviceFault,
    Forward,
    ForwardDone,
    PageIn,
    PageOut,
    RowFault,
    Sampled,
    TableDelta,
)
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.bench import CudaBench
from tokenix.tests.cuda.twins import TWINS
from tokenix.tests.device.bench import row
from tokenix.tests.device.machine import words
from tokenix.tests.device.tiny import RandomWeights

CONFIG = replace(rig.TINY, layers=4)
WEIGHTS = RandomWeights(CONFIG)
SEEDS = range(12)
PATIENCE_S = 30.0

PROMPT = words(50, CONFIG.vocab_tokens, 3)
KEPT = 40
"""Tokens of it whose pages are loaded, the last of them in part."""
OLD, NEW = (1, 2, 3, 4), (9, 5, 12, 13)


def loads(kept=KEPT):
    """Of the pages of so many tokens."""
    return tuple(PageIn(slot, 1, pfn) for slot, pfn in enumerate(NEW[: -(-kept // 16)]))


def boot(seed=1, eager_percent=0, kept=KEPT):
    """The beginning of the prompt is in the first slots, and nowhere else."""
    bench = CudaBench(seed, eager_percent, config=CONFIG, weights=WEIGHTS)
    bench.draw(row(1, PROMPT[:kept]), tables=(TableDelta(1, 0, OLD),))
    out = tuple(PageOut(OLD[page.slot], page.slot, 1) for page in loads(kept))
    assert isinstance(bench.do(CopyOut, out), CopyDone)
    for pfn in (*OLD, *NEW):
        bench.frame(pfn)[:] = 0xFF
    return bench


def ask(beside, kept=KEPT, others=()):
    """A forward of what is behind in the prompt beside a load, and of others in it."""
    rows = (*others, row(2, PROMPT[kept:], kept))
    return rows, (TableDelta(2, 0, NEW),), (), Decodes(), False, beside


def run_beside(bench, kept=KEPT):
    """What the load and the pass beside it come to. All of the load is queued before the pass, and
    nobody waits for it before the pass has run: what the pass does not wait for may come later."""
    with pytest.MonkeyPatch.context() as patch:
        gate, find = Gated(bench, "_checksums"), arrival.Arrival.find_spoiled

        def ran(self, readers):
            gate.open()
            return find(self, readers)

        patch.setattr(arrival.Arrival, "find_spoiled", ran)
        load = bench.start(CopyIn, loads(kept), True)
        assert gate.reached.wait(PATIENCE_S)
        done = bench.do(Forward, *ask(load, kept))
        gate.close()
    return bench.done.pop(load), done


@pytest.fixture(scope="module")
def told():
    """What is drawn behind the prompt."""
    fakes = rig.fake.load()
    fakes.reset()
    bench = CudaBench()
    bench.device.close()
    bench = CudaBench(config=CONFIG, weights=WEIGHTS)
    (drawn,) = bench.draw(row(1, PROMPT), tables=(TableDelta(1, 0, (1, 2, 3, 4)),))
    bench.close()
    return drawn.token


@pytest.mark.parametrize(
    ("layers", "bounds"),
    [(1, [0]), (2, [0, 1]), (8, range(8)), (9, [0, 1, 2, 3, 4, 5, 6, 7]), (32, range(0, 32, 4))],
)
def test_layers_are_divided_evenly(layers, bounds):
    parts = parts_of(layers)
    assert [part.start for part in parts] == list(bounds)
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("kept", [KEPT, len(PROMPT) - 1], ids=["prompt", "token"])
def test_a_pass_reads_what_the_load_brings(fake, told, kept):
    """In any order of streams. A token alone is run as a graph, from the second time on."""
    for seed in SEEDS:
        bench = boot(seed, kept=kept)
        for _ in range(3):
            bench.draw(row(3, [7]), tables=(TableDelta(3, 0, (20,)),))
        loaded, done = run_beside(bench, kept)
        assert isinstance(loaded, CopyDone), seed
        assert [drawn.token for drawn in done.results] == [told], seed
        bench.close()


def test_each_layer_waits_for_its_part_of_the_pages_and_for_no_more(fake, monkeypatch):
    """What has come when it begins to write: its part at least, and in some order not the next."""
    seen, plain = [], TWINS["append"]

    def append(twin, grid, values):
        seen.append(fake.in_bytes)
        plain(twin, grid, values)

    monkeypatch.setitem(TWINS, "append", append)
    found = []
    for seed in SEEDS:
        bench = boot(seed)
        del seen[:]
        before = fake.in_bytes
        bench.do(Forward, (row(4, PROMPT[KEPT:]),), (TableDelta(4, 0, (20, 21, 22, 23)),))
        inputs = seen[0] - before
        del seen[:]
        before = fake.in_bytes
        run_beside(bench)
        found.append([at - before - inputs for at in seen])
        bench.close()
    part = len(loads()) * 4 * bench.device._arena.shape.layer_words
    for layer, there in enumerate(zip(*found, strict=True)):
        assert (layer + 1) * part <= min(there), f"layer {layer}"
        assert min(there) < min(layer + 2, 4.1) * part, f"layer {layer}"


def test_the_copies_wait_for_what_was_queued_before_them(fake):
    """As those of any load: a frame is read by its copy first."""
    for seed in SEEDS:
        bench = boot(seed)
        bench.frame(NEW[0])[:] = 5
        assert isinstance(bench.do(CopyFrame, NEW[0], 20), CopyDone)
        loaded, _ = run_beside(bench)
        assert isinstance(loaded, CopyDone)
        bench.do(Forward, ())
        assert (bench.frame(20) == 5).all(), seed
        bench.close()


class Gated:
    """Holds a method of the lanes up before its `nth` call."""

    def __init__(self, bench, name, nth=0):
        self.reached, self._go, self._left = threading.Event(), threading.Event(), nth
        self._lanes, self._name = bench.device._lanes, name
        self._plain = getattr(self._lanes, name)
        setattr(self._lanes, name, self)

    def __call__(self, *args):
        if self._left == 0:
            self.reached.set()
            assert self._go.wait(PATIENCE_S)
        self._left -= 1
        return self._plain(*args)

    def open(self):
        self._go.set()

    def close(self):
        """It is no more."""
        setattr(self._lanes, self._name, self._plain)


def test_a_part_that_was_not_queued_yet_is_waited_for(fake, told, monkeypatch):
    """An event orders nothing before it was recorded."""
    bench = boot()
    gate = Gated(bench, "_copy_part", nth=2)
    load = bench.start(CopyIn, loads(), True)
    assert gate.reached.wait(PATIENCE_S)
    held, plain = threading.Event(), arrival.Arrival._wait

    def wait(self, what, part=None):
        if part == 2:
            held.set()
        plain(self, what, part)

    monkeypatch.setattr(arrival.Arrival, "_wait", wait)
    going = bench.start(Forward, *ask(load))
    assert held.wait(PATIENCE_S)
    gate.open()
    assert [drawn.token for drawn in bench.wait(going).results] == [told]
    bench.close()


def test_tokens_are_told_after_the_load_is_verified(fake, told, monkeypatch):
    bench = boot(eager_percent=100)
    gate = Gated(bench, "_differs")
    load = bench.start(CopyIn, loads(), True)
    assert gate.reached.wait(PATIENCE_S)
    verifying, plain = threading.Event(), arrival.Arrival.find_spoiled

    def find(self, readers):
        verifying.set()
        return plain(self, readers)

    monkeypatch.setattr(arrival.Arrival, "find_spoiled", find)
    going = bench.start(Forward, *ask(load))
    assert verifying.wait(PATIENCE_S), "it has run"
    assert not bench.device.poll(0.0)
    gate.open()
    done = bench.wait(going)
    assert isinstance(bench.done.pop(load), CopyDone)
    assert [drawn.token for drawn in done.results] == [told]
    bench.close()


@pytest.mark.parametrize("how", ["checksum", "copy", "command"])
def test_what_was_computed_with_pages_that_are_none_is_not_told(fake, how, monkeypatch):
    """Whatever goes wrong; who is in the pass too is not concerned, and the next load is fine."""
    bench = boot(eager_percent=10)
    other = row(3, [7, 8])
    (fine,) = bench.draw(other, tables=(TableDelta(3, 0, (20,)),))
    if how == "checksum":
        bench.device._slots.peek(1)[5] ^= 1
    elif how == "copy":
        fake.fail(fake.symbol("cuMemcpy2DAsync"), 1, after=4)
    else:
        before = bench.faults.before
        monkeypatch.setattr(
            bench.faults, "before",
            lambda command: "planned" if isinstance(command, CopyIn) else before(command),
        )  # fmt: skip
    load = bench.start(CopyIn, loads(), True)
    done = bench.do(Forward, *ask(load, others=(other,)))
    failed = bench.done.pop(load)
    assert isinstance(failed, CopyFailed)
    assert failed.bad == ((1,) if how == "checksum" else (0, 1, 2))
    assert isinstance(done, ForwardDone) and done.results[0] == fine
    assert isinstance(done.results[1], RowFault) and "not loaded" in done.results[1].reason
    monkeypatch.undo()
    if how == "checksum":
        bench.device._slots.peek(1)[5] ^= 1
    loaded, done = run_beside(bench)
    assert isinstance(loaded, CopyDone) and isinstance(done.results[0], Sampled)
    bench.close()


def test_a_load_that_hangs_fails_the_pass_beside_it_and_no_other(fake, monkeypatch):
    monkeypatch.setattr(arrival, "PATIENCE_S", 0.05)
    bench = boot()
    gate = Gated(bench, "_copy_part", nth=1)
    load = bench.start(CopyIn, loads(), True)
    fault = bench.do(Forward, *ask(load))
    assert isinstance(fault, DeviceFault) and "not copied within" in fault.reason
    (fine,) = bench.draw(row(3, [7, 8]), tables=(TableDelta(3, 0, (20,)),))
    assert isinstance(fine, Sampled)
    gate.open()
    assert isinstance(bench.wait(load), CopyDone)
    bench.close()
