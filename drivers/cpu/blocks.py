"""Weights in blocks of 32 numbers, as GGUF files hold them, packed for `blocktile`.

    format    a number is                           bits   made of (`blocktypes`)
    NIBBLES   (code - 8) * scale + low               5     Q4_0, Q4_1, Q4_K
    FIVES     (code - 16) * scale + low              6     Q5_0, Q5_1, Q5_K
    SIXES     (code - 32) * scale of half a block    7     Q6_K; Q3_K: it has every eighth code
    BYTES     (code - 128) * scale                   8.5   Q8_0; any other type, rounded to it

Codes are unsigned, scales and lows int16 in a unit of their row, see `find_numbers`. So these have
15 bits below the largest of a row, and what they are rounded by is far below what the codes of a
token are rounded by. Blocks lie in pairs, sixteen rows (outputs) side by side, so that a pass reads
a matrix from end to end:

    group     [block 0][block 1] .. [16 units of rows, float32]
    block     [registers of codes][its half of the numbers of the pair]
    numbers   [16 rows][2] of scales, then as many lows    NIBBLES, FIVES: of the two blocks
              [16 rows][2] of scales, twice                SIXES: of the halves of each block
              [16 rows][2] of scales                       BYTES
    register  [16 rows][4 steps of k]                      BYTES: 8, for quads 0 to 7 of 32 k

    other formats   4 registers of nibbles: low halves are quads 0 to 3, high halves quads 4 to 7
    FIVES           then one of upper bits: bit q of a byte is of quad q
    SIXES           then two of upper pairs of bits: of quads 0 to 3, lowest first; of quads 4 to 7

Groups start at multiples of 64 bytes. A matrix is an array of int64, one for each group: where the
group begins, plus its format; so its parts (q, k and v, say) may be of different types.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenix.drivers.cpu.jit import Array, Float32
from tokenix.drivers.cpu.lanes import LANES

BLOCK = 32
"""Numbers that share a scale, in weights and in activations."""
PAIR = 2 * BLOCK
"""Numbers whose scales are told in one unit, so that their dots are added up as whole numbers."""
QUADS = BLOCK // 4
FACTORS = 16
"""Words that a token has for each pair beside its codes, see `blocktile`."""
FORMS = NIBBLES, FIVES, SIXES, BYTES = range(4)
UPPER_BITS = {NIBBLES: 0, FIVES: 1, SIXES: 2}
"""Of a code, above its nibble."""
CODE_BYTES = {form: LANES * BLOCK * (4 + bits) // 8 for form, bits in UPPER_BITS.items()}
"""Of a block of a group."""
CODE_BYTES[BYTES] = LANES * BLOCK
BLOCK_BYTES = {form: CODE_BYTES[form] + LANES * (2 if form == BYTES else 4) for form in FORMS}
PAIR_BYTES = {form: 2 * BLOCK_BYTES[form] for form in FORMS}
UNIT_BYTES = 4 * LANES
"""Of a group: the units of its rows."""
ALIGNMENT = 64
ZEROS = {NIBBLES: 8, FIVES: 16, SIXES: 32, BYTES: 128}
"""What codes are less when they are multiplied."""
DROPPED = {NIBBLES: 0, FIVES: 1, SIXES: 1, BYTES: 4}
"""Lowest bits of a dot that are rounded off, so that int16 holds the rest."""
SCALE_STEP, LOW_STEP = 2.0**-15, 2.0**-12
"""What a scale and a low of 1 are, of the scale of their row."""

SCALES, SUMS, STEP, FIRST, SECOND = range(5)
BEGINS = {NIBBLES: (5, 6), FIVES: (7, 8), BYTES: (9, 10), SIXES: (11, 12, 13, 14)}
"""Words of a token for a pair, see `blocktile`; BEGINS: where dots begin."""
MOST_SCALE = 1 << 14
"""What the larger scale of a pair of a token is in units."""

_LARGEST, _LARGEST16 = np.float32(127.0), np.float32(32767.0)


def count_pairs(inputs: int) -> int:
    return -(-inputs // PAIR)


def group_bytes(form: int, pairs: int) -> int:
    """Bytes of a group of 16 rows, a multiple of ALIGNMENT."""
    return pairs * PAIR_BYTES[form] + UNIT_BYTES


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix as codes, before it is packed."""

    form: int
    codes: Array
    """uint8 [rows, blocks, 32]"""
    scales: Array
    """float16 or float32 [rows, blocks]"""
    lows: Array | None = None
    """Likewise; of NIBBLES and FIVES."""
    sizes: Array | None = None
    """int8 [rows, blocks, 2]; of SIXES."""


