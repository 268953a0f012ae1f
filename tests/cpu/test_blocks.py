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
    pairs = blocks.count_pairs(found.codes.shape[1] * 32)
    entries, end = blocks.lay_out([found.form] * len(packed), pairs, 0)
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


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("kind", "at"), [("Q8_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q6_K", 208)])
def test_scales_that_are_not_finite_are_refused(kind, at, bad):
    """Also where codes are kept: by a warning at most, each request would fail by its own."""
    raw = raw_blocks(kind, 17, 512, np.random.default_rng(0))
    half = raw.shape[1] // 2
    raw[16, half + at : half + at + 2] = np.array([bad], "<f2").view(np.uint8)
    with pytest.raises(ValueError, match="not finite"):
        blocks.pack_codes(blocktypes.read_codes(kind, raw))


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


def largest_of_rows(found):
    """The largest scale of each row, float32 [rows, 1, 1]: of it scales are 32767ths."""
    scales = np.abs(found.scales.astype(np.float32))
    if found.sizes is not None:
        scales = scales * np.abs(found.sizes.astype(np.float32)).max(axis=-1)
    return scales.max(axis=1)[:, None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_read_back_from_a_packed_matrix(kind, seed):
    """20 rows: the second group is not full. Scales are rounded by half a 32767th of the largest
    of their row, lows by half of what holds 8 (16) of these: a 4096th (2048th) of it."""
    width = width_of(kind)
    found = blocktypes.read_codes(kind, raw_blocks(kind, 20, width, np.random.default_rng(seed)))
    blob, entries = packed_blob(found)
    zero = blocks.ZEROS[found.form]
    bound = largest_of_rows(found) * (np.abs(found.codes - float(zero)) + zero) * 0.51 / 32767
    for row in (0, 7, 15, 16, 19):
        x = np.empty(width, np.float32)
        blockrows.embed_row(blob, entries, row, x)
        assert (np.abs(x.reshape(-1, 32) - values(found)[row]) <= bound[row]).all()


@pytest.mark.parametrize("scale", [0.0, 1e-4])
def test_lows_far_beyond_their_scales_are_kept(scale):
    """Blocks of one number, and of numbers that differ by little of what they are."""
    lows = np.array([[1000.0, -1000.0, 3.0]] * 2, np.float16)
    scales = np.full((2, 3), scale, np.float16)
    codes = np.full((2, 3, 32), 15, np.uint8)
    found = blocks.Codes(blocks.NIBBLES, codes, scales, lows)
    blob, entries = packed_blob(found)
    x = np.empty(96, np.float32)
    blockrows.embed_row(blob, entries, 1, x)
    np.testing.assert_allclose(x.reshape(3, 32), values(found)[1], rtol=0, atol=1000 / 32767)


def fma(x, y, z):
    """float32; the product is exact in float64."""
    return (x.astype(np.float64) * y.astype(np.float64) + z).astype(np.float32)


def empty_rows(count, width, columns):
    """Tiles for so many rows."""
    shape = -(-count // columns), blocks.count_pairs(width), columns
    return Rows8(np.zeros((*shape, 64), np.int8), np.zeros((*shape, blocks.FACTORS), np.float32))


def token_rows(count, width, columns, seed):
    """Rows whose blocks are of sizes of their own."""
    rng = np.random.default_rng(seed)
    rows = empty_rows(count, width, columns)
    x = rng.standard_normal((count, rows.codes.shape[1] * 2, 32))
    x = (x * 10.0 ** rng.integers(-3, 3, (*x.shape[:2], 1))).reshape(count, -1).astype("f4")
    x[:, width:] = 0
    for row in range(count):
        blockrows.quantize_row(x[row].ctypes.data, rows, row)
    return x, rows


def rounding(form, parts):
    """What is added to dots before their lowest bits are dropped: the halfway goes down, up, .."""
    return ((1 << blocks.DROPPED[form]) - 1 + np.arange(parts) % 2) // 2


def halves(word):
    """The two int16 of words, int64 [.., 2]."""
    return np.ascontiguousarray(word).view(np.int16).reshape(*word.shape, 2).astype(np.int64)


def test_a_token_row_is_quantized_as_numpy_does(seed):
    x, rows = token_rows(11, 160, 4, seed)
    for row in range(11):
        for pair, numbers in enumerate(x[row].reshape(3, 2, 32)):
            codes = rows.codes[row // 4, pair, row % 4].reshape(2, 32)
            words = rows.factors[row // 4, pair, row % 4]
            most = np.abs(numbers).max(axis=1)
            inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
            expected = np.rint(numbers * inverse[:, None])
            assert (codes == expected).all()
            assert np.isclose(words[blocks.STEP], most.max() / 127 / 16384, rtol=1e-6)
            whole, counts = words.view(np.int32), expected.astype(np.int64).reshape(4, 16).sum(1)
            scales = np.rint(most / most.max() * 16384)
            assert (halves(whole[blocks.SCALES]) == scales).all()
            assert (halves(whole[blocks.FIRST]) == scales[0]).all()
            assert (halves(whole[blocks.SECOND]) == scales[1]).all()
            totals = counts.reshape(2, 2).sum(axis=1)
            sums = totals * most / most.max() * 4
            assert np.abs(halves(whole[blocks.SUMS]) - sums).max() <= 0.51
            for form, places in blocks.BEGINS.items():
                parts = counts if form == blocks.SIXES else totals
                begins = rounding(form, len(places)) - blocks.ZEROS[form] * parts
                assert whole[list(places)].tolist() == begins.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_pair(bad):
    x, rows = np.ones((1, 128), np.float32), token_rows(1, 128, 1, 0)[1]
    x[0, 70] = bad
    blockrows.quantize_row(x.ctypes.data, rows, 0)
    steps = rows.factors[0, :, 0, blocks.STEP]
    assert np.isfinite(steps[0]) and np.isnan(steps[1])
    zero = np.zeros((1, 128), np.float32)
    blockrows.quantize_row(zero.ctypes.data, rows, 0)
    words = rows.factors.view(np.int32)[0, :, 0]
    assert (rows.codes == 0).all() and (words[:, : blocks.SECOND + 1] == 0).all()


def plain_numbers(rows, count):
    """What the codes of the first rows of a tile stand for, float32 [count, width]."""
    scales = halves(rows.factors.view(np.int32)[0, :, :, blocks.SCALES])
    scales = scales * rows.factors[0, :, :, blocks.STEP, None]
    numbers = rows.codes[0].reshape(*scales.shape, 32) * scales[..., None]
    return numbers.transpose(1, 0, 2, 3)[:count].reshape(count, -1)


@pytest.mark.parametrize("width", [64, 80, 96, 112, 128])
def test_a_norm_is_quantized_whatever_its_width(width, seed):
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((2, width)).astype(np.float32)
    rows = empty_rows(3, width, 3)
    blockrows.norm_row(x, weight, 1e-5, rows, 1)
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-5) * weight
    found = plain_numbers(rows, 2)[1]
    np.testing.assert_allclose(found[:width], expected, atol=np.abs(expected).max() / 250)
    assert (found[width:] == 0).all()


@kernel
def swiglu(some, both, rows):
    for first in range(0, len(both), some):
        blockrows.swiglu_rows(
            some, address(both) + first * 512, 512, address(rows.codes) + first * 64,
            address(rows.factors) + first * 64,
        )  # fmt: skip


def test_rows_of_swiglu_have_the_bits_of_one(seed):
    both = np.random.default_rng(seed).standard_normal((8, 128)).astype(np.float32)
    alone, together = empty_rows(8, 64, 8), empty_rows(8, 64, 8)
    swiglu(1, both, alone)
    swiglu(blockrows.SWIGLU_ROWS, both, together)
    assert (alone.codes == together.codes).all()
    assert (alone.factors.view(np.int32) == together.factors.view(np.int32)).all()
    gate, up = both[:, :64], both[:, 64:]
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


def plain_dots(found, token):
    """Of each row's blocks with a token's codes [blocks, 32], for each part of a block: whole
    numbers [rows, blocks, parts], less the bits that are dropped."""
    parts = 2 if found.sizes is not None else 1
    codes = found.codes.astype(np.int64) - blocks.ZEROS[found.form]
    dots = (codes * token).reshape(*codes.shape[:2], parts, -1).sum(axis=-1)
    dropped = blocks.DROPPED[found.form]
    half = rounding(found.form, dots[0].size).reshape(dots[0].shape)
    found = dots + half >> dropped
    assert np.abs(found).max() < 1 << 15
    return found


def plain_multiply(found, rows, count):
    """The sums that `blocktile` documents, for each row and output."""
    columns = rows.codes.shape[2]
    numbers = blocks.find_numbers(found)
    sums = np.zeros((count, len(found.codes)), np.float32)
    n = found.codes.shape[1]
    for row in range(count):
        factors = rows.factors[row // columns, :, row % columns]
        words = factors.view(np.int32)
        token = rows.codes[row // columns, :, row % columns].reshape(-1, 32)[:n]
        scales = halves(words[:, blocks.SCALES]).reshape(-1, 1)[:n]
        own = numbers.scales * scales + (1 << 14) >> 15
        whole = (plain_dots(found, token) * own).sum(axis=-1)
        if numbers.lows is not None:
            whole += numbers.lows * halves(words[:, blocks.SUMS]).reshape(-1)[:n]
        for first in range(0, n, 2):
            pair = whole[:, first : first + 2].sum(axis=1)
            assert np.abs(pair).max() < 1 << 31
            step = np.broadcast_to(factors[first // 2, blocks.STEP], len(pair))
            sums[row] = fma(pair.astype(np.float32), step, sums[row])
        sums[row] *= numbers.units
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_whole_scales_lose_is_small_beside_what_codes_lose(kind, seed):
    """Root mean squares over 16 tokens: exact scales of weights and tokens would leave the error of
    a token's codes alone. The tile has the bits of `plain_multiply`."""
    rng = np.random.default_rng(seed)
    found = blocktypes.read_codes(kind, raw_blocks(kind, 64, 512, rng))
    weights = values(found).reshape(64, 512).astype(np.float64)
    x, rows = rng.standard_normal((16, 512)).astype(np.float32), empty_rows(16, 512, 8)
    for row in range(16):
        blockrows.quantize_row(x[row].ctypes.data, rows, row)
    steps = np.abs(x.reshape(16, -1, 32)).max(axis=-1, keepdims=True).astype(np.float64) / 127
    coded = (np.rint(x.reshape(16, -1, 32) / steps) * steps).reshape(16, -1) @ weights.T
    lost = np.sqrt(np.mean((coded - x @ weights.T) ** 2))
    more = np.sqrt(np.mean((plain_multiply(found, rows, 16) - coded) ** 2))
    assert 0 < more < 0.1 * lost


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
    rows = empty_rows(2, 96, 2)
    for row, number in enumerate((1, -1)):
        x = np.full(128, number, np.float32)
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
