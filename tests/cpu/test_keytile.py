"""Scores, softmax and sums of values over pages of plain numbers, against numpy: the same bits."""

import numpy as np
import pytest

from tokenix.drivers.cpu import keytile
from tokenix.drivers.cpu.jit import kernel
from tokenix.drivers.cpu.kvformat import FORMATS

DIM, KEYS = 48, 37
BLOCKS = -(-KEYS // 16)


def stored(numbers, kind):
    """Rounded to a format: (its bits, float32 of them)."""
    if kind == "f32":
        return numbers, numbers
    if kind == "f16":
        half = numbers.astype(np.float16)
        return half.view(np.int16), half.astype(np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def fma(x, y, z):
    return (x.astype(np.float64) * y.astype(np.float64) + z).astype(np.float32)


@kernel
def score(tiles, slots, places, q, scores):
    keytile.score_blocks(tiles, slots, DIM, places, BLOCKS, q, scores)


@kernel
def add_up(tiles, element, slots, places, weights, out):
    keytile.sum_blocks(tiles, element, slots, DIM, places, KEYS, weights, out, DIM * 4)


@kernel
def softmax(scores, stride, keys, blocks):
    return keytile.softmax(scores, stride, keys, blocks)


def by_sixteen(rows):
    """[slots, n] as [n / 16, slots, 16]"""
    return np.ascontiguousarray(rows.reshape(len(rows), -1, 16).swapaxes(0, 1))


@pytest.mark.parametrize("slots", [1, 3, 4, 6, 7, 12, 13, 16])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_scores_and_sums_are_chains_in_order(kind, slots, seed):
    rng = np.random.default_rng(seed)
    key_bits, keys = stored(rng.standard_normal((BLOCKS, DIM, 16)).astype("f4"), kind)
    value_bits, values = stored(rng.standard_normal((BLOCKS, DIM // 16, 16, 16)).astype("f4"), kind)
    order = rng.permutation(BLOCKS)
    value_bits[order[-1], :, KEYS % 16 :] = FORMATS[kind].poison  # behind the last key
    tiles, element = keytile.tiles_of(FORMATS[kind].stored), key_bits.itemsize
    keys, values, block_bytes = keys[order], values[order], DIM * 16 * element
    starts = [each.ctypes.data + order * block_bytes for each in (key_bits, value_bits)]
    ahead = np.full(keytile.AHEAD, starts[0][0])
    places = np.concatenate([*starts, ahead]).astype(np.int64)

    q = rng.standard_normal((slots, DIM)).astype(np.float32)
    packed, scores = by_sixteen(q), np.zeros((BLOCKS, slots, 16), np.float32)
    score(tiles, slots, places, packed.ctypes.data, scores.ctypes.data)
    expected = np.zeros((slots, BLOCKS * 16), np.float32)
    for d in range(DIM):
        expected = fma(keys[:, d].reshape(1, -1), q[:, d][:, None], expected)
    assert (scores.view(np.int32) == by_sixteen(expected).view(np.int32)).all()

    values = values.transpose(0, 2, 1, 3).reshape(-1, DIM)
    weights, out = rng.random(expected.shape, np.float32), np.empty((slots, DIM), np.float32)
    packed = by_sixteen(weights)
    add_up(tiles, element, slots, places, packed.ctypes.data, out.ctypes.data)
    expected = np.zeros_like(out)
    for key in range(KEYS):
        expected = fma(values[key][None], weights[:, key][:, None], expected)
    assert (out.view(np.int32) == expected.view(np.int32)).all()


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 100])
def test_softmax_weighs_the_keys_it_is_told_of(keys, seed):
    slots, blocks = 3, 7
    scores = np.random.default_rng(seed).standard_normal((slots, blocks * 16)).astype("f4") * 8
    scores[:, keys:] = np.nan
    expected = np.exp(scores[1, :keys].astype(np.float64) - scores[1, :keys].max())
    packed = by_sixteen(scores)
    stride, start = packed.strides[0], packed[0, 1].ctypes.data
    total = softmax(start, stride, keys, blocks)
    found = packed[:, 1].ravel()
    np.testing.assert_allclose(found[:keys], expected, rtol=5e-6)
    assert total == pytest.approx(expected.sum(), rel=1e-6)
    assert (found[keys:] == 0).all()
    assert (packed[:, [0, 2]].view("i4") == by_sixteen(scores)[:, [0, 2]].view("i4")).all()
    packed[0, 1, 0] = np.nan
    assert np.isnan(softmax(start, stride, keys, blocks))
