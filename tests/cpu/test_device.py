"""The driver's own promises, beside the conformance suite of tests/device/."""

import threading

import numpy as np
import pytest

from tokenix.drivers.cpu.device import CpuDevice
from tokenix.drivers.faults import Faults
from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    DeviceFault,
    Forward,
    ForwardDone,
    PageIn,
    PageOut,
    Poison,
    RowFault,
    Sampled,
    SamplingParams,
    TableDelta,
)
from tokenix.tests.cpu.conftest import CODED, TINY, RandomWeights
from tokenix.tests.device.bench import PATIENCE_S, Bench, row

GREEDY = SamplingParams()
BEYOND_VOCABULARY = TINY.vocab_tokens


class Scripted(Faults):
    """Fails or delays the commands of given tickets, corrupts given slots."""

    def __init__(self):
        self.fail = {}
        self.hold = {}
        self.corrupt = set()

    def before(self, command):
        ticket = getattr(command, "ticket", None)
        if ticket in self.hold:
            assert self.hold[ticket].wait(PATIENCE_S)
        if ticket in self.fail:
            raise self.fail[ticket]

    def published(self, page, data):
        if page.slot in self.corrupt:
            data[len(data) // 2] ^= 1


class CpuBench(Bench):
    """A device of 24 frames and 8 slots."""

    def __init__(self, **changes):
        self.faults = Scripted()
        settings = {"frames": 24, "host_slots": 8, "faults": self.faults, "threads": 2}
        super().__init__(CpuDevice(TINY, RandomWeights(TINY), **{**settings, **changes}))

    def frame(self, pfn):
        return self.device._arena.page_bytes(pfn)


@pytest.fixture
def bench():
    bench = CpuBench()
    yield bench
    bench.close()


def test_info_is_measured(bench):
    info = bench.device.info()
    assert (info.name, info.frames, info.host_slots, info.page_tokens) == ("cpu", 24, 8, 16)
    assert info.frame_bytes == 2 * 2 * TINY.layers * TINY.kv_heads * TINY.head_dim * 16
    assert 0 < info.step_s < 10
    assert info.prefill_tokens_per_s > 0
    assert 0 < info.copy_in_s_per_page < 1
    assert 0 < info.copy_out_s_per_page < 1


@pytest.mark.parametrize("kv", ["f16", "f32", pytest.param("bf16", marks=pytest.mark.slow), *CODED])
def test_a_page_survives_the_round_trip(kv, tokens):
    bench = CpuBench(kv_dtype=kv, dense="f32" if kv == "f32" else "f16")
    bench.draw(row(1, tokens[:32]), tables=(TableDelta(1, 0, (3, 4)),))
    before = [bench.frame(pfn).copy() for pfn in (3, 4)]
    assert before[0].any()
    out = (PageOut(3, 0, 5), PageOut(4, 7, 6))
    assert isinstance(bench.do(CopyOut, out), CopyDone)
    pages = (PageIn(0, 5, 10), PageIn(7, 6, 11))
    assert isinstance(bench.do(CopyIn, pages), CopyDone)
    assert all((bench.frame(pfn) == page).all() for pfn, page in zip((10, 11), before, strict=True))
    bench.device.close()


def test_a_frame_is_copied_on_the_device(bench, tokens):
    bench.draw(row(1, tokens[:16]), tables=(TableDelta(1, 0, (3,)),))
    assert isinstance(bench.do(CopyFrame, 3, 9), CopyDone)
    assert (bench.frame(9) == bench.frame(3)).all()
    assert bench.do(CopyFrame, 3, 24).bad == (0,)


def test_a_corrupt_slot_is_refused_alone(bench):
    bench.faults.corrupt.add(2)
    pages = tuple(PageOut(pfn, pfn, 1) for pfn in range(4))
    assert isinstance(bench.do(CopyOut, pages), CopyDone)
    failed = bench.do(CopyIn, tuple(PageIn(slot, 1, 10 + slot) for slot in range(4)))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (2,)
    assert "checksum" in failed.reason


@pytest.mark.parametrize(
    ("slot", "generation", "word"), [(1, 4, "nothing"), (0, 4, "generation 3")]
)
def test_a_slot_without_the_generation_is_refused(bench, slot, generation, word):
    bench.do(CopyOut, (PageOut(0, 0, 3),))
    failed = bench.do(CopyIn, (PageIn(slot, generation, 5), PageIn(0, 3, 6)))
    assert failed.bad == (0,)
    assert word in failed.reason


def test_a_slot_is_invalid_while_it_is_written(bench):
    bench.do(CopyOut, (PageOut(0, 0, 3),))
    assert bench.do(CopyOut, (PageOut(99, 0, 4),)).bad == (0,)
    assert isinstance(bench.do(CopyIn, (PageIn(0, 3, 6),)), CopyDone), "it was never begun"
    bench.device._slots.invalidate(0)
    assert isinstance(bench.do(CopyIn, (PageIn(0, 3, 6),)), CopyFailed)


def test_a_copy_fails_whole_and_the_queue_goes_on(bench):
    bench.faults.fail[1] = OSError("link down")
    failed = bench.do(CopyOut, (PageOut(0, 0, 1), PageOut(1, 1, 1)))
    assert failed.bad == (0, 1)
    assert "link down" in failed.reason
    assert isinstance(bench.do(CopyOut, (PageOut(0, 0, 1),)), CopyDone)


def test_a_held_copy_delays_no_forward(bench, tokens):
    bench.faults.hold[1] = threading.Event()
    held = bench.start(CopyOut, (PageOut(20, 0, 1),))
    drawn = bench.draw(row(1, tokens[:5]), tables=(TableDelta(1, 0, (3,)),))
    assert isinstance(drawn[0], Sampled)
    assert isinstance(bench.do(CopyIn, (PageIn(0, 1, 21),)), CopyFailed), "not yet published"
    bench.faults.hold[1].set()
    assert isinstance(bench.wait(held), CopyDone)
    assert isinstance(bench.do(CopyIn, (PageIn(0, 1, 21),)), CopyDone)


def test_an_exception_in_a_forward_is_a_device_fault(bench, tokens):
    bench.faults.fail[1] = RuntimeError("lost")
    work = ((row(1, tokens[:5]),), (TableDelta(1, 0, (3,)),))
    fault = bench.do(Forward, *work)
    assert isinstance(fault, DeviceFault)
    assert "lost" in fault.reason
    assert isinstance(bench.do(Forward, *work), ForwardDone)
    assert isinstance(bench.do(Forward, (row(1, [1]), row(1, [1]))), DeviceFault)


@pytest.mark.parametrize(
    ("bad", "delta", "word"),
    [
        (row(2, [1] * 17), TableDelta(2, 0, (5,)), "block table covers 16"),
        (row(2, [1], 16), TableDelta(2, 0, (5,)), "block table covers 16"),
        (row(2, [1]), None, "block table covers 0"),
        (row(2, [1]), TableDelta(2, 0, (24,)), "names frame 24"),
        (row(2, [1]), TableDelta(2, 0, (-1,)), "names frame -1"),
        (row(2, [1]), TableDelta(2, 1, (5,)), "keeps 1 pages of 0"),
        (row(2, [1], -1), TableDelta(2, 0, (5,)), "from position -1"),
        (row(2, [1], TINY.max_context_tokens), TableDelta(2, 0, (5,) * 17), "passes the context"),
        (row(2, [BEYOND_VOCABULARY]), TableDelta(2, 0, (5,)), "outside the vocabulary"),
    ],
)
def test_an_impossible_row_fails_alone(bench, tokens, bad, delta, word):
    good = row(1, tokens[:20])
    tables = (TableDelta(1, 0, (3, 4)), *([delta] if delta else []))
    (alone,) = bench.draw(good, tables=tables[:1])
    fault, drawn = bench.draw(bad, good, tables=tables)
    assert isinstance(fault, RowFault)
    assert word in fault.reason
    assert drawn == alone


def test_a_poisoned_frame_is_a_row_fault(bench, tokens):
    tables = (TableDelta(1, 0, (3, 4)), TableDelta(2, 0, (5, 6)))
    drawn = bench.draw(row(1, tokens[:20]), row(2, tokens[:20]), tables=tables)
    bench.device.submit(Poison((3,)), 0.0)
    results = bench.draw(row(1, [7], 20), row(2, [7], 20))
    assert isinstance(results[0], RowFault)
    assert isinstance(results[1], Sampled)
    assert bench.draw(row(1, tokens[:20]), row(2, tokens[:20])) == drawn


def test_close_ends_the_threads_and_drops_what_waits(tokens):
    bench = CpuBench()
    bench.faults.hold[1] = threading.Event()
    for _ in range(3):
        bench.start(CopyOut, (PageOut(0, 0, 1),))
    held = bench.device._out
    held.stop()
    bench.faults.hold[1].set()
    held.join()
    bench.device.close()
    bench.device.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tokenix-") and t.is_alive()]
    assert len(bench.device.poll(0.0)) <= 1


def test_progress_is_told():
    seen = []
    bench = CpuBench(progress=lambda stage, part: seen.append((stage, part)))
    bench.device.close()
    assert ("packing weights", 1.0) in seen
    assert all(0 <= part <= 1 for _, part in seen)


@pytest.mark.parametrize(
    ("changes", "word"), [({"page_tokens": 8}, "multiple of 16"), ({"page_tokens": 24}, "multiple")]
)
def test_what_the_kernels_do_not_cover_is_refused(changes, word):
    with pytest.raises(ValueError, match=word):
        CpuBench(**changes)


def test_weights_beyond_float16_are_refused():
    weights = RandomWeights(TINY)
    weights.tensors["layers.0.q"][0, 0] = 1e5
    with pytest.raises(ValueError, match="float16"):
        CpuDevice(TINY, weights, frames=4, host_slots=0)


def test_no_host_slots_is_allowed(tokens):
    bench = CpuBench(host_slots=0)
    assert isinstance(bench.draw(row(1, [1]), tables=(TableDelta(1, 0, (0,)),))[0], Sampled)
    assert bench.do(CopyOut, (PageOut(0, 0, 1),)).bad == (0,)
    assert np.isfinite(bench.device.info().copy_in_s_per_page)
    bench.device.close()
