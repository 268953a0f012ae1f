"""Weights in blocks, token rows in codes, and tiles of them, against plain numpy: the same bits."""

import numpy as np
import pytest

from tokenix.drivers.cpu import blockrows, blocks, blocktile, blocktypes
from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.blockrows import Rows8
from tokenix.drivers.cpu.jit import kernel
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.workspace import MAX_COLUMNS
from tokenix.models.ggml_types import dequantize
from tokenix.tests.cpu.conftest import here_and_with_avx2, super_blocks

gguf = pytest.importorskip("gguf")

KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q3_K", "Q8_0")
ROUNDED = ("Q4_K", "Q5_K")
"""Whose scales are products that do not fit into float16."""
MOST = {blocks.NIBBLES: 15, blocks.FIVES: 31, blocks.SIXES: 63, blocks.BYTES: 255}
"""The largest code."""


def raw_blocks(kind, rows, inputs, rng):
    matrix = rng.standard_normal((rows, inputs)).astype(np.float32)
    if not kind.endswith("_K"):
        return gguf.quants.quantize(matrix, gguf.GGMLQuantizationType[kind])
    return super_blocks(kind, (rows, inputs), 1.0, rng)


def width_of(kind):
    return 512 if kind.endswith("_K") else 96


def values(found):
    """What codes stand for, float32 [rows, blocks, 32]."""
    scales = found.scales.astype(np.float32)[..., None]
    if found.lows is not None:
        return found.codes * scales + found.lows.astype(np.float32)[..., None]
    if found.sizes is not None:
        return (found.codes.astype(np.float32) - 32) * (scales * np.repeat(found.sizes, 16, -1))
    return (found.codes.astype(np.float32) - 128) * scales


