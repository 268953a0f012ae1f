"""Scores and sums of values over pages of every format, against numpy: the same bits."""

import numpy as np
import pytest

from tokenix.drivers.cpu.jit import kernel
from tokenix.drivers.cpu.keytile import AHEAD
from tokenix.drivers.cpu.kvformat import FORMATS, FP8, INT4, PLAIN, layout_of
from tokenix.drivers.cpu.kvpages import score_keys, sum_values
from tokenix.drivers.kvkind import KV_KINDS

DIM, KEYS = 48, 37
BLOCKS = -(-KEYS // 16)
SHAPE = (BLOCKS, DIM // 16, 16, 16)
"""Of a page: parts of 16 dims. Keys lie [dim][token] in a part, values [token][dim]."""


def fma(x, y, z):
    return (x.astype(np.float64) * y.astype(np.float64) + z).astype(np.float32)


def by_sixteen(rows):
    """[slots, n] as [n / 16, slots, 16]"""
    return np.ascontiguousarray(rows.reshape(len(rows), -1, 16).swapaxes(0, 1))


def same(found, expected):
    return (found.view(np.int32) == expected.view(np.int32)).all()


def bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_codes(kind, codes, values):
    """What bytes [BLOCKS, ..] stand for, without scales: float32 of SHAPE."""
    if kind == INT4:
        halves = codes.reshape(*SHAPE[:3], 8) if values else codes.reshape(BLOCKS, DIM // 2, 1, 16)
        codes = np.concatenate([halves & 15, halves >> 4], axis=3 if values else 2)
    elif kind == FP8:
        codes = (codes.view(np.int8).astype(np.int16) << 7 & -0x4080).view(np.float16)
    else:
        codes = codes.view(np.int8)
    return codes.astype(np.float32).reshape(SHAPE)


class Page:
    """Random keys or values in blocks that are read in a random order.

    numbers: float32 of SHAPE in that order; scales and lows [groups, tokens]: 1 and 0 if they are
    plain. Values behind the last token are not-a-number.
    """

    def __init__(self, kv, rng, values):
        layout, form = layout_of(kv, 16, DIM), FORMATS[kv]
        order, shape = rng.permutation(BLOCKS), (BLOCKS, layout.block_bytes)
        behind = np.arange(16) >= KEYS % 16
        if form.kind == PLAIN:
            numbers = rng.standard_normal(SHAPE).astype(np.float32)
            if values:
                numbers[order[-1], :, behind] = np.nan
            bits = numbers.view(np.uint32) >> 16
            data = (
                bits.astype(np.uint16) if kv == "bf16" else numbers.astype(f"f{layout.bits // 8}")
            )
            self.numbers = bfloat16(data) if kv == "bf16" else data.astype(np.float32)
            self.scales, self.lows = np.ones((1, BLOCKS * 16), "f4"), None
        else:
            data = rng.integers(0, 256, shape, np.uint8)
            self.numbers = read_codes(form.kind, data[:, : layout.scales_at].copy(), values)
            steps = rng.random((BLOCKS, 2 if form.lows else 1, layout.groups, 16), np.float32)
            if values:
                steps[order[-1], :, :, behind] = np.nan
            bits = (steps.view(np.uint32) >> 16).astype(np.uint16)
            data[:, layout.scales_at :] = bits.reshape(BLOCKS, -1).view(np.uint8)
            steps = (
                bfloat16(bits)[order].transpose(1, 2, 0, 3).reshape(-1, layout.groups, BLOCKS * 16)
            )
            self.scales, self.lows = steps[0], steps[1] if form.lows else None
        self.layout, self.data, self.numbers = layout, data, self.numbers[order]
        self.places = data.ctypes.data + order * layout.block_bytes


@kernel
def score(pages, places, q, scores, spare):
    score_keys(places, pages, q, scores, spare)


@kernel
def add_up(pages, places, weights, sums, spare):
    sum_values(places, pages, KEYS, weights, sums, spare)


@pytest.mark.parametrize("slots", [1, 3, 4, 6, 7, 12, 13, 16])
@pytest.mark.parametrize("kv", KV_KINDS)
def test_scores_and_sums_are_chains_in_order(kv, slots, seed):
    rng = np.random.default_rng(seed)
    keys, values = Page(kv, rng, False), Page(kv, rng, True)
    places = np.concatenate([keys.places, values.places, np.full(AHEAD, keys.places[0])])
    groups, spare = len(keys.scales), np.full((BLOCKS + 2) * slots * 16, np.nan, np.float32)
    each = DIM // groups

    q = rng.standard_normal((slots, DIM)).astype(np.float32)
    scores = np.full((BLOCKS, slots, 16), np.nan, np.float32)
    score(keys.layout, places, by_sixteen(q), scores, spare)
    by_dim = keys.numbers.transpose(1, 2, 0, 3).reshape(DIM, 1, -1)
    expected = np.zeros((slots, BLOCKS * 16), np.float32)
    for group in range(groups):
        dots, total = np.zeros_like(expected), np.zeros((slots, 1), np.float32)
        for d in range(group * each, (group + 1) * each):
            dots, total = fma(by_dim[d], q[:, d, None], dots), total + q[:, d, None]
        expected = fma(dots, keys.scales[group], expected)
        if keys.lows is not None:
            expected = fma(total, keys.lows[group], expected)
    assert same(scores, by_sixteen(expected))

    weights = rng.random(expected.shape, np.float32)
    sums = np.full((slots, DIM // 16, 16), np.nan, np.float32)
    add_up(keys.layout, places, by_sixteen(weights), sums, spare)
    by_token = values.numbers.transpose(0, 2, 1, 3).reshape(-1, DIM)
    expected = np.zeros((slots, DIM), np.float32)
    for group in range(groups):
        mine, shift = slice(group * each, (group + 1) * each), np.zeros((slots, 1), np.float32)
        for key in range(KEYS):
            weight = weights[:, key, None]
            scaled = weight * values.scales[group, key]
            expected[:, mine] = fma(by_token[key, mine], scaled, expected[:, mine])
            if values.lows is not None:
                shift = fma(weight, values.lows[group, key], shift)
        expected[:, mine] += shift
    assert same(sums, expected.reshape(sums.shape))
