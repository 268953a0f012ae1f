"""What kernels do with pages of keys and values: write a token, score keys, sum values.

Each has two variants: for numbers as they are (here) and for codes with scales (in `kvformat`). A
kernel that calls one is compiled with the variant that its arena asks for.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, kernel, specialized
from tokenix.drivers.cpu.keytile import score_blocks, sum_blocks
from tokenix.drivers.cpu.kvformat import (
    PageLayout,
    find_block,
    score_codes,
    sum_codes,
    turn_codes,
    write_codes,
)
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.tile import address, round_lanes

Variant = Callable[..., Any]


def write_head(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    """Write the K and V of one head of a token; at_k, at_v: offsets of its blocks."""


def _write_plain(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    size, start, dim = arena.itemsize, address(arena), len(key)
    rounded, page = np.empty(dim, arena.dtype), arena.reshape(-1)
    for first in range(0, dim, LANES):
        round_lanes(arena, address(key) + first * 4, address(rounded) + first * size)
        part = start + at_v + (first + lane) * LANES * size
        round_lanes(arena, address(value) + first * 4, part)
    at = at_k // size + lane
    for d in range(dim):
        page[at + d * LANES] = rounded[d]


def turn_head(arena: Array, pages: PageLayout, head: Float32, query: bool) -> None:
    """What a format does to a rotated q or k in place before it is used or written."""


def _leave_head(arena: Array, pages: PageLayout, head: Float32, query: bool) -> None:
    pass


def count_columns(arena: Array, slots: int) -> int:
    """Columns of a computation for `slots` queries and heads; those behind them are zero."""
    return slots


def _as_many(arena: Array, slots: int) -> int:
    return slots


def _power_of_two(arena: Array, slots: int) -> int:
    columns = 1
    while columns < slots:
        columns *= 2
    return columns


@kernel
def _find_blocks(
    arena: Array, key_base: int, value_base: int, table: Int32, pages: PageLayout, blocks: int
) -> Int64:
    """Addresses of the first `blocks` blocks of 16 tokens of a layer's head, K then V."""
    places = np.empty(2 * blocks, np.int64)
    frame_bytes, start = arena.shape[1] * arena.itemsize, address(arena)
    for block in range(blocks):
        token = block * LANES
        page, inside = token // pages.page_tokens, token % pages.page_tokens
        at = start + find_block(frame_bytes, table[page], pages, inside)
        places[block], places[blocks + block] = at + key_base, at + value_base
    return places


def score_keys(
    arena: Array,
    key_base: int,
    value_base: int,
    table: Int32,
    pages: PageLayout,
    packed: Float32,
    scores: Float32,
) -> None:
    """scores [columns, padded keys] = packed queries [dim, columns] against the key pages.

    key_base, value_base: byte offsets in a frame of the K and the V page of this layer and head.
    """


def _score_plain(
    arena: Array,
    key_base: int,
    value_base: int,
    table: Int32,
    pages: PageLayout,
    packed: Float32,
    scores: Float32,
) -> None:
    dim, columns = packed.shape
    blocks = scores.shape[1] // LANES
    places = _find_blocks(arena, key_base, value_base, table, pages, blocks)
    stride = scores.shape[1] * 4
    score_blocks(
        pages.tiles, columns, dim, places, blocks, address(packed), address(scores), stride
    )


def sum_values(
    arena: Array,
    key_base: int,
    value_base: int,
    table: Int32,
    pages: PageLayout,
    keys: int,
    weights: Float32,
    sums: Float32,
) -> None:
    """sums [columns, dim] = weights [columns, at least keys] against the value pages."""


def _sum_plain(
    arena: Array,
    key_base: int,
    value_base: int,
    table: Int32,
    pages: PageLayout,
    keys: int,
    weights: Float32,
    sums: Float32,
) -> None:
    columns, dim = sums.shape
    blocks = (keys + LANES - 1) // LANES
    places = _find_blocks(arena, key_base, value_base, table, pages, blocks)
    sum_blocks(
        pages.tiles,
        arena.itemsize,
        columns,
        dim,
        places,
        keys,
        address(weights),
        weights.shape[1] * 4,
        address(sums),
        dim * 4,
    )


def _choose(function: Variant, plain: Variant, codes: Variant) -> None:
    """By the dtype of the arena, when the kernel that calls `function` is compiled."""

    @specialized(function)
    def choose(arena: Any, *rest: Any) -> Variant:
        return codes if arena.dtype is types.uint8 else plain


_choose(count_columns, _as_many, _power_of_two)
_choose(turn_head, _leave_head, turn_codes)
_choose(write_head, _write_plain, write_codes)
_choose(score_keys, _score_plain, score_codes)
_choose(sum_values, _sum_plain, sum_codes)
