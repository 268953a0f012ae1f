"""Weights in blocks of 32 numbers, as GGUF files hold them, packed for `blocktile`.

    format    a number is               bits   made of
    NIBBLES   code * scale + low         5     Q4_1 as it is; Q4_0, whose low is -8 * scale; Q4_K,
                                               whose scales and lows are products
    BYTES     (code - 128) * scale       8.5   Q8_0 as it is; any other type, rounded to it

Codes are unsigned, scales and lows float16. Sixteen rows (outputs) lie side by side, so that a pass
reads a matrix from end to end:

    group     [block 0][block 1] ..
    block     [8 or 4 registers of codes][16 scales]   NIBBLES: [16 lows]
    register  [16 rows][4 steps of k]    BYTES: of quads 0 to 7 of the 32 k; NIBBLES: low halves are
              quads 0 to 3, high halves quads 4 to 7

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
NIBBLES, BYTES = 0, 1
CODE_BYTES = {NIBBLES: LANES * BLOCK // 2, BYTES: LANES * BLOCK}
"""Of a block of a group."""
SCALE_BYTES = {NIBBLES: 2 * LANES * 2, BYTES: LANES * 2}
BLOCK_BYTES = {form: CODE_BYTES[form] + SCALE_BYTES[form] for form in (NIBBLES, BYTES)}
ALIGNMENT = 64

_LARGEST = np.float32(127.0)


def count_blocks(inputs: int) -> int:
    return -(-inputs // BLOCK)


AS_THEY_ARE = ("Q4_0", "Q4_1", "Q4_K", "Q8_0")
"""GGUF types whose codes are kept; others are rounded to BYTES."""


def format_of(kind: str) -> int:
    """The packed format of a GGUF type."""
    return NIBBLES if kind in ("Q4_0", "Q4_1", "Q4_K") else BYTES


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
    lows: Array
    """Likewise; of NIBBLES only."""


def read_codes(kind: str, rows: Array) -> Codes:
    """Raw blocks of a file, uint8 [rows, bytes], of one of AS_THEY_ARE; ValueError as `_finite`."""
    if kind == "Q4_K":
        return _read_q4_k(rows)
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    blocks = rows.reshape(len(rows), -1, size)
    heads = 4 if kind == "Q4_1" else 2
    numbers = np.ascontiguousarray(blocks[..., :heads]).view(np.float16)
    codes = blocks[..., heads:]
    scales = numbers[..., 0]
    if kind == "Q8_0":
        return Codes(BYTES, codes ^ np.uint8(128), scales, scales)
    halves = np.concatenate([codes & 15, codes >> 4], axis=-1)
    lows = numbers[..., 1] if kind == "Q4_1" else scales * np.float16(-8)
    return Codes(NIBBLES, halves, scales, lows)


def _read_q4_k(rows: Array) -> Codes:
    """8 blocks of 32 codes share two float16, and have 6 bits of scale and of low each:

        d, dmin | 12 bytes | 4 x (32 bytes: low halves are codes of a block, high ones of the next)
        the 12 bytes:  block i < 4    scale: byte i; low: byte i + 4; of both the lower 6 bits
                       block 4 + i    scale, low: halves of byte i + 8; above them the upper 2 bits
                                      of the bytes i and i + 4

    A number is code * (d * scale) - dmin * low; the products are rounded to float16."""
    whole = rows.reshape(len(rows), -1, 144)
    factors = np.ascontiguousarray(whole[..., :4]).view(np.float16).astype(np.float32)
    first, second, third = whole[..., 4:8], whole[..., 8:12], whole[..., 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    lows = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    codes = whole[..., 16:].reshape(len(rows), -1, 4, 1, BLOCK)
    codes = np.concatenate([codes & 15, codes >> 4], axis=3)
    return Codes(
        NIBBLES,
        codes.reshape(len(rows), -1, BLOCK),
        _finite(scales * factors[..., :1]).reshape(len(rows), -1),
        _finite(lows * -factors[..., 1:]).reshape(len(rows), -1),
    )


def _finite(numbers: Float32) -> Array:
    """As float16. ValueError beyond its range."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise ValueError("a weight is not finite, or beyond the range of float16 scales")
    return rounded


def make_codes(matrix: Float32) -> Codes:
    """Float32 [rows, inputs] rounded to codes of 8 bits; short rows are filled up with zeros."""
    rows, inputs = matrix.shape
    padded = np.zeros((rows, count_blocks(inputs), BLOCK), np.float32)
    padded.reshape(rows, -1)[:, :inputs] = matrix
    scales = _finite(np.abs(padded).max(axis=-1) / _LARGEST)
    wide = scales.astype(np.float32)
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
    whole = np.clip(np.rint(padded * inverse[..., None]), -127, 127)
    return Codes(BYTES, (whole + 128).astype(np.uint8), scales, scales)


def pack_codes(found: Codes) -> Array:
    """uint8 [groups, group bytes]; missing rows of the last group are zero."""
    rows, blocks, _ = found.codes.shape
    groups, form = -(-rows // LANES), found.form
    quads = _side_by_side(found.codes, groups).reshape(groups, LANES, blocks, 8, 4)
    quads = quads.transpose(0, 2, 3, 1, 4)  # group, block, quad, row, step
    if form == NIBBLES:
        quads = quads[:, :, :4] | quads[:, :, 4:] << 4
    numbers = [found.scales, found.lows] if form == NIBBLES else [found.scales]
    scales = np.stack([_side_by_side(each, groups) for each in numbers])
    scales = np.ascontiguousarray(scales.transpose(1, 3, 0, 2))  # group, block, which, row
    packed = np.zeros((groups, group_bytes(form, blocks)), np.uint8)
    whole = packed[:, : blocks * BLOCK_BYTES[form]].reshape(groups, blocks, BLOCK_BYTES[form])
    whole[..., : CODE_BYTES[form]] = quads.reshape(groups, blocks, -1)
    whole[..., CODE_BYTES[form] :] = scales.view(np.uint8).reshape(groups, blocks, -1)
    packed[:, : blocks * BLOCK_BYTES[form]] = whole.reshape(groups, -1)
    return packed


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
