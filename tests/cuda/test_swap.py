"""Frames and slots on the fake GPU: what is behind a fence, what is verified, what is one copy."""

import threading

import numpy as np
import pytest

from tokenix.drivers.cuda import swap
from tokenix.drivers.cuda.ranks.lanes import MemberLanes
from tokenix.drivers.cuda.swap import Run, SwapLanes, merge
from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    Forward,
    ForwardDone,
    PageIn,
    PageOut,
    Poison,
    TableDelta,
)
from tokenix.tests.cuda.bench import CudaBench
from tokenix.tests.device.bench import row

SEEDS = range(8)
LANES = pytest.mark.parametrize("lanes", [SwapLanes, MemberLanes])
"""Of a device, and of what other ranks have of one."""


@pytest.fixture
def bench(fake):
    bench = CudaBench()
    yield bench
    bench.close()


def lazy(seed, lanes):
    """Nothing happens there before somebody waits."""
    bench = CudaBench(seed, eager_percent=0)
    device = bench.device
    if not isinstance(device._lanes, lanes):
        device._lanes = lanes(device._driver, device._arena, device._slots, device._computed)
        device._parts.callback(device._lanes.close)
    return bench


def paint(bench, **frames):
    """Give frames f0, f1 ... a byte each; whatever was queued is done before."""
    bench.do(Forward, ())
    for name, value in frames.items():
        bench.frame(int(name[1:]))[:] = value


@pytest.mark.parametrize(
    ("pairs", "runs"),
    [
        ([], []),
        ([(3, 7)], [Run(3, 7, 1)]),
        ([(3, 7), (4, 8), (5, 9)], [Run(3, 7, 3)]),
        ([(5, 9), (3, 7), (4, 8)], [Run(3, 7, 3)]),
        ([(3, 7), (4, 9), (5, 10)], [Run(3, 7, 1), Run(4, 9, 2)]),
        ([(3, 7), (5, 8)], [Run(3, 7, 1), Run(5, 8, 1)]),
        ([(3, 8), (4, 7)], [Run(3, 8, 1), Run(4, 7, 1)]),
    ],
)
def test_neighbours_are_one_copy(pairs, runs):
    assert merge(pairs) == runs


