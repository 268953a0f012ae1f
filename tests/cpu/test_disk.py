"""The device's disk tier: what goes wrong there is a failed page, and delays nobody else."""

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from tokenix.drivers.cpu.slots import ArenaSlots
from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    CopyIn,
    CopyOut,
    Fetch,
    PageFetch,
    PageIn,
    PageOut,
    PageStore,
    Sampled,
    Store,
    SwapOff,
    SwapOn,
    TableDelta,
)
from tokenix.drivers.swapfile import ALIGNMENT
from tokenix.tests.cpu.conftest import TINY
from tokenix.tests.cpu.test_device import CpuBench, Scripted
from tokenix.tests.device.bench import PATIENCE_S, row
from tokenix.tests.device.swap import flip_bit, truncate
from tokenix.tests.tidy.tree import ROOT


class DiskFaults(Scripted):
    """Also fails reads of given blocks, and holds reads and writes."""

    def __init__(self):
        super().__init__()
        self.unreadable = set()
        self.unwritable = set()
        self.reads_pass = threading.Event()
        self.writes_pass = threading.Event()
        self.reads_pass.set()
        self.writes_pass.set()

    def preadv(self, fd, buffers, offset):
        assert self.reads_pass.wait(PATIENCE_S)
        fail(self.unreadable, buffers, offset)
        return super().preadv(fd, buffers, offset)

    def pwritev(self, fd, buffers, offset):
        assert self.writes_pass.wait(PATIENCE_S)
        fail(self.unwritable, buffers, offset)
        return super().pwritev(fd, buffers, offset)


def fail(blocks, buffers, offset):
    first = offset // ALIGNMENT
    if blocks.intersection(range(first, first + len(buffers))):
        raise OSError(errno.EIO, "Input/output error")


class DiskBench(CpuBench):
    """A device whose first four frames are full, in slots 0 to 3 of generation 1; a swap file."""

    def __init__(self, directory, tokens, **changes):
        super().__init__(faults=DiskFaults(), **changes)
        self.faults = self.device._faults
        self.on = self.do(SwapOn, str(directory), 8)
        delta = TableDelta(1, 0, (0, 1, 2, 3))
        self.draw(row(1, tokens[:64]), tables=(delta,))
        out = self.do(CopyOut, tuple(PageOut(i, i, 1) for i in range(4)))
        assert isinstance(out, CopyDone)

    def store(self, *pairs, generation=1):
        return self.do(Store, stores(*pairs, generation=generation))

    def fetch(self, *pairs, generation=1):
        return self.do(Fetch, fetches(*pairs, generation=generation))

    @property
    def file(self):
        return self.device._disk._file


def stores(*pairs, generation=1):
    """Of (slot, block)s."""
    return tuple(PageStore(slot, 1, block, generation) for slot, block in pairs)


def fetches(*pairs, generation=1):
    """Of (block, slot)s."""
    return tuple(PageFetch(block, generation, slot, 1) for block, slot in pairs)


@pytest.fixture
def bench(tmp_path, tokens):
    bench = DiskBench(tmp_path, tokens)
    yield bench
    bench.device.close()


