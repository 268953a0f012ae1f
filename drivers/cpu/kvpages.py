"""What kernels do with pages of keys and values: write a token, score keys, sum values.

Each has two variants: for numbers as they are (here) and for codes with scales (in `kvformat`). A
kernel that calls one is compiled with the variant that its arena asks for, and as bare or owning as
itself; variants over codes make arrays, so they are kernels of their own.
"""

from collections.abc import Callable
from typing import Any

from numba.core import types

from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare, specialized
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
from tokenix.drivers.cpu.tile import address, round_lanes, scatter_lanes

Variant = Callable[..., Any]


def write_head(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    """Write the K and V of one head of a token; at_k, at_v: offsets of its blocks."""


def _write_plain(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    size, start = arena.itemsize, address(arena)
    for first in range(0, len(key), LANES):
        part = start + at_v + (first + lane) * LANES * size
        round_lanes(arena, address(value) + first * 4, part)
        part = start + at_k + (first * LANES + lane) * size
        scatter_lanes(arena, address(key) + first * 4, part, LANES * size)


def _write_codes(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    write_codes(arena, pages, at_k, at_v, lane, key, value)


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


@bare
def find_places(
    arena: Array, base: int, table: Int32, pages: PageLayout, blocks: int, places: Int64, at: int
) -> None:
    """Addresses of the first `blocks` blocks of 16 tokens of a page into places, from `at` on.

    base: byte offset in a frame of the K or the V page of a layer and head.
    """
    frame_bytes, start = arena.shape[1] * arena.itemsize, address(arena) + base
    page, inside = 0, 0
    for block in range(blocks):
        places[at + block] = start + find_block(frame_bytes, table[page], pages, inside)
        inside += LANES
        if inside == pages.page_tokens:
            page, inside = page + 1, 0


def score_keys(
    arena: Array, places: Int64, pages: PageLayout, packed: Float32, scores: Float32
) -> None:
    """scores [blocks, columns, 16 keys] = packed queries [dim / 16, columns, 16] against the key
    pages.

    places: addresses of the blocks of keys, then of those of values, then of what is read next.
    """


def _score_plain(
    arena: Array, places: Int64, pages: PageLayout, packed: Float32, scores: Float32
) -> None:
    blocks, columns, lanes = scores.shape
    dim = packed.shape[0] * lanes
    score_blocks(pages.tiles, columns, dim, places, blocks, address(packed), address(scores))


def _score_codes(
    arena: Array, places: Int64, pages: PageLayout, packed: Float32, scores: Float32
) -> None:
    score_codes(arena, places, pages, packed, scores)


def sum_values(
    arena: Array, places: Int64, pages: PageLayout, keys: int, weights: Float32, sums: Float32
) -> None:
    """sums [columns, dim / 16, 16] = weights [blocks, columns, 16 keys] against the value pages.

    places: as for `score_keys`; what lies behind the last key takes no part.
    """


def _sum_plain(
    arena: Array, places: Int64, pages: PageLayout, keys: int, weights: Float32, sums: Float32
) -> None:
    columns, dim = sums.shape[0], sums.shape[1] * LANES
    sum_blocks(
        pages.tiles,
        arena.itemsize,
        columns,
        dim,
        places,
        keys,
        address(weights),
        address(sums),
        dim * 4,
    )


def _sum_codes(
    arena: Array, places: Int64, pages: PageLayout, keys: int, weights: Float32, sums: Float32
) -> None:
    sum_codes(arena, places, pages, keys, weights, sums)


def _choose(function: Variant, plain: Variant, codes: Variant) -> None:
    """By the dtype of the arena, when the kernel that calls `function` is compiled."""

    @specialized(function)
    def choose(arena: Any, *rest: Any) -> Variant:
        return codes if arena.dtype is types.uint8 else plain


_choose(count_columns, _as_many, _power_of_two)
_choose(turn_head, _leave_head, turn_codes)
_choose(write_head, _write_plain, _write_codes)
_choose(score_keys, _score_plain, _score_codes)
_choose(sum_values, _sum_plain, _sum_codes)