def test_runs_are_exact(seed):
    """Every pair once, in the fewest runs."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        pfns = rng.permutation(40)[:20].tolist()
        slots = [pfn + int(rng.integers(0, 2)) * 50 for pfn in pfns]
        runs = merge(zip(pfns, slots, strict=True))
        again = [(run.pfn + i, run.slot + i) for run in runs for i in range(run.pages)]
        assert again == sorted(zip(pfns, slots, strict=True))
        ends = {(run.pfn + run.pages, run.slot + run.pages) for run in runs}
        assert not ends & {(run.pfn, run.slot) for run in runs}


def test_neighbours_move_in_one_copy(bench, fake):
    paint(bench, f3=1, f4=2, f5=3, f9=4)
    before = fake.copies
    out = tuple(PageOut(pfn, slot, 1) for pfn, slot in ((3, 0), (4, 1), (5, 2), (9, 6)))
    assert isinstance(bench.do(CopyOut, out), CopyDone)
    assert fake.copies == before + 2
    back = tuple(PageIn(slot, 1, pfn) for pfn, slot in ((20, 0), (21, 1), (22, 2), (23, 6)))
    assert isinstance(bench.do(CopyIn, back), CopyDone)
    assert fake.copies == before + 4
    assert [int(bench.frame(pfn)[-1]) for pfn in (20, 21, 22, 23)] == [1, 2, 3, 4]


@pytest.mark.parametrize("group_bytes", [1, 1 << 15])
def test_groups_are_published_in_any_number(fake, monkeypatch, group_bytes):
    monkeypatch.setattr(swap, "GROUP_BYTES", group_bytes)
    bench = CudaBench()
    for pfn in range(9):
        bench.frame(pfn)[:] = pfn
    out = tuple(PageOut(pfn, 15 - pfn, pfn) for pfn in range(9))
    assert isinstance(bench.do(CopyOut, out), CopyDone)
    back = tuple(PageIn(15 - pfn, pfn, 20 + pfn) for pfn in range(9))
    assert isinstance(bench.do(CopyIn, back), CopyDone)
    assert [int(bench.frame(20 + pfn)[0]) for pfn in range(9)] == list(range(9))
    bench.close()


@LANES
def test_a_copy_out_waits_for_what_writes_the_frame(fake, lanes):
    """For the kernel a frame is copied once that is queued; the fence orders what follows."""
    for seed in SEEDS:
        bench = lazy(seed, lanes)
        paint(bench, f1=1, f2=2)
        assert isinstance(bench.do(CopyFrame, 1, 2), CopyDone)
        assert isinstance(bench.do(CopyOut, (PageOut(2, 0, 1),)), CopyDone)
        assert isinstance(bench.do(CopyIn, (PageIn(0, 1, 9),)), CopyDone)
        assert (bench.frame(9) == 1).all(), seed
        bench.close()


@LANES
def test_a_copy_in_waits_for_what_reads_the_frame(fake, lanes):
    for seed in SEEDS:
        bench = lazy(seed, lanes)
        paint(bench, f1=1, f2=2, f3=3)
        bench.do(CopyOut, (PageOut(3, 0, 1),))
        assert isinstance(bench.do(CopyFrame, 1, 2), CopyDone)
        assert isinstance(bench.do(CopyIn, (PageIn(0, 1, 1),)), CopyDone)
        bench.do(Forward, ())
        assert (bench.frame(2) == 1).all(), seed
        assert (bench.frame(1) == 3).all()
        bench.close()


def test_a_copy_waits_for_the_poison_before_it(fake):
    """A frame that was poisoned gets its page for good."""
    for seed in SEEDS:
        bench = CudaBench(seed, eager_percent=0)
        paint(bench, f1=1)
        bench.do(CopyOut, (PageOut(1, 0, 1),))
        bench.device.submit(Poison((5,)), 0.0)
        assert isinstance(bench.do(CopyFrame, 8, 99), CopyFailed), "behind it on the queue"
        bench.do(CopyIn, (PageIn(0, 1, 5),))
        bench.do(Forward, ())
        assert (bench.frame(5) == 1).all(), seed
        bench.close()


def test_a_slot_is_read_only_after_its_copy(fake):
    """The checksum is that of what the GPU has written, or the page could not come back."""
    for seed in SEEDS:
        bench = CudaBench(seed, eager_percent=0)
        for turn in range(3):
            paint(bench, f1=turn + 1)
            bench.do(CopyOut, (PageOut(1, 0, turn),))
            assert (bench.device._slots.peek(0) == turn + 1).all(), seed
            assert isinstance(bench.do(CopyIn, (PageIn(0, turn, 2),)), CopyDone), seed
            assert (bench.frame(2) == turn + 1).all(), "done means done"
        bench.close()


@pytest.mark.parametrize("way", ["out", "in"])
def test_neither_way_waits_for_the_other(fake, way):
    """What is under way on one copy engine does not hold up the other: in some order of streams it
    is not done yet when the other way is."""
    ran = []
    for seed in SEEDS:
        bench = CudaBench(seed, eager_percent=0)
        paint(bench, f1=1)
        bench.do(CopyOut, (PageOut(1, 0, 1),))
        lanes, driver = bench.device._lanes, bench.device._driver
        frame, slot, size = bench.device._arena.at(9), lanes._at(5), lanes.slots.padded_bytes
        before = fake.copies
        for _ in range(3):
            if way == "out":
                driver.copy_in(frame, slot, size, lanes._in)
            else:
                driver.copy_out(slot, frame, size, lanes._out)
        command = (CopyOut, (PageOut(1, 1, 1),)) if way == "out" else (CopyIn, (PageIn(0, 1, 2),))
        assert isinstance(bench.do(*command), CopyDone)
        ran.append(fake.copies - before)
        bench.close()
    assert min(ran) == 1


def test_copies_run_beside_a_pass(fake):
    """Write-behind and loads need only their engines: in some order of streams both are done when
    nothing of the pass is."""
    ran = []
    for seed in SEEDS:
        bench = CudaBench(seed, eager_percent=0)
        paint(bench, f1=1)
        bench.do(CopyOut, (PageOut(1, 0, 1),))
        step, queued, gate = bench.device._step, threading.Event(), threading.Event()
        launch = step.launch

        def held(rows, before, beside, launch=launch, queued=queued, gate=gate):
            take = launch(rows, before, beside)
            return lambda: (queued.set(), gate.wait(100), take())[2]

        step.launch = held
        before = fake.launches
        going = bench.start(Forward, (row(1, range(20)),), (TableDelta(1, 0, (8, 9)),))
        assert queued.wait(100)
        assert isinstance(bench.do(CopyOut, (PageOut(1, 1, 1),)), CopyDone)
        assert isinstance(bench.do(CopyIn, (PageIn(0, 1, 2),)), CopyDone)
        ran.append(fake.launches - before)
        gate.set()
        assert isinstance(bench.wait(going), ForwardDone)
        assert fake.launches > before
        bench.close()
    assert min(ran) == 0


def test_a_load_is_verified_while_pages_leave(bench, monkeypatch):
    """Each way has a thread of its own, too."""
    paint(bench, f1=1, f2=2)
    bench.do(CopyOut, (PageOut(1, 0, 1),))
    lanes, gate = bench.device._lanes, threading.Event()
    differs = lanes._differs
    monkeypatch.setattr(lanes, "_differs", lambda *args: differs(*args) if gate.wait(100) else "")
    load = bench.start(CopyIn, (PageIn(0, 1, 3),))
    assert isinstance(bench.do(CopyOut, (PageOut(2, 1, 1),)), CopyDone)
    assert load not in bench.done
    gate.set()
    assert isinstance(bench.wait(load), CopyDone) and (bench.frame(3) == 1).all()


def test_a_corrupt_slot_is_refused_alone(bench):
    paint(bench, **{f"f{pfn}": pfn + 1 for pfn in range(4)})
    bench.faults.slots.add(2)
    pages = tuple(PageOut(pfn, pfn, 1) for pfn in range(4))
    assert isinstance(bench.do(CopyOut, pages), CopyDone)
    paint(bench, f12=99)
    failed = bench.do(CopyIn, tuple(PageIn(slot, 1, 10 + slot) for slot in range(4)))
    assert isinstance(failed, CopyFailed) and failed.bad == (2,)
    assert "checksum" in failed.reason
    assert [int(bench.frame(10 + slot)[0]) for slot in range(4)] == [1, 2, 99, 4]


@pytest.mark.parametrize(
    ("slot", "generation", "word"), [(1, 4, "nothing"), (0, 4, "generation 3"), (99, 3, "slot 99")]
)
def test_a_slot_without_the_generation_is_refused(bench, slot, generation, word):
    bench.do(CopyOut, (PageOut(0, 0, 3),))
    failed = bench.do(CopyIn, (PageIn(slot, generation, 5), PageIn(0, 3, 6)))
    assert failed.bad == (0,)
    assert word in failed.reason


def test_a_frame_that_is_none_fails_alone(bench):
    failed = bench.do(CopyOut, (PageOut(32, 0, 1), PageOut(1, 1, 1)))
    assert failed.bad == (0,) and "frame 32" in failed.reason
    assert bench.do(CopyIn, (PageIn(1, 1, 40), PageIn(1, 1, 3))).bad == (0,)
    assert bench.do(CopyFrame, 3, 32).bad == (0,)


def test_a_copy_that_the_driver_refuses_fails_whole_and_the_lane_goes_on(bench, fake):
    fake.fail("cuMemcpyDtoHAsync_v2", 1, after=1)
    out = tuple(PageOut(2 * pfn, pfn, 1) for pfn in range(3))
    failed = bench.do(CopyOut, out)
    assert failed.bad == (0, 1, 2) and "cuMemcpyDtoHAsync" in failed.reason
    assert bench.do(CopyIn, (PageIn(0, 1, 9),)).bad == (0,), "not published"
    assert isinstance(bench.do(CopyOut, out), CopyDone)
    fake.fail("cuMemcpyHtoDAsync_v2", 1)
    assert bench.do(CopyIn, (PageIn(0, 1, 9),)).bad == (0,)
    assert isinstance(bench.do(CopyIn, (PageIn(0, 1, 9),)), CopyDone)
