"""Softmax over the keys that each query sees."""

import numpy as np
import pytest

from tokenix.drivers.cpu import softmax as weighing
from tokenix.drivers.cpu.jit import kernel


@kernel
def softmax(scores, slots, group, position, blocks, sums):
    weighing.softmax(scores, slots, group, position, blocks, sums)


def weigh(scores, group, position):
    """Weights [slots, keys] and sums [slots] of scores [slots, blocks * 16]."""
    slots = len(scores)
    packed = scores.reshape(slots, -1, 16).swapaxes(0, 1).copy("C")
    sums = np.empty(slots, np.float32)
    softmax(packed.ctypes.data, slots, group, position, len(packed), sums.ctypes.data)
    return packed.swapaxes(0, 1).reshape(slots, -1), sums


@pytest.mark.parametrize(("queries", "group"), [(1, 1), (1, 3), (5, 3), (16, 1), (2, 7), (1, 16)])
@pytest.mark.parametrize("position", [0, 14, 15, 16, 27, 90])
def test_each_slot_weighs_the_keys_that_its_query_sees(queries, group, position, seed):
    slots, blocks = queries * group, -(-(position + queries) // 16)
    scores = np.random.default_rng(seed).standard_normal((slots, blocks * 16)).astype("f4") * 8
    seen = np.arange(blocks * 16) <= position + np.arange(slots)[:, None] // group
    scores[~seen] = np.nan
    weights, sums = weigh(scores, group, position)
    tops = np.nanmax(scores, axis=1, keepdims=True).astype(np.float64)
    expected = np.where(seen, np.exp(scores - tops), 0)
    np.testing.assert_allclose(weights, expected, rtol=5e-6)
    np.testing.assert_allclose(sums, expected.sum(axis=1), rtol=1e-6)
    assert (weights[~seen] == 0).all()
    for slot in range(slots):
        alone, total = weigh(scores[slot : slot + 1], 1, position + slot // group)
        assert (alone == weights[slot]).all() and total == sums[slot]


def test_what_is_not_a_number_spoils_its_own_slot_alone():
    scores = np.zeros((6, 32), np.float32)
    scores[2, 5] = np.nan
    weights, sums = weigh(scores, 3, 20)
    assert np.isnan(weights[2, 5]) and np.isnan(sums[2])
    others = [0, 1, 3, 4, 5]
    assert (sums[others] == [21, 21, 22, 22, 22]).all() and np.isfinite(weights[others]).all()
