"""Memory that is touched ahead: all of it, only at rest, and nothing in it is changed."""

import ctypes
import mmap
import threading
import time

import numpy as np
import pytest

from tokenix.drivers.cpu.arena import HUGE_BYTES, aligned_empty
from tokenix.drivers.cpu.device import CpuDevice
from tokenix.drivers.cpu.touch import Toucher, touch
from tokenix.tests.cpu.conftest import TINY, RandomWeights

BYTES = np.dtype(np.uint8)
SIZES = (3 * HUGE_BYTES, 2 * HUGE_BYTES + 4096, 4096, 0)


def count_touched(array):
    """Bytes of it that are in memory."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * max(1, pages))()
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_size_t(array.nbytes)
    assert libc.mincore(ctypes.c_void_p(array.ctypes.data), size, found) == 0, ctypes.get_errno()
    return mmap.PAGESIZE * sum(byte & 1 for byte in found[:pages])


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert holds()


def test_all_is_touched_once_nobody_computes():
    arrays = [aligned_empty((size,), BYTES) for size in SIZES]
    asked, computing = threading.Semaphore(0), threading.Event()
    computing.set()

    def busy():
        asked.release()
        return computing.is_set()

    toucher = Toucher(arrays, busy)
    for _ in range(3):
        assert asked.acquire(timeout=60)
    assert [count_touched(array) for array in arrays] == [0] * len(SIZES)
    computing.clear()
    wait_until(lambda: [count_touched(array) for array in arrays] == list(SIZES))
    toucher.close()
    toucher.close()


@pytest.mark.parametrize("computing", [True, False])
def test_it_ends_when_it_is_told_to(computing):
    array = aligned_empty((256 * HUGE_BYTES,), BYTES)
    asked = threading.Event()

    def busy():
        asked.set()
        return computing

    toucher = Toucher([array], busy)
    assert asked.wait(60)
    toucher.close()
    assert count_touched(array) < array.nbytes


def test_what_is_written_meanwhile_stays():
    words = aligned_empty((4 * 512,), np.dtype(np.int64))
    begin = threading.Barrier(2)

    def again():
        begin.wait(60)
        for _ in range(20_000):
            touch(words)

    touch(words)
    other = threading.Thread(target=again)
    other.start()
    begin.wait(60)
    for value in range(1, 20_000):
        words[::512] = value
        assert words[::512].tolist() == [value] * 4
        if not other.is_alive():
            break
    other.join(60)
    assert not other.is_alive()


def test_a_device_touches_frames_and_as_many_slots():
    device = CpuDevice(TINY, RandomWeights(TINY), frames=12, host_slots=30, threads=1)
    frames, slots = device._arena.data, device._slots.peek_first(30)
    wait_until(lambda: count_touched(frames) >= frames.nbytes)
    wait_until(lambda: count_touched(slots) >= slots[:12].nbytes)
    device.close()
