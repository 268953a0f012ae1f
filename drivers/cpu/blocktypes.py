"""Quantized types of GGUF files as the codes that `blocks` packs.

A file has rows of blocks of 32 numbers, or of 256 ("super-blocks"), each with its scales:

    type    numbers   bytes of a block, in order
    Q4_0      32      d | 16 x codes                             (code - 8) * d
    Q4_1      32      d m | 16 x codes                           code * d + m
    Q5_0      32      d | 4 x fifth bits | 16 x codes            (code - 16) * d
    Q5_1      32      d m | 4 x fifth bits | 16 x codes          code * d + m
    Q8_0      32      d | 32 x codes, signed                     code * d
    Q3_K     256      32 x third bits | 64 x codes | 12 | d      (code - 4) * scale * d
    Q4_K     256      d m | 12 | 128 x codes                     code * scale * d - low * m
    Q5_K     256      d m | 12 | 32 x fifth bits | 128 x codes   likewise
    Q6_K     256      128 x codes | 64 x upper bits | 16 | d     (code - 32) * scale * d

d and m are float16; 12 and 16 are bytes with whole scales and lows, of each 32 numbers (Q4_K, Q5_K)
or of each 16. The layouts are those of `ggml-common.h`; tests compare with the `gguf` package.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tokenix.drivers.cpu.blocks import BLOCK, BYTES, FIVES, NIBBLES, SIXES, Codes, as_float16
from tokenix.drivers.cpu.jit import Array


def format_of(kind: str) -> int:
    """The packed format of a GGUF type."""
    return _READERS[kind][0] if kind in _READERS else BYTES


def keeps(kind: str) -> bool:
    """Whether codes of this type stay as they are; others are rounded to BYTES."""
    return kind in _READERS


def read_codes(kind: str, rows: Array) -> Codes:
    """Raw blocks of a file, uint8 [rows, bytes], of a type that is kept. ValueError as
    `as_float16`."""
    _, block_bytes, read = _READERS[kind]
    return read(rows.reshape(len(rows), -1, block_bytes))


def _halves(packed: Array) -> Array:
    """[.., n] bytes as the codes [.., 2 n]: first all low halves, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _float16(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view(np.float16)


def _with_zero(form: int, codes: Array, scales: Array, zero: int) -> Codes:
    """Blocks whose numbers are (code - zero) * scale."""
    return Codes(form, codes, scales, as_float16(scales.astype(np.float32) * -zero))


def _read_q4_0(blocks: Array) -> Codes:
    return _with_zero(NIBBLES, _halves(blocks[..., 2:]), _float16(blocks[..., :2])[..., 0], 8)


def _read_q4_1(blocks: Array) -> Codes:
    scales, lows = np.moveaxis(_float16(blocks[..., :4]), -1, 0)
    return Codes(NIBBLES, _halves(blocks[..., 4:]), scales, lows)


def _five_bits(rest: Array) -> Array:
    """4 bytes whose bit i is the fifth one of number i, then nibbles."""
    upper = np.unpackbits(rest[..., :4], axis=-1, bitorder="little")
    codes: Array = _halves(rest[..., 4:]) | upper << 4
    return codes


def _read_q5_0(blocks: Array) -> Codes:
    return _with_zero(FIVES, _five_bits(blocks[..., 2:]), _float16(blocks[..., :2])[..., 0], 16)


def _read_q5_1(blocks: Array) -> Codes:
    scales, lows = np.moveaxis(_float16(blocks[..., :4]), -1, 0)
    return Codes(FIVES, _five_bits(blocks[..., 4:]), scales, lows)


def _read_q8_0(blocks: Array) -> Codes:
    return Codes(BYTES, blocks[..., 2:] ^ np.uint8(128), _float16(blocks[..., :2])[..., 0])


def _scales_and_lows(heads: Array) -> tuple[Array, Array]:
    """Of the 8 blocks of each super-block, from its first 16 bytes: d, m and 6 bits each.

        block i < 4    scale: byte i; low: byte i + 4; of both the lower 6 bits
        block 4 + i    scale, low: halves of byte i + 8; above them the upper 2 bits of the bytes
                       i and i + 4

    The products with d and -m are rounded to float16, [rows, blocks]."""
    factors = _float16(heads[..., :4]).astype(np.float32)
    first, second, third = heads[..., 4:8], heads[..., 8:12], heads[..., 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    lows = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    products = scales * factors[..., :1], lows * -factors[..., 1:]
    scales, lows = (as_float16(each).reshape(len(heads), -1) for each in products)
    return scales, lows


def _paired_nibbles(raw: Array) -> Array:
    """128 bytes, each 32 of which are low halves of one block and high ones of the next:
    [rows, super-blocks, 8, 32]."""
    lines = raw.reshape(*raw.shape[:2], 4, 1, BLOCK)
    return np.concatenate([lines & 15, lines >> 4], axis=3).reshape(*raw.shape[:2], 8, BLOCK)


def _read_q4_k(blocks: Array) -> Codes:
    codes = _paired_nibbles(blocks[..., 16:])
    return Codes(NIBBLES, codes.reshape(len(blocks), -1, BLOCK), *_scales_and_lows(blocks))


def _read_q5_k(blocks: Array) -> Codes:
    """Bit i of fifth byte k is of number k of block i."""
    upper = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _paired_nibbles(blocks[..., 48:]) | upper << 4
    return Codes(FIVES, codes.reshape(len(blocks), -1, BLOCK), *_scales_and_lows(blocks))


def _sixes(blocks: Array, codes: Array, sizes: Array) -> Codes:
    """Of super-blocks that end with d: codes of 32 more than they count, 16 sizes."""
    rows = len(blocks)
    scales = np.repeat(_float16(blocks[..., -2:])[..., 0], 8, axis=-1)
    return Codes(
        SIXES,
        codes.reshape(rows, -1, BLOCK),
        scales,
        sizes=sizes.view(np.int8).reshape(rows, -1, 2),
    )


_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
"""Where the four pairs of bits of a byte begin, for four blocks one below the other."""


def _read_q6_k(blocks: Array) -> Codes:
    """Two times 4 blocks; of each 4, number k has in lower bits: low halves of bytes k and 32 + k,
    then their high ones; in upper bits: the pairs of byte k, lowest first."""
    shape = (*blocks.shape[:2], 2)
    lower = blocks[..., :128].reshape(*shape, 2, BLOCK)
    lower = np.concatenate([lower & 15, lower >> 4], axis=-2)
    upper = blocks[..., 128:192].reshape(*shape, 1, BLOCK) >> _PAIRS & 3
    return _sixes(blocks, lower | upper << 4, np.ascontiguousarray(blocks[..., 192:208]))


_SPREAD = 8
"""How many codes of 6 bits there are to one of 3."""


def _read_q3_k(blocks: Array) -> Codes:
    """Two times 4 blocks; number k of each 4 has the pairs of byte k, lowest first. Bit i of third
    byte k is of number k of block i.

    The 12 bytes hold 16 scales of 6 bits, less 32: scale i has as lower bits a half of byte i % 8
    (low ones first), as upper ones a pair of byte 8 + i % 4 (lowest first).

    Codes are spread over those of SIXES: dots lose their lowest bit, which is then worth less."""
    pairs = blocks[..., 32:96].reshape(*blocks.shape[:2], 2, 1, BLOCK) >> _PAIRS & 3
    third = blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = pairs.reshape(third.shape) | third << 2
    upper = blocks[..., None, 104:108] >> _PAIRS & 3
    sizes = _halves(blocks[..., 96:104]) | upper.reshape(*blocks.shape[:2], 16) << 4
    found = _sixes(blocks, codes * np.uint8(_SPREAD), sizes - np.uint8(32))
    return replace(found, scales=found.scales.astype(np.float32) / _SPREAD)


_READERS: dict[str, tuple[int, int, Callable[[Array], Codes]]] = {
    "Q4_0": (NIBBLES, 18, _read_q4_0),
    "Q4_1": (NIBBLES, 20, _read_q4_1),
    "Q4_K": (NIBBLES, 144, _read_q4_k),
    "Q5_0": (FIVES, 22, _read_q5_0),
    "Q5_1": (FIVES, 24, _read_q5_1),
    "Q5_K": (FIVES, 176, _read_q5_k),
    "Q6_K": (SIXES, 210, _read_q6_k),
    "Q3_K": (SIXES, 110, _read_q3_k),
    "Q8_0": (BYTES, 34, _read_q8_0),
}
"""Packed format, bytes of a block, [rows, blocks, bytes] to codes."""
