"""How a page holds keys and values: the layout of every format, how it is written and read.

    format         a number is         scale
    f32 f16 bf16   itself, rounded
    int8           code * scale        one for K and one for V of a token's head: most / 127
    fp8            code * scale        the same: most / 448; the code is a float8 e4m3
    int4           code * scale + low  one of each for a group of 32 dims: (high - low) / 15

A page of one head is a run of blocks of 16 tokens. Scales and lows lie in the block they are for:

    K block   codes [dim][16 tokens]               | scales [groups][16 tokens] | lows, alike
    V block   codes [dim / 16][16 tokens][16 dims] | scales [groups][16 tokens] | lows, alike

Two codes of 4 bits share a byte, always of one token, so that tokens are written side by side:

    K   low half: dim 2i, high half: dim 2i + 1
    V   low half: dim i, high half: dim i + 8, of 16 dims

A code depends on its token alone. Scales and lows are bfloat16, so a code times its scale is exact
in float32. They are not applied to the numbers but to what is on the other side of the sum:

    score[key] = scale[key] * sum over d of code[key][d] * q[d]   (+ low[key] * sum of q[d])
    out[d]     = sum over keys of code[key][d] * (scale[key] * weight[key])   (+ low * weight)

Keys of 4 bits are turned by a Hadamard matrix, group by group, and queries with them: products
stay, and a dim that is large in all keys no longer coarsens the steps of the others. Mean KL on
SmolLM2 with only keys in 4 bits: scales alone 0.155, with lows 0.055, turned as well 0.035; only
values: 0.011, 0.005, and turning gains little. What else was tried is in `bench/RESULTS.md`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenix.drivers.cpu.hadamard import turn
from tokenix.drivers.cpu.jit import Array, Float32, kernel
from tokenix.drivers.cpu.keytile import tiles_of
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.numbers import address, nearest, store_rounded
from tokenix.drivers.kvkind import KvKind

PLAIN, INT8, FP8, INT4 = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class KvFormat:
    """What a page of a format is made of."""

    stored: np.dtype[np.generic]
    """Of the arena; int16 and uint16 hold the bits of float16 and bfloat16, bytes hold codes."""
    poison: int | float
    """An element that makes every number not-a-number."""
    kind: int = PLAIN
    bits: int = 8
    """Of a code."""
    group: int | None = None
    """Dims of one scale; None: all."""
    lows: bool = False


_BYTE = np.dtype(np.uint8)
FORMATS: dict[KvKind, KvFormat] = {
    "f16": KvFormat(np.dtype(np.int16), 0x7E00),
    "bf16": KvFormat(np.dtype(np.uint16), 0x7FC0),
    "f32": KvFormat(np.dtype(np.float32), np.nan),
    "int8": KvFormat(_BYTE, 0xFF, INT8),
    "fp8": KvFormat(_BYTE, 0xFF, FP8),
    "int4": KvFormat(_BYTE, 0xFF, INT4, bits=4, group=32, lows=True),
}


class PageLayout(NamedTuple):
    """Where things are in a page; offsets and sizes in bytes."""

    kind: int
    page_tokens: int
    bits: int
    """Of a number, without its scale."""
    groups: int
    """Groups of dims that have a scale of their own."""
    scales_at: int
    """In a block; its lows follow."""
    block_bytes: int
    head_bytes: int
    tiles: int
    """`keytile.tiles_of`, in this process."""


def layout_of(kind: KvKind, page_tokens: int, head_dim: int) -> PageLayout:
    """The layout of a page of one head, K or V."""
    form = FORMATS[kind]
    if form.kind == PLAIN:
        bits, groups, scales = 8 * form.stored.itemsize, 0, 0
    else:
        # A head that is no multiple of a group has groups of a tile's width.
        group = form.group or head_dim
        bits, groups = form.bits, head_dim // (group if head_dim % group == 0 else LANES)
        scales = groups * (2 if form.lows else 1)
    codes = LANES * head_dim * bits // 8
    block = codes + 2 * LANES * scales
    head = page_tokens // LANES * block
    tiles = tiles_of(kind)
    return PageLayout(form.kind, page_tokens, bits, groups, codes, block, head, tiles)


@kernel
def find_block(frame_bytes: int, frame: int, pages: PageLayout, inside: int) -> int:
    """Byte offset in the arena of the block that has token `inside` of a page, less its head's."""
    return int(np.int64(frame) * frame_bytes) + inside // LANES * pages.block_bytes


_BF16 = np.empty(1, np.uint16)