SHAPES = {
    "whole": ({}, "f16"),
    "padded": ({"kv_heads": 1, "layers": 3}, "f16"),
    "float32": ({}, "f32"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_page_survives_all_tiers(tmp_path, tokens, monkeypatch, shape):
    changes, kv = SHAPES[shape]
    monkeypatch.setattr("tokenix.tests.cpu.test_device.TINY", replace(TINY, **changes))
    bench = DiskBench(tmp_path, tokens, kv_dtype=kv)
    before = [bench.frame(pfn).copy() for pfn in range(4)]
    assert before[0].any()
    assert isinstance(bench.store((0, 7), (1, 0), (2, 1), (3, 3)), CopyDone)
    assert isinstance(bench.fetch((7, 4), (0, 5), (1, 6), (3, 7)), CopyDone)
    pages = tuple(PageIn(4 + i, 1, 10 + i) for i in range(4))
    assert isinstance(bench.do(CopyIn, pages), CopyDone)
    assert all((bench.frame(10 + i) == before[i]).all() for i in range(4))
    bench.device.close()


def test_swap_on_measures(bench):
    assert (bench.on.blocks, bench.on.reason) == (8, "")
    assert 0 < bench.on.store_s_per_page < 1
    assert 0 < bench.on.fetch_s_per_page < 1


@pytest.mark.parametrize("frame_bytes", [8, 3072, 4096, 4104, 368_640])
def test_slots_are_where_a_disk_can_write(frame_bytes):
    slots = ArenaSlots(3, frame_bytes)
    for slot in range(3):
        assert slots._padded[slot].ctypes.data % ALIGNMENT == 0
        assert len(slots.peek_padded(slot)) % ALIGNMENT == 0
        assert len(slots.peek(slot)) == frame_bytes


def test_d3_what_was_not_loaded_is_not_stored(bench):
    """Nor is it served from its slot, nor what the slot held before."""
    bench.store((0, 0))
    bench.faults.unreadable.add(0)
    assert isinstance(bench.fetch((0, 3)), CopyFailed)
    assert isinstance(bench.store((3, 5)), CopyFailed)
    assert isinstance(bench.fetch((5, 4)), CopyFailed)
    assert isinstance(bench.do(CopyIn, (PageIn(3, 1, 10),)), CopyFailed)


def test_d7_a_block_that_cannot_be_read_fails_alone(bench):
    bench.store((0, 0), (1, 1), (2, 2), (3, 3))
    bench.faults.unreadable.add(2)
    failed = bench.fetch((3, 7), (2, 6), (1, 5), (0, 4))
    assert failed.bad == (1,)
    assert failed.reason == "block 2: not read: Input/output error"
    served = bench.do(CopyIn, tuple(PageIn(slot, 1, 6 + slot) for slot in (4, 5, 6, 7)))
    assert served.bad == (2,)
    bench.faults.unreadable.clear()
    assert isinstance(bench.fetch((2, 6)), CopyDone)


def test_a_block_that_cannot_be_written_fails_alone(bench):
    bench.faults.unwritable.add(1)
    failed = bench.store((0, 0), (1, 1), (2, 2))
    assert failed.bad == (1,)
    assert "block 1: not written" in failed.reason
    assert bench.fetch((0, 4), (1, 5), (2, 6)).bad == (1,)


def test_d8_d19_a_disk_that_stalls_delays_no_other_queue(bench, tokens):
    """For as long as it likes: everything else is done before it may go on."""
    bench.store((0, 0), (1, 1))
    bench.faults.reads_pass.clear()
    bench.faults.writes_pass.clear()
    held = [
        bench.start(Fetch, fetches((0, 6))),
        bench.start(Fetch, fetches((1, 7))),
        bench.start(Store, stores((2, 2))),
    ]
    for turn in range(3):
        drawn = bench.draw(row(2, tokens[:5]), tables=(TableDelta(2, 0, (8,)),))
        assert isinstance(drawn[0], Sampled)
        assert isinstance(bench.do(CopyOut, (PageOut(3, 4, turn),)), CopyDone)
        assert isinstance(bench.do(CopyIn, (PageIn(4, turn, 9),)), CopyDone)
    assert not set(held) & set(bench.done)
    bench.faults.reads_pass.set()
    assert all(isinstance(bench.wait(ticket), CopyDone) for ticket in held[:2])
    bench.faults.writes_pass.set()
    assert isinstance(bench.wait(held[2]), CopyDone)


def test_d14_a_file_that_somebody_shortens_costs_its_pages(bench, tmp_path):
    bench.store((0, 0), (1, 1), (2, 6))
    truncate(bench.file, 1)
    failed = bench.fetch((0, 4), (1, 5), (6, 6))
    assert failed.bad == (1, 2)
    assert "0 of 4096 bytes read" in failed.reason
    assert bench.do(SwapOn, str(tmp_path), 8).blocks == 8
    assert isinstance(bench.store((0, 6)), CopyDone)


def test_d15_another_device_finds_nothing(bench, tmp_path, tokens):
    bench.store((0, 0))
    other = DiskBench(tmp_path, tokens)
    assert other.fetch((0, 4)).bad == (0,)
    assert isinstance(other.store((1, 0)), CopyDone)
    assert isinstance(bench.fetch((0, 4)), CopyDone), "nor is the first one's block lost"
    other.device.close()


def test_d17_a_load_passes_stores_that_wait(bench):
    bench.store((0, 0))
    bench.faults.writes_pass.clear()
    waiting = [bench.start(Store, stores((slot, 4 + slot))) for slot in range(4)]
    assert isinstance(bench.fetch((0, 4)), CopyDone)
    bench.faults.writes_pass.set()
    assert all(isinstance(bench.wait(ticket), CopyDone) for ticket in waiting)


def test_a_bit_that_changes_on_the_disk_is_refused_alone(bench):
    bench.store((0, 0), (1, 1), (2, 2))
    flip_bit(bench.file, 1)
    failed = bench.fetch((0, 4), (1, 5), (2, 6))
    assert failed.bad == (1,)
    assert "checksum" in failed.reason


def test_a_slot_whose_bytes_changed_is_not_stored(bench):
    bench.faults.corrupt.add(5)
    bench.do(CopyOut, (PageOut(0, 5, 1), PageOut(1, 6, 1)))
    failed = bench.store((5, 0), (6, 1))
    assert failed.bad == (0,)
    assert bench.fetch((0, 4), (1, 5)).bad == (0,)


@pytest.mark.parametrize("kind", ["store", "fetch"])
def test_a_slot_or_block_outside_is_refused_alone(bench, kind):
    bench.store((0, 0), (1, 1), (2, 2))
    pairs = ((0, 0), (1, 99), (99, 1), (2, 2))
    failed = bench.store(*pairs) if kind == "store" else bench.fetch(*pairs)
    assert failed.bad == (1, 2)


@pytest.mark.parametrize("kind", [Store, Fetch, SwapOn, SwapOff])
def test_an_exception_ends_no_queue(bench, tmp_path, kind):
    args = {Store: [stores((0, 0), (1, 1))], Fetch: [fetches((0, 4))], SwapOn: [str(tmp_path), 4]}
    bench.store((0, 0))
    bench.faults.fail[bench.tickets + 1] = MemoryError("none left")
    done = bench.do(kind, *args.get(kind, []))
    assert "none left" in done.reason
    if kind in (Store, Fetch):
        assert done.bad == tuple(range(len(args[kind][0])))
    else:
        assert done.blocks == 0
    assert bench.do(SwapOn, str(tmp_path), 4).blocks == 4
    assert isinstance(bench.store((0, 0)), CopyDone)
    assert isinstance(bench.fetch((0, 4)), CopyDone)


def test_a_disk_that_fails_at_once_is_not_used(bench, tmp_path):
    bench.faults.unwritable.add(3)
    changed = bench.do(SwapOn, str(tmp_path), 8)
    assert changed.blocks == 0
    assert "the disk fails" in changed.reason
    assert bench.store((0, 0)).bad == (0,)
    missing = bench.do(SwapOn, str(tmp_path / "missing"), 8)
    assert missing.blocks == 0
    assert "no such directory; create it" in missing.reason


def test_no_host_slots_is_allowed(tmp_path):
    bench = CpuBench(host_slots=0)
    assert bench.do(SwapOn, str(tmp_path), 2).blocks == 2
    assert bench.do(Store, stores((0, 0))).bad == (0,)
    assert bench.do(Fetch, fetches((0, 0))).bad == (0,)
    bench.device.close()


HANGS = """
import sys, threading, time
from tokenix.drivers import queued
from tokenix.drivers.ops import Fetch, OpenImages, PageSave, SaveImage
from tokenix.tests.cpu.test_disk import DiskBench, fetches

class Stuck(DiskBench):
    def hang(self, *_):
        self.inside.release()
        threading.Event().wait()

queued.CLOSE_S = 0.2
bench = Stuck(sys.argv[1], list(range(64)))
bench.inside = threading.Semaphore(0)
bench.do(OpenImages, sys.argv[1])
bench.store((0, 0))
setattr(bench.faults, sys.argv[2], bench.hang)
bench.start(Fetch, fetches((0, 4)))
bench.start(SaveImage, "saved/t-red/one.img", b"meta", (PageSave(0, 1),))
bench.inside.acquire()
bench.device.close()
print("closed")
"""


@pytest.mark.parametrize("call", ["preadv", "pwritev", "fsync"])
def test_a_disk_that_hangs_keeps_neither_close_nor_the_end_of_the_process(tmp_path, call):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path), call],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".lib")},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_close_gives_the_file_back(tmp_path, tokens):
    bench = DiskBench(tmp_path, tokens)
    bench.store((0, 0))
    file = bench.file
    bench.faults.reads_pass.clear()
    bench.start(Fetch, fetches((0, 4)))
    closing = threading.Thread(target=bench.device.close)
    closing.start()
    bench.faults.reads_pass.set()
    closing.join()
    assert file._file.closed
    assert not [t for t in threading.enumerate() if t.name.startswith("tokenix-") and t.is_alive()]
