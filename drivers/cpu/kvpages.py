"""What kernels do with pages of keys and values: write a token, score keys, sum values.

Each has two variants: for numbers as they are (here) and for codes with scales (in `kvformat`). A
kernel that calls one is compiled with the variant that its arena asks for.
"""

from collections.abc import Callable
from typing import Any

from numba.core import types

from tokenix.drivers.cpu.jit import Array, Float32, Int32, specialized
from tokenix.drivers.cpu.kvformat import (
    PageLayout,
    find_block,
    score_codes,
    sum_codes,
    turn_codes,
    write_codes,
)
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.tile import CONTINUE, OVERWRITE, address, store_rounded, tile

Variant = Callable[..., None]


def write_head(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    """Write the K and V of one head of a token; at_k, at_v: offsets of its blocks."""


def _write_plain(
    arena: Array, pages: PageLayout, at_k: int, at_v: int, lane: int, key: Float32, value: Float32
) -> None:
    size, start = arena.itemsize, address(arena)
    for d in range(len(key)):
        store_rounded(arena, start + at_k + (d * LANES + lane) * size, key[d])
        part = d // LANES * LANES * LANES
        where = start + at_v + (part + lane * LANES + d % LANES) * size
        store_rounded(arena, where, value[d])


def turn_head(arena: Array, pages: PageLayout, head: Float32, query: bool) -> None:
    """What a format does to a rotated q or k in place before it is used or written."""


def _leave_head(arena: Array, pages: PageLayout, head: Float32, query: bool) -> None:
    pass


def score_keys(
    arena: Array, base: int, table: Int32, pages: PageLayout, packed: Float32, scores: Float32
) -> None:
    """scores [columns, padded keys] = packed queries [dim, columns] against the key pages.

    base: byte offset in a frame of the K page of this layer and head.
    """


def _score_plain(
    arena: Array, base: int, table: Int32, pages: PageLayout, packed: Float32, scores: Float32
) -> None:
    dim, columns = packed.shape
    frame_bytes = arena.shape[1] * arena.itemsize
    start, at_q, at_scores = address(arena) + base, address(packed), address(scores)
    for first in range(0, scores.shape[1], LANES):
        page, inside = first // pages.page_tokens, first % pages.page_tokens
        at_k = start + find_block(frame_bytes, table[page], pages, inside)
        out = at_scores + first * 4
        tile(arena, columns, at_k, at_q, out, dim, scores.shape[1] * 4, OVERWRITE)


def sum_values(
    arena: Array,
    base: int,
    table: Int32,
    pages: PageLayout,
    keys: int,
    weights: Float32,
    sums: Float32,
) -> None:
    """sums [dim / 16, columns, 16] = weights [keys, columns] against the value pages."""


def _sum_plain(
    arena: Array,
    base: int,
    table: Int32,
    pages: PageLayout,
    keys: int,
    weights: Float32,
    sums: Float32,
) -> None:
    parts, columns = sums.shape[0], sums.shape[1]
    frame_bytes = arena.shape[1] * arena.itemsize
    start, at_weights, at_sums = address(arena) + base, address(weights), address(sums)
    part_bytes = LANES * LANES * arena.itemsize
    for first in range(0, keys, LANES):
        page, inside = first // pages.page_tokens, first % pages.page_tokens
        at_v = start + find_block(frame_bytes, table[page], pages, inside)
        count = min(LANES, keys - first)
        mode = OVERWRITE if first == 0 else CONTINUE
        for part in range(parts):
            tile(
                arena,
                columns,
                at_v + part * part_bytes,
                at_weights + first * columns * 4,
                at_sums + part * columns * LANES * 4,
                count,
                LANES * 4,
                mode,
            )


def _choose(function: Variant, plain: Variant, codes: Variant) -> None:
    """By the dtype of the arena, when the kernel that calls `function` is compiled."""

    @specialized(function)
    def choose(arena: Any, *rest: Any) -> Variant:
        return codes if arena.dtype is types.uint8 else plain


_choose(turn_head, _leave_head, turn_codes)
_choose(write_head, _write_plain, write_codes)
_choose(score_keys, _score_plain, score_codes)
_choose(sum_values, _sum_plain, sum_codes)
