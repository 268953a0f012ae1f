"""What runs C++ kernels on this machine finds what it is there to find."""

from pathlib import Path

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels.abi import Arg, Op
from tokenix.drivers.cuda.kernels.sources import defines, read_source
from tokenix.tests.cuda_kernels.cpp import launch

SOURCE = (
    read_source("prefill").split("#define ROWS")[0]
    + """
extern "C" __global__ void probe(word* out, const int* which, i64 words) {
    int i = threadIdx.x;
    float* cells = (float*)shared_memory();
    switch (*which) {
    case 0:  // as it should be: across warps, then across lanes
        cells[i] = i;
        __syncthreads();
        out[i] = cells[63 - i] + __shfl_xor_sync(ALL, (float)i, 1);
        break;
    case 1:
        cells[i] = i;
        out[i] = cells[63 - i];
        break;
    case 2:
        if (i != 5) __syncthreads();
        break;
    case 3:
        if (i % 2) __shfl_xor_sync(ALL, 1.0f, 2);
        break;
    case 4:
        if (i < 4) __shfl_xor_sync(0xf, 1.0f, 4);
        break;
    case 5:
        cells[words + i] = 0;
        break;
    case 6:
        out[i] = load4(out + 1).w[0];
        break;
    case 7:
        __shfl_xor_sync(i % 32 < 16 ? 0xffff : ALL, 1.0f, 1);
        break;
    case 8:
        if (i < 16) __syncthreads();
        else __shfl_xor_sync(ALL, 1.0f, 1);
        break;
    }
}
"""
)

PROBE = Op("probe", (Arg("out", "u32*"), Arg("which", "i32*"), Arg("words", "i64")))

FAULTS = [
    (2, "not reached by all"),
    (3, "waits for a lane that has ended"),
    (4, "outside of its mask"),
    (5, "past its end"),
    (6, "not aligned"),
    (7, "different masks"),
    (8, "wait for each other"),
]


def run(which: int, seed: int, folder: Path) -> np.ndarray:
    out = np.zeros(64, np.uint32)
    macros = defines("bf16", "bf16", 1, 64)
    case = np.array([which], np.int32)
    launch(PROBE, SOURCE, macros, (1,), 64, 256, out, case, 64, seed=seed, folder=folder)
    return out


@pytest.mark.parametrize("which_seed", range(4))
def test_barriers_order(which_seed: int, folder: Path) -> None:
    lanes = np.arange(64)
    assert (run(0, which_seed, folder) == 63 - lanes + (lanes ^ 1)).all()


def test_a_missing_barrier_shows_in_some_order(folder: Path) -> None:
    wrong = [not (run(1, seed, folder) == 63 - np.arange(64)).all() for seed in range(4)]
    assert all(wrong)


@pytest.mark.parametrize(("which", "words"), FAULTS)
@pytest.mark.parametrize("which_seed", range(3))
def test_fault_is_found(which: int, words: str, which_seed: int, folder: Path) -> None:
    with pytest.raises(AssertionError, match=words):
        run(which, which_seed, folder)
