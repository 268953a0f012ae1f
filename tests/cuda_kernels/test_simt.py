"""The simulator finds what it is there to find, whatever the seed."""

from collections.abc import Callable

import numpy as np
import pytest
from numba import cuda, float32

from tokenix.drivers.cuda.kernels import decode
from tokenix.tests.cuda_kernels.simt import SimulatedFault, launch

THREADS = 64
SEEDS = range(4)


def reverse(out: np.ndarray) -> None:
    """Thread i gets what the last but i wrote: across warps."""
    cells = cuda.shared.array((64,), float32)
    i = cuda.threadIdx.x
    cells[i] = float32(i)
    cuda.syncthreads()
    out[i] = cells[63 - i]


def reverse_without_barrier(out: np.ndarray) -> None:
    cells = cuda.shared.array((64,), float32)
    i = cuda.threadIdx.x
    cells[i] = float32(i)
    out[i] = cells[63 - i]


def overwrite_what_is_read(out: np.ndarray) -> None:
    cells = cuda.shared.array((64,), float32)
    i = cuda.threadIdx.x
    cells[i] = float32(i)
    cuda.syncthreads()
    out[i] = cells[63 - i]
    cells[i] = out[i]


def rely_on_a_shuffle_to_order(out: np.ndarray) -> None:
    cells = cuda.shared.array((64,), float32)
    i = cuda.threadIdx.x
    cells[i] = float32(i)
    cuda.shfl_xor_sync(0xFFFFFFFF, i, 1)
    out[i] = cells[i ^ 1]


def neighbours(out: np.ndarray) -> None:
    """As above with the barrier of a warp, which does order."""
    cells = cuda.shared.array((64,), float32)
    i = cuda.threadIdx.x
    cells[i] = float32(i)
    cuda.syncwarp()
    out[i] = cells[i ^ 1]


def diverge_at_barrier(out: np.ndarray) -> None:
    if cuda.threadIdx.x < 40:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = 0.0


def leave_before_barrier(out: np.ndarray) -> None:
    if cuda.threadIdx.x == 5:
        return
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 0.0


def shuffle_with_some(out: np.ndarray) -> None:
    i = cuda.threadIdx.x
    if i % 2 == 0:
        out[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 2)


def shuffle_from_outside_the_mask(out: np.ndarray) -> None:
    i = cuda.threadIdx.x
    if i < 4:
        out[i] = cuda.shfl_xor_sync(0xF, i, 4)


def write_one_cell(out: np.ndarray) -> None:
    out[0] = float32(1.0)


def index_before_the_first(out: np.ndarray) -> None:
    out[cuda.threadIdx.x - 1] = float32(1.0)


def run(kernel: Callable[..., None], seed: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Kernels here are no part of the package: their `cuda` is the one that a launch replaces."""
    out = np.full(THREADS, np.nan, np.float32)

    def through(*args: np.ndarray) -> None:
        monkeypatch.setitem(kernel.__globals__, "cuda", decode.cuda)
        kernel(*args)

    launch(through, (1,), THREADS, out, seed=seed)
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every = np.arange(THREADS, dtype=np.float32)
    assert (run(reverse, seed, monkeypatch) == every[::-1]).all()
    assert (run(neighbours, seed, monkeypatch) == every.reshape(-1, 2)[:, ::-1].ravel()).all()


FAULTS = [
    (reverse_without_barrier, "race on shared"),
    (overwrite_what_is_read, "race on shared"),
    (rely_on_a_shuffle_to_order, "race on shared"),
    (diverge_at_barrier, "different barriers"),
    (leave_before_barrier, "reached by 63 of 64"),
    (shuffle_with_some, "have ended"),
    (shuffle_from_outside_the_mask, "not in its mask"),
    (write_one_cell, "race on"),
    (index_before_the_first, "outside of"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kernel", "fault"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_fault_is_found(
    kernel: Callable[..., None], fault: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SimulatedFault, match=fault):
        run(kernel, seed, monkeypatch)
