"""SwiGLU: the kernel's source, simulated, against float64."""

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.gate import THREADS, count_blocks, make_gate
from tokenix.drivers.cuda.kernels.words import PER_WORD
from tokenix.tests.cuda_kernels.simt import launch

BOUNDS = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 200), (2, 2 * THREADS)])
@pytest.mark.parametrize("kind", BOUNDS)
def test_gate(kind, rows, width, seed):
    """Also of large numbers, and what lies behind the last row stays."""
    numbers = np.random.default_rng(seed).standard_normal(2 * rows * width) * 20
    numbers[:2] = -200.0, 200.0
    both = oracles.narrow(kind, numbers)
    words = rows * width // PER_WORD[kind]
    out, wanted = np.full(words + 3, 7, np.uint32), np.zeros(words, np.uint32)
    blocks = count_blocks(rows, width)
    launch(make_gate(kind), (blocks,), THREADS, both, out, rows, width, seed=seed)
    oracles.gate(kind, both, wanted, rows, width)
    found, right = oracles.widen(kind, out[:words]), oracles.widen(kind, wanted)
    assert (np.abs(found - right) <= BOUNDS[kind] * np.maximum(1, np.abs(right))).all()
    assert (out[words:] == 7).all()


def test_what_is_no_number_stays_none(seed):
    both = np.full(16, np.nan, np.float32).view(np.uint32)
    out = np.zeros(8, np.uint32)
    launch(make_gate("f32"), (1,), THREADS, both, out, 1, 8, seed=seed)
    assert np.isnan(out.view(np.float32)).all()
