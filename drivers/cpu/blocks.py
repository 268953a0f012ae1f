"""Weights in blocks of 32 numbers, as GGUF files hold them, packed for `blocktile`.

    format    a number is                  bits   made of (`blocktypes`)
    NIBBLES   code * scale + low            5     Q4_0, Q4_1, Q4_K
    FIVES     code * scale + low            6     Q5_0, Q5_1, Q5_K
    SIXES     (code - 32) * size * scale    7     Q6_K; Q3_K, whose codes are a few of these
    BYTES     (code - 128) * scale          8.5   Q8_0; any other type, rounded to it

Codes are unsigned, scales and lows float16; sizes are int8, one for each half of a block. Sixteen
rows (outputs) lie side by side, so that a pass reads a matrix from end to end:

    group     [block 0][block 1] ..
    block     [registers of codes][16 scales]   NIBBLES, FIVES: [16 lows]
                                                SIXES: [16 sizes][16 sizes]
    register  [16 rows][4 steps of k]           BYTES: 8 of them, for quads 0 to 7 of the 32 k

    other formats   4 registers of nibbles: low halves are quads 0 to 3, high halves quads 4 to 7
    FIVES           then one of upper bits: bit q of a byte is of quad q
    SIXES           then two of upper pairs of bits: of quads 0 to 3, lowest first; of quads 4 to 7

Groups start at multiples of 64 bytes. A matrix is an array of int64, one for each group: where the
group begins, plus its format; so its parts (q, k and v, say) may be of different types.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tokenix.drivers.cpu.jit import Array, Float32
from tokenix.drivers.cpu.lanes import LANES

BLOCK = 32
"""Numbers that share a scale, in weights and in activations."""
QUADS = BLOCK // 4
FACTORS = 5
"""Numbers that a token has for each block beside its codes, see `blocktile`."""
FORMS = NIBBLES, FIVES, SIXES, BYTES = range(4)
UPPER_BITS = {NIBBLES: 0, FIVES: 1, SIXES: 2}
"""Of a code, above its nibble."""
CODE_BYTES = {form: LANES * BLOCK * (4 + bits) // 8 for form, bits in UPPER_BITS.items()}
"""Of a block of a group."""
CODE_BYTES[BYTES] = LANES * BLOCK
BLOCK_BYTES = {form: CODE_BYTES[form] + LANES * (2 if form == BYTES else 4) for form in FORMS}
ALIGNMENT = 64

_LARGEST = np.float32(127.0)


def count_blocks(inputs: int) -> int:
    return -(-inputs // BLOCK)


def group_bytes(form: int, blocks: int) -> int:
    """Bytes of a group of 16 rows."""
    size = blocks * BLOCK_BYTES[form]
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix as codes, before it is packed."""

    form: int
    codes: Array
    """uint8 [rows, blocks, 32]"""
    scales: Array
    """float16 [rows, blocks]"""
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
    padded = np.zeros((rows, count_blocks(inputs), BLOCK), np.float32)
    padded.reshape(rows, -1)[:, :inputs] = matrix
    scales = as_float16(np.abs(padded).max(axis=-1) / _LARGEST)
    wide = scales.astype(np.float32)
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
    whole = np.clip(np.rint(padded * inverse[..., None]), -127, 127)
    return Codes(BYTES, (whole + 128).astype(np.uint8), scales)


def pack_codes(found: Codes) -> Array:
    """uint8 [groups, group bytes]; missing rows of the last group are zero."""
    rows, blocks, _ = found.codes.shape
    groups = -(-rows // LANES)
    quads = _side_by_side(found.codes, groups).reshape(groups, LANES, blocks, QUADS, 4)
    registers = _fill_registers(found.form, quads.transpose(0, 2, 3, 1, 4))
    parts = [each.reshape(groups, blocks, -1) for each in registers]
    numbers = [found.scales] + ([] if found.lows is None else [found.lows])
    if found.sizes is not None:
        numbers += [found.sizes[..., 0], found.sizes[..., 1]]
    for each in numbers:
        beside = _side_by_side(each, groups).transpose(0, 2, 1)  # group, block, row
        parts.append(np.ascontiguousarray(beside).view(np.uint8))
    packed = np.zeros((groups, group_bytes(found.form, blocks)), np.uint8)
    whole = np.concatenate(parts, axis=-1).reshape(groups, -1)
    packed[:, : whole.shape[1]] = whole
    return packed


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


def _side_by_side(values: Array, groups: int) -> Array:
    """[rows, ...] as [groups, 16, ...], filled up with zeros."""
    whole = values
    if len(values) < groups * LANES:
        whole = np.zeros((groups * LANES, *values.shape[1:]), values.dtype)
        whole[: len(values)] = values
    return whole.reshape(groups, LANES, *values.shape[1:])


def lay_out(forms: Iterable[int], blocks: int, start: int) -> tuple[list[int], int]:
    """Groups of these formats one behind the other from `start` on: the entries of a matrix, and
    where they end."""
    entries = []
    for form in forms:
        entries.append(start + form)
        start += group_bytes(form, blocks)
    return entries, start
