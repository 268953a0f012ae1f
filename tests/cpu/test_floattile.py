"""Float weights and token rows, packed, and tiles of them, against plain numpy: the same bits."""

import numba
import numpy as np
import pytest
from numba.core import types

from tokenix.drivers.cpu import dense, floatrows, floattile, pieces
from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.fetch import plan_fetch
from tokenix.drivers.cpu.floattile import SMALLEST
from tokenix.drivers.cpu.jit import bare, has_bf16, host_context, intrinsic, kernel
from tokenix.drivers.cpu.lanes import I32, VF32, VI32, load, store
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.workspace import MAX_COLUMNS, choose_tiles
from tokenix.tests.cpu.conftest import here_and_with_avx2

KINDS = ("f32", "f16", "bf16")


class OneMatrix:
    """Keeps `models.weights.Weights` for a matrix of a file."""

    def __init__(self, matrix, kind="F32"):
        self.matrix, self.stored = matrix.astype(np.float32), kind

    def float32(self, name):
        return self.matrix.copy()

    def quantized(self, name):
        if self.stored == "F16":
            return "F16", self.matrix.astype(np.float16).view(np.uint8)
        if self.stored == "BF16":
            return "BF16", (self.matrix.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return self.stored, self.matrix.view(np.uint8)


def bf16(x):
    """float32 rounded to what token rows and weights of bf16 hold; float32 again."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    rounded = bits.astype(np.uint32).view(np.float32)
    return np.where(np.abs(rounded) < np.float32(SMALLEST), np.float32(0), rounded)


def rounded(x, kind):
    """A weight as its kind keeps it."""
    return bf16(x) if kind == "bf16" else x.astype({"f16": np.float16, "f32": np.float32}[kind])


def read(file, kind):
    (piece,) = pieces.cut(file, "q", file.matrix.shape[1])
    return dense.read_piece(piece, kind)


def packed(matrix, kind):
    into = aligned_empty(dense.packed_shape(*matrix.shape), dense.STORED[kind])
    dense.pack_rows(read(OneMatrix(matrix), kind), into)
    return into


def fma(x, y, z):
    """float32; the product is exact in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (x.astype(np.float64) * y.astype(np.float64) + z).astype(np.float32)


def plain_multiply(matrix, x, kind):
    """The sums that `floattile` documents, float32 [rows, outputs]."""
    w = rounded(matrix, kind).astype(np.float32)
    x = bf16(x) if kind == "bf16" else x
    sums = np.zeros((len(x), len(w)), np.float32)
    for i in range(w.shape[1]):
        k = i ^ 1 if kind == "bf16" else i
        sums = fma(w[None, :, k], x[:, None, k], sums)
    return sums


@kernel
def put_rows(x, ones, rows):
    for row in range(len(x)):
        for block in range(rows.shape[1]):
            at = address(x) + (row * x.shape[1] + block * 16) * 4
            floatrows.put_quotient(rows, at, ones[0], floatrows.find_row(rows, row, block))


def token_rows(x, columns, kind):
    tiles, blocks = -(-len(x) // columns), x.shape[1] // 16
    dtype = np.uint16 if kind == "bf16" else np.float32
    rows = np.zeros((tiles, blocks, columns, 16), dtype)
    put_rows(x, np.ones(1, np.float32), rows)
    return rows


@bare
def multiply(function, weight, rows, out, adding, frames):
    """frames: of which pages are fetched meanwhile, that are not there."""
    fetch = plan_fetch(1 << 40, 1 << 16, 1 << 13, frames, 0, 100)
    for item in range(dense.count_items(weight.shape[0], rows)):
        dense.multiply_item(function, weight, rows, out, adding, fetch, item)


def random_rows(count, width, rng):
    sizes = 10.0 ** rng.integers(-3, 3, (count, 1))
    return (rng.standard_normal((count, width)) * sizes).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_has_the_bits_of_numpy(kind, seed):
    """Of every width; 84 outputs: several items, and a last group that is not full."""
    rng = np.random.default_rng(seed)
    matrix, x = random_rows(84, 96, rng), random_rows(3 * MAX_COLUMNS, 96, rng)
    weight = packed(matrix, kind)
    expected = plain_multiply(matrix, x, kind)
    for columns in range(1, MAX_COLUMNS + 1):
        rows = token_rows(x[: 2 * columns + 1], columns, kind)
        count = rows.shape[0] * columns
        out = np.zeros((count, 96), np.float32)
        function = floattile.tile_function(weight.dtype)
        multiply(function, weight, rows, out, 0, np.arange(0, dtype=np.int32))
        found, wanted = out[: 2 * columns + 1, :84], expected[: 2 * columns + 1]
        assert (found.view(np.int32) == wanted.view(np.int32)).all(), columns
        multiply(function, weight, rows, out, 1, np.arange(30, dtype=np.int32))
        assert (out[: 2 * columns + 1, :84] == wanted + wanted).all()


def test_many_token_rows_are_several_items(seed):
    rng = np.random.default_rng(seed)
    count = 2 * dense.BLOCK_TOKENS + 3
    matrix, x = random_rows(32, 32, rng), random_rows(count, 32, rng)
    tiles, columns = choose_tiles(count)
    assert tiles * columns >= count > (tiles - 1) * columns and columns <= MAX_COLUMNS
    out = np.full((tiles * columns, 32), np.nan, np.float32)
    weight = packed(matrix, "bf16")
    function = floattile.tile_function(weight.dtype)
    multiply(
        function, weight, token_rows(x, columns, "bf16"), out, 0, np.arange(90, dtype=np.int32)
    )
    assert (out[:count] == plain_multiply(matrix, x, "bf16")).all()


def pairs_by(native):
    """totals += dots of pairs, row by row: by the instruction, or by portable code."""

    @intrinsic
    def one(typing, total, weights, pair):
        def codegen(context, b, sig, args):
            weights, pair = load(b, VI32, args[1]), load(b, I32, args[2])
            total = floattile.dot_pairs(b, native, load(b, VF32, args[0]), weights, pair)
            store(b, total, args[0])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), codegen

    @numba.njit
    def run(totals, weights, pairs):
        for k in range(len(weights)):
            for i in range(len(totals)):
                one(totals[i].ctypes.data, weights[k, i].ctypes.data, pairs[k, i].ctypes.data)

    return run


def wide(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_the_instruction_and_portable_code_have_the_bits_of_numpy(seed):
    """Numbers of every size, the smallest and the largest among them; what nearly cancels out."""
    rng = np.random.default_rng(seed)
    size = rng.choice([-56, -55, -54, -20, 0, 3, 60, 127], (2, 400, 1))
    size = size.repeat(16, axis=2)[..., None]
    numbers = rng.uniform(1, 2, (2, 400, 16, 2)) * 2.0**size * rng.choice([-1, 1], size.shape)
    first = (bf16(numbers).view(np.uint32) >> 16).astype(np.uint16)
    pairs = np.ascontiguousarray(first[1, :, :1])
    back = first[0] ^ 0x8000 ^ rng.integers(0, 2, first[0].shape, np.uint16)
    weights = np.stack([first[0], back, first[0], back])
    pairs = np.stack([pairs, pairs, pairs ^ 1, pairs ^ 1])
    expected = np.zeros((400, 16), np.float32)
    for w, x in zip(wide(weights), wide(pairs), strict=True):
        for k in (1, 0):
            expected = fma(w[..., k], x[..., k], expected)
    assert np.isinf(expected).any() and (expected == 0).any()
    tiny = np.nanmin(np.abs(expected[expected != 0]))
    assert 2.0**-126 <= tiny < 2.0**-110
    same = np.isfinite(expected) | np.isinf(expected)
    for native in (False, True) if has_bf16(host_context()) else (False,):
        totals = np.zeros((400, 16), np.float32)
        pairs_by(native)(totals, weights, pairs)
        assert (totals.view(np.int32) == expected.view(np.int32))[same].all()
        assert np.isnan(totals[~same]).all()


def test_token_rows_are_rounded_to_nearest_even(seed):
    x = random_rows(5, 64, np.random.default_rng(seed))
    x[0, :6] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, SMALLEST, SMALLEST * 0.99, np.inf, np.nan
    rows = token_rows(x, 4, "bf16")
    found = np.stack([wide(rows[row // 4, :, row % 4]).reshape(-1) for row in range(5)])
    assert (found[0, :5] == (1, 1 + 2.0**-6, SMALLEST, 0, np.inf)).all() and np.isnan(found[0, 5])
    x[0, 5] = 0
    assert (np.delete(found, 5, 1) == np.delete(bf16(x), 5, 1)).all()
    whole = token_rows(x, 4, "f16")
    assert (whole[1, :, 0].reshape(-1) == x[4]).all() and not whole[1, :, 1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_read_back_from_a_packed_matrix(kind, seed):
    """20 rows: the second group is not full."""
    matrix = random_rows(20, 48, np.random.default_rng(seed))
    which = np.array([0, 15, 16, 19, 3, 3], np.int32)
    found = dense.read_rows(packed(matrix, kind), which)
    assert found.dtype == np.float32
    assert (found == rounded(matrix, kind)[which]).all()


@pytest.mark.parametrize(("stored", "kind"), [("F16", "f16"), ("BF16", "bf16"), ("F32", "f32")])
def test_a_matrix_is_taken_as_it_is_in_its_file(stored, kind, seed):
    matrix = bf16(np.random.default_rng(seed).standard_normal((3, 32)))
    matrix[0, :2] = SMALLEST, SMALLEST / 2
    file = OneMatrix(matrix, stored)
    file.float32 = None
    bits = read(file, kind)
    expected = matrix.copy()
    if kind == "bf16":
        expected[0, 1] = 0
        assert (wide(bits) == expected).all()
    else:
        assert (bits.view(rounded(matrix, kind).dtype) == rounded(expected, kind)).all()


def test_weights_beyond_float16_are_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"q is beyond the range of float16.*weights='bf16'"):
        read(OneMatrix(np.full((1, 16), 1e5)), "f16")
    assert wide(read(OneMatrix(np.full((1, 16), 2.0**17)), "bf16")).min() == 2**17


class File:
    def __init__(self, *kinds):
        self.kinds = {"norm": "F32", **{f"layers.{i}.q": kind for i, kind in enumerate(kinds)}}

    def names(self):
        return list(self.kinds)

    def kind(self, name):
        return self.kinds[name]


@pytest.mark.parametrize(("kinds", "vnni", "bf16", "chosen"), [
    (("Q4_K", "F16"), True, True, "native"), (("Q8_0",), False, True, "exact"),
    (("BF16", "BF16"), True, True, "bf16"), (("BF16",), True, False, "exact"),
    (("F16",), True, True, "exact"), (("F32", "BF16"), True, True, "exact"),
    (("F8_E4M3", "BF16"), True, True, "native"),
])  # fmt: skip
def test_what_a_file_has_is_kept(monkeypatch, kinds, vnni, bf16, chosen):
    monkeypatch.setattr(dense, "has_vnni", lambda context: vnni)
    monkeypatch.setattr(dense, "has_bf16", lambda context: bf16)
    assert dense.choose_weights("auto", File(*kinds)) == chosen
    assert dense.choose_weights("bf16", File(*kinds)) == "bf16"


PROGRAM = """
import hashlib
from tokenix.tests.cpu.conftest import TINY, Model
from tokenix.drivers.cpu.jit import has_bf16, host_context
logits = Model(TINY, dense="bf16").all_logits(0, list(range(50)), 11)
print(has_bf16(host_context()), hashlib.sha256(logits.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_processor_without_bf16_computes_the_same_bits():
    here, there = here_and_with_avx2(PROGRAM)
    assert there[0] == "False"
    assert here[1] == there[1]