_LARGEST_INT8, _LARGEST_INT4 = np.float32(127.0), np.float32(15.0)
_LARGEST_FP8 = np.float32(1.75)
"""448, as `tile` reads it: 2**-8 of it."""
_LEAST_NORMAL = np.float32(2.0**-14)
_SUBNORMALS = np.float32(2.0**17)
_NOTHING = np.float32(1e-30)
"""A scale below it has codes of zero."""


@kernel
def _bfloat16(x: np.float32) -> np.float32:
    """Rounded to nearest even."""
    if x != x:
        return x
    bits = np.float32(x).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    kept = np.uint32(bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
    return np.uint32(kept).view(np.float32)


@kernel
def _clamp(x: np.float32, low: np.float32, high: np.float32) -> np.float32:
    """Not-a-number becomes `low`."""
    x = x if x > low else low
    return x if x < high else high


@kernel
def _code_fp8(x: np.float32) -> np.int64:
    """e4m3 of x in -1.75 .. 1.75, with the exponents that `tile` reads."""
    size = _clamp(np.float32(abs(x)), np.float32(0.0), _LARGEST_FP8)
    sign = np.int64(128 if x < 0 else 0)
    if size < _LEAST_NORMAL:
        return sign + np.int64(nearest(size * _SUBNORMALS))
    bits = np.int64(np.float32(size).view(np.uint32))
    return sign + ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (127 - 15) * 8


@kernel
def encode(kind: int, x: Float32, codes: Array) -> tuple[np.float32, np.float32]:
    """Codes (uint8) of a group of numbers; its scale and low, as bfloat16 has them.

    A number that is not finite makes the scale not-a-number, so that it is not hidden.
    """
    least, most, strange = x[0], x[0], np.float32(0.0)
    for d in range(len(x)):
        least = x[d] if x[d] < least else least
        most = x[d] if x[d] > most else most
        strange += np.float32(x[d] * np.float32(0.0))
    low = np.float32(0.0)
    if kind == INT4:
        low = _bfloat16(least)
        scale = _bfloat16(np.float32(np.float32(most - low) / _LARGEST_INT4) + strange)
    else:
        most = -least if -least > most else most
        largest = _LARGEST_INT8 if kind == INT8 else _LARGEST_FP8
        scale = _bfloat16(np.float32(most / largest) + strange)
    inverse = np.float32(1.0) / scale if scale > _NOTHING else np.float32(0.0)
    if kind == INT4:
        for d in range(len(x)):
            y = np.float32(np.float32(x[d] - low) * inverse)
            codes[d] = np.int32(nearest(_clamp(y, np.float32(0.0), _LARGEST_INT4)))
    elif kind == INT8:
        for d in range(len(x)):
            y = np.float32(x[d] * inverse)
            codes[d] = np.int32(nearest(_clamp(y, -_LARGEST_INT8, _LARGEST_INT8))) & 255
    else:
        for d in range(len(x)):
            codes[d] = _code_fp8(np.float32(x[d] * inverse))
    return scale, low


@kernel
def _encode_head(arena: Array, pages: PageLayout, at: int, lane: int, x: Float32) -> Array:
    """Codes of one head, K or V; its scales and lows go to the block at offset `at`."""
    codes = np.empty(len(x), np.uint8)
    group = len(x) // pages.groups
    for g in range(pages.groups):
        mine = slice(g * group, (g + 1) * group)
        scale, low = encode(pages.kind, x[mine], codes[mine])
        at_scale = address(arena) + at + pages.scales_at + (g * LANES + lane) * 2
        store_rounded(_BF16, at_scale, scale)
        if pages.kind == INT4:
            store_rounded(_BF16, at_scale + pages.groups * LANES * 2, low)
    return codes


@kernel
def write_codes(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    """`kvpages.write_head` for codes."""
    page, dim = arena.reshape(-1), len(key)
    codes = _encode_head(arena, pages, at_k, lane, key)
    if pages.kind == INT4:
        for d in range(0, dim, 2):
            page[at_k + d // 2 * LANES + lane] = codes[d] | codes[d + 1] << 4
    else:
        for d in range(dim):
            page[at_k + d * LANES + lane] = codes[d]
    codes = _encode_head(arena, pages, at_v, lane, value)
    for part in range(0, dim, LANES):
        if pages.kind == INT4:
            at = at_v + (part + lane) * LANES // 2
            for d in range(LANES // 2):
                page[at + d] = codes[part + d] | codes[part + d + LANES // 2] << 4
        else:
            for d in range(LANES):
                page[at_v + (part + lane) * LANES + d] = codes[part + d]


def turn_codes(arena: Array, pages: PageLayout, head: Float32, query: bool) -> None:
    """`kvpages.turn_head` for codes."""
    if pages.kind == INT4:
        group = len(head) // pages.groups
        for first in range(0, len(head), group):
            turn(head[first : first + group], 1.0 / group if query else 1.0)