def packed_blob(found):
    packed = blocks.pack_codes(found)
    blob = aligned_empty((packed.size,), np.dtype(np.uint8))
    blob[:] = packed.reshape(-1)
    entries, end = blocks.lay_out([found.form] * len(packed), found.codes.shape[1], 0)
    assert end == packed.size
    return blob, np.array(entries, np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_of_a_file_are_kept_as_they_are(kind, seed):
    width = width_of(kind)
    raw = raw_blocks(kind, 5, width, np.random.default_rng(seed))
    found, expected = blocktypes.read_codes(kind, raw), dequantize(raw, kind)
    assert blocktypes.keeps(kind) and blocktypes.format_of(kind) == found.form
    wrong = np.abs(values(found) - expected.reshape(5, -1, 32)).max(axis=-1)
    most = np.abs(expected).max()
    if kind in ROUNDED:
        most = np.abs(found.scales.astype("f4")) * 31 + np.abs(found.lows.astype("f4"))
    assert (wrong <= most * (2**-11 * 1.01 if kind in ROUNDED else 1e-6)).all()
    assert len(np.unique(found.codes)) >= min(8, width // 32)


@pytest.mark.parametrize(("kind", "scale"), [("Q4_K", 60000.0), ("Q5_K", np.inf), ("Q5_0", 5000.0)])
def test_scales_beyond_float16_are_refused(kind, scale):
    raw = raw_blocks(kind, 1, 256, np.random.default_rng(0))
    raw[0, :2] = np.array([scale], "<f2").view(np.uint8)
    raw[0, 4:16] = 63
    with pytest.raises(ValueError, match="float16"):
        blocktypes.read_codes(kind, raw)


def test_other_types_are_rounded():
    for kind in ("F32", "F16", "Q2_K", "IQ4_NL"):
        assert not blocktypes.keeps(kind) and blocktypes.format_of(kind) == blocks.BYTES


def test_floats_are_rounded_to_a_127th_of_their_block(seed):
    matrix = np.random.default_rng(seed).standard_normal((3, 80)).astype(np.float32)
    found = blocks.make_codes(matrix)
    assert found.codes.shape == (3, 3, 32)
    near = values(found).reshape(3, 96)
    assert (near[:, 80:] == 0).all()
    most = np.abs(np.pad(matrix, ((0, 0), (0, 16)))).reshape(3, 3, 32).max(axis=-1)
    wrong = np.abs(near[:, :80] - matrix).max()
    assert wrong <= 0.51 * most.max() / 127 * (1 + 2**-10)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_weight_that_no_scale_covers_is_refused(bad):
    with pytest.raises(ValueError, match="float16"):
        blocks.make_codes(np.full((1, 32), bad, np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_read_back_from_a_packed_matrix(kind, seed):
    """20 rows: the second group is not full."""
    width = width_of(kind)
    found = blocktypes.read_codes(kind, raw_blocks(kind, 20, width, np.random.default_rng(seed)))
    blob, entries = packed_blob(found)
    for row in (0, 7, 15, 16, 19):
        x = np.empty(width, np.float32)
        blockrows.embed_row(blob, entries, row, x)
        np.testing.assert_allclose(x, values(found)[row].reshape(-1), rtol=1e-6, atol=1e-7)


def fma(x, y, z):
    """float32; the product is exact in float64."""
    return (x.astype(np.float64) * y.astype(np.float64) + z).astype(np.float32)


def token_rows(count, width, columns, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((count, width)) * 10.0 ** rng.integers(-3, 3, (count, 1))).astype("f4")
    tiles, n = -(-count // columns), width // 32
    rows = Rows8(
        np.zeros((tiles, n, columns, 32), np.int8), np.zeros((tiles, n, columns, 5), np.float32)
    )
    for row in range(count):
        blockrows.quantize_row(x[row].ctypes.data, rows, row)
    return x, rows


def test_a_token_row_is_quantized_as_numpy_does(seed):
    x, rows = token_rows(11, 96, 4, seed)
    for row in range(11):
        codes = rows.codes[row // 4, :, row % 4]
        factors = rows.factors[row // 4, :, row % 4]
        for k, block in enumerate(x[row].reshape(3, 32)):
            most = np.abs(block).max()
            expected = np.rint(block * (np.float32(127) / most)).astype(np.int8)
            assert (codes[k] == expected).all()
            total = expected.astype(np.int32).sum()
            scale = most * np.float32(1 / 127)
            assert factors[k, 0] == scale
            assert factors[k, 1] == scale * np.float32(total)
            halves = expected.astype(np.int32).reshape(2, 16).sum(axis=-1)
            begins = [-128 * total, *(-32 * halves)]
            assert factors[k, 2:].view(np.int32).tolist() == begins


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_block(bad):
    x, rows = np.ones((1, 64), np.float32), token_rows(1, 64, 1, 0)[1]
    x[0, 40] = bad
    blockrows.quantize_row(x.ctypes.data, rows, 0)
    assert np.isfinite(rows.factors[0, 0, 0, :2]).all() and np.isnan(rows.factors[0, 1, 0, 0])
    zero = np.zeros((1, 64), np.float32)
    blockrows.quantize_row(zero.ctypes.data, rows, 0)
    assert (rows.codes == 0).all() and (rows.factors == 0).all()


def empty_rows(width, columns):
    """A tile."""
    count = -(-width // 32)
    return Rows8(
        np.zeros((1, count, columns, 32), np.int8), np.zeros((1, count, columns, 5), np.float32)
    )


def plain_numbers(rows, count):
    """What the codes of the first rows of a tile stand for, float32 [count, width]."""
    scaled = rows.codes[0] * rows.factors[0, :, :, 0, None]
    return scaled.transpose(1, 0, 2)[:count].reshape(count, -1)


@pytest.mark.parametrize("width", [32, 80, 96])
def test_a_norm_is_quantized_whatever_its_width(width, seed):
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((2, width)).astype(np.float32)
    rows = empty_rows(width, 3)
    blockrows.norm_row(x, weight, 1e-5, rows, 1)
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-5) * weight
    found = plain_numbers(rows, 2)[1]
    np.testing.assert_allclose(found[:width], expected, atol=np.abs(expected).max() / 250)
    assert (found[width:] == 0).all()


@kernel
def swiglu(some, both, rows):
    for first in range(0, len(both), some):
        blockrows.swiglu_rows(
            some, address(both) + first * 256, 256, address(rows.codes) + first * 32,
            address(rows.factors) + first * 20,
        )  # fmt: skip


def test_rows_of_swiglu_have_the_bits_of_one(seed):
    both = np.random.default_rng(seed).standard_normal((8, 64)).astype(np.float32)
    alone, together = empty_rows(32, 8), empty_rows(32, 8)
    swiglu(1, both, alone)
    swiglu(blockrows.SWIGLU_ROWS, both, together)
    assert (alone.codes == together.codes).all()
    assert (alone.factors.view(np.int32) == together.factors.view(np.int32)).all()
    gate, up = both[:, :32], both[:, 32:]
    expected = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(plain_numbers(alone, 8), expected, atol=np.abs(expected).max() / 250)


@kernel
def multiply(function, blob, entries, rows, out, parts, adding, lines):
    tiles, count, columns, _ = rows.codes.shape
    codes, factors = blockrows.tile_places(rows, 0, 0)
    blocktile.block_tiles(
        function, entries[0], address(blob), columns, codes, factors, address(out), len(entries),
        tiles, count, out.shape[1] * 4, adding, lines, address(parts), lines,
    )  # fmt: skip


def plain_dot(found, k, token):
    """Of each row's block with 32 codes, a whole number."""
    zero = {blocks.BYTES: 128, blocks.SIXES: 32}.get(found.form, 0)
    products = (found.codes[:, k].astype(np.int64) - zero) * token.astype(np.int64)
    if found.sizes is not None:
        products = products.reshape(-1, 2, 16) * found.sizes[:, k, :, None].astype(np.int64)
    return products.reshape(len(products), -1).sum(axis=-1)


def plain_multiply(found, rows, count):
    """The sums that `blocktile` documents, for each row and output."""
    columns = rows.codes.shape[2]
    sums = np.zeros((count, len(found.codes)), np.float32)
    for row in range(count):
        factors = rows.factors[row // columns, :, row % columns]
        for k in range(found.codes.shape[1]):
            dot = plain_dot(found, k, rows.codes[row // columns, k, row % columns])
            own = found.scales[:, k].astype(np.float32) * factors[k, 0]
            sums[row] = fma(dot.astype(np.float32), own, sums[row])
            if found.lows is not None:
                low = found.lows[:, k].astype(np.float32)
                sums[row] = fma(low, np.broadcast_to(factors[k, 1], low.shape), sums[row])
    return sums


def check_tiles(found, rows, count):
    blob, entries = packed_blob(found)
    columns = rows.codes.shape[2]
    out = np.zeros((len(rows.codes) * columns, 32), np.float32)
    parts = np.array([[blob.ctypes.data] + [0] * (len(rows.codes) - 1)] * 2)
    function = blocktile.tile_function()
    multiply(function, blob, entries, rows, out, parts, 0, 2)
    expected = plain_multiply(found, rows, count)
    width = len(found.codes)
    assert (out[:count, :width].view(np.int32) == expected.view(np.int32)).all()
    multiply(function, blob, entries, rows, out, parts, 1, 0)
    assert (out[:count, :width] == expected + expected).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", range(1, MAX_COLUMNS + 1))
def test_a_tile_has_the_bits_of_numpy(kind, columns, seed):
    width = width_of(kind)
    found = blocktypes.read_codes(kind, raw_blocks(kind, 20, width, np.random.default_rng(seed)))
    count = 2 * columns + 1
    check_tiles(found, token_rows(count, width, columns, seed)[1], count)


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("form", MOST)
def test_the_largest_codes_do_not_overflow(form, low):
    """All codes, sizes and token codes at their ends, of either sign."""
    few = (2, 3)
    ones = np.ones(few, np.float16)
    found = blocks.Codes(
        form,
        np.full((*few, 32), 0 if low else MOST[form], np.uint8),
        ones,
        ones if form in (blocks.NIBBLES, blocks.FIVES) else None,
        np.full((*few, 2), -128, np.int8) if form == blocks.SIXES else None,
    )
    rows = Rows8(np.zeros((1, 3, 2, 32), np.int8), np.zeros((1, 3, 2, 5), np.float32))
    for row, number in enumerate((1, -1)):
        x = np.full(96, number, np.float32)
        blockrows.quantize_row(x.ctypes.data, rows, row)
    assert np.abs(rows.codes).min() == 127
    check_tiles(found, rows, 2)


PROGRAM = """
import hashlib
from tokenix.tests.cpu.conftest import SUPER, Model, QuantizedWeights
from tokenix.drivers.cpu.jit import has_vnni, host_context
model = Model(SUPER, QuantizedWeights(SUPER), dense="native")
logits = model.all_logits(0, list(range(50)), 11)
print(has_vnni(host_context()), hashlib.sha256(logits.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_processor_without_vnni_computes_the_same_bits():
    here, there = here_and_with_avx2(PROGRAM)
    assert there[0] == "False"
    assert here[1] == there[1]