def as_float16(numbers: Float32) -> Array:
    """ValueError for what is not finite, or beyond its range."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise ValueError("a weight is not finite, or beyond the range of float16 scales")
    return rounded


def make_codes(matrix: Float32) -> Codes:
    """Float32 [rows, inputs] rounded to BYTES; short rows are filled up with zeros. ValueError as
    `as_float16`."""
    rows, inputs = matrix.shape
    padded = np.zeros((rows, -(-inputs // BLOCK), BLOCK), np.float32)
    padded.reshape(rows, -1)[:, :inputs] = matrix
    scales = as_float16(np.abs(padded).max(axis=-1) / _LARGEST)
    wide = scales.astype(np.float32)
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
    whole = np.clip(np.rint(padded * inverse[..., None]), -127, 127)
    return Codes(BYTES, (whole + 128).astype(np.uint8), scales)


class Numbers(NamedTuple):
    """What a matrix has beside its codes, as whole numbers."""

    units: Float32
    """[rows]: scales of rows"""
    scales: Array
    """int16 [rows, blocks, parts]: parts are blocks, or halves of them in SIXES"""
    lows: Array | None
    """int16 [rows, blocks]"""


def find_numbers(found: Codes) -> Numbers:
    """Scales and lows in the finest units of each row that hold all of its own. ValueError for what
    is not finite.

    scale = whole * unit * SCALE_STEP / 2**DROPPED, low + ZEROS * scale = whole * unit * LOW_STEP"""
    scales, lows = found.scales.astype(np.float32)[..., None], None
    if found.sizes is not None:
        scales = scales * found.sizes
    own = np.float32((1 << DROPPED[found.form]) / SCALE_STEP)
    most = np.abs(scales).max(axis=(1, 2)) * own
    if found.lows is not None:
        lows = found.lows + scales[..., 0] * ZEROS[found.form]
        most = np.maximum(most, np.abs(lows).max(axis=1) / np.float32(LOW_STEP))
    if not np.isfinite(most).all():
        raise ValueError("a scale of weights is not finite")
    units = most / _LARGEST16
    inverse = np.divide(1, units, out=np.zeros_like(units), where=units > 0)

    def whole(numbers: Array) -> Array:
        return np.clip(np.rint(numbers), -_LARGEST16, _LARGEST16).astype(np.int16)

    return Numbers(
        units,
        whole(scales * (inverse * own)[:, None, None]),
        None if lows is None else whole(lows * (inverse / np.float32(LOW_STEP))[:, None]),
    )


def pack_codes(found: Codes) -> Array:
    """uint8 [groups, group bytes]; missing rows of the last group are zero. ValueError as
    `find_numbers`."""
    rows, blocks, _ = found.codes.shape
    groups, pairs = -(-rows // LANES), count_pairs(blocks * BLOCK)
    quads = _side_by_side(found.codes, groups, pairs).reshape(groups, LANES, 2 * pairs, QUADS, 4)
    registers = _fill_registers(found.form, quads.transpose(0, 2, 3, 1, 4))
    whole = [each.reshape(groups, 2 * pairs, -1) for each in registers]
    units, scales, lows = find_numbers(found)
    numbers = []
    for each in [scales] if lows is None else [scales, lows]:
        beside = _side_by_side(each, groups, pairs).reshape(groups, LANES, pairs, -1, 2)
        words = np.ascontiguousarray(beside.transpose(0, 2, 3, 1, 4))  # group, pair, two, row
        numbers.append(words.view(np.uint8).reshape(groups, pairs, -1))
    whole.append(np.concatenate(numbers, axis=-1).reshape(groups, 2 * pairs, -1))
    last = np.zeros((groups, LANES), np.float32)
    last.reshape(-1)[:rows] = units
    body = np.concatenate(whole, axis=-1).reshape(groups, -1)
    return np.concatenate([body, last.view(np.uint8)], axis=1)


def _fill_registers(form: int, quads: Array) -> list[Array]:
    """Codes [group, block, quad, row, step] as registers [group, block, register, row, step]."""
    if form == BYTES:
        return [quads]
    registers, bits = [quads[:, :, :4] & 15 | quads[:, :, 4:] << 4], UPPER_BITS[form]
    for plane in range(bits):
        upper = quads[:, :, plane * QUADS // bits : (plane + 1) * QUADS // bits] >> 4
        placed = (upper[:, :, i] << bits * i for i in range(QUADS // bits))
        registers.append(np.bitwise_or.reduce(list(placed)))
    return registers


def _side_by_side(values: Array, groups: int, pairs: int) -> Array:
    """[rows, blocks, ...] as [groups, 16, 2 * pairs, ...], filled up with zeros."""
    shape = (groups * LANES, 2 * pairs, *values.shape[2:])
    whole = values
    if values.shape != shape:
        whole = np.zeros(shape, values.dtype)
        whole[: values.shape[0], : values.shape[1]] = values
    return whole.reshape(groups, LANES, *shape[1:])


def lay_out(forms: Iterable[int], pairs: int, start: int) -> tuple[list[int], int]:
    """Groups of these formats one behind the other from `start` on: the entries of a matrix, and
    where they end."""
    entries = []
    for form in forms:
        entries.append(start + form)
        start += group_bytes(form, pairs)
    return entries, start
