"""What kernels do with pages of keys and values: write a token, score keys, sum values.

A token is written in two variants: for numbers as they are (here) and for codes with scales (in
`kvformat`). A kernel that calls one is compiled with the variant that its arena asks for, and as
bare or owning as itself; variants over codes make arrays, so they are kernels of their own. What
reads pages is the same code for all: `keytile` has loops for each format.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare, specialized
from tokenix.drivers.cpu.keytile import add_dots, scale_rows, score_blocks, sum_blocks
from tokenix.drivers.cpu.kvformat import (
    INT4,
    PLAIN,
    PageLayout,
    find_block,
    turn_codes,
    write_codes,
)
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.numbers import address, round_lanes, scatter_lanes

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


@bare
def score_keys(
    places: Int64, pages: PageLayout, packed: Float32, scores: Float32, spare: Float32
) -> None:
    """scores [blocks, slots, 16 keys] = packed queries [dim / 16, slots, 16] against the key pages.

    places: addresses of the blocks of keys, then of those of values, then of what is read next;
    spare: working memory of at least dim / 16 * slots.
    """
    (blocks, slots, _), parts, groups = scores.shape, len(packed), max(1, pages.groups)
    if pages.kind == INT4:
        _add_queries(packed, spare, groups)
    score_blocks(
        pages.tiles,
        slots,
        parts,
        places,
        blocks,
        address(packed),
        address(scores),
        groups,
        pages.scales_at,
        address(spare),
    )


@bare
def _add_queries(packed: Float32, sums: Float32, groups: int) -> None:
    """sums [groups, slots] of each slot's queries over the dims of a group, in order."""
    parts, slots, _ = packed.shape
    each = parts // groups
    for group in range(groups):
        for slot in range(slots):
            total = np.float32(0.0)
            for part in range(group * each, (group + 1) * each):
                for lane in range(LANES):
                    total += packed[part, slot, lane]
            sums[group * slots + slot] = total


@bare
def sum_values(
    places: Int64, pages: PageLayout, keys: int, weights: Float32, sums: Float32, spare: Float32
) -> None:
    """sums [slots, dim / 16, 16] = weights [blocks, slots, 16 keys] against the value pages.

    places: as for `score_keys`; what lies behind the last key takes no part; spare: working memory
    as large as the weights.
    """
    (blocks, slots, _), parts, groups = weights.shape, sums.shape[1], max(1, pages.groups)
    used, each = address(weights), parts // groups
    for group in range(groups):
        if pages.kind != PLAIN:
            used, at_scale = address(spare), pages.scales_at + group * LANES * 2
            for block in range(blocks):
                row = block * slots * LANES * 4
                scale_rows(
                    address(weights) + row, places[blocks + block] + at_scale, used + row, slots
                )
        first, to = group * each, address(sums)
        sum_blocks(pages.tiles, slots, first, each, places, keys, used, to, parts * LANES * 4)
        if pages.kind == INT4:
            at_low = pages.scales_at + (groups + group) * LANES * 2
            _add_lows(places, at_low, keys, weights, sums[:, first : first + each], spare)


@bare
def _add_lows(
    places: Int64, at_low: int, keys: int, weights: Float32, sums: Float32, spare: Float32
) -> None:
    """sums [slots, parts of a group, 16] += over keys in order: weight * low."""
    blocks, slots, _ = weights.shape
    totals = spare[:slots]
    totals[:] = np.float32(0.0)
    for block in range(blocks):
        count = min(LANES, keys - block * LANES)
        add_dots(
            address(weights[block]), places[blocks + block] + at_low, address(totals), slots, count
        )
    for slot in range(slots):
        for part in range(sums.shape[1]):
            for lane in range(LANES):
                sums[slot, part, lane] += totals[slot]


def _choose(function: Variant, plain: Variant, codes: Variant) -> None:
    """By the dtype of the arena, when the kernel that calls `function` is compiled."""

    @specialized(function)
    def choose(arena: Any, *rest: Any) -> Variant:
        return codes if arena.dtype is types.uint8 else plain


_choose(turn_head, _leave_head, turn_codes)
_choose(write_head, _write_plain, _write_codes)
