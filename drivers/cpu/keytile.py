"""Attention's arithmetic over pages of plain numbers, as LLVM vector code.

    scores[slot][key]  =  sum over d of     k[key][d] * q[slot][d]           16 lanes are keys
    sums[slot][dim]    =  sum over keys of  v[key][dim] * weights[slot][key]     lanes are dims

Both are the same loop: 16 steps of a tile, which times a number of each slot go to the sums.

    tile      [16 steps][16 lanes]           16 dims of a block of keys, or of a block of values
    x         [slots][16 steps]              queries; weights
    sums      [tiles][slots][16 lanes]

So queries, scores and weights lie 16 at a time, slots side by side: what a loop reads is one run of
memory, however many keys there are, and no two slots contend for a place in the caches.

Each sum is one chain of fused multiply-adds, over d from 0 on and over keys from 0 on, so it does
not depend on how many slots (queries and heads) are computed together. How many chains run side by
side is chosen so that they stay in registers and hide the latency of one another.

Keys and values are found by a list of addresses, one for each 16 tokens: of all keys, then of all
values, in the order in which they are read. Pages lie anywhere, so those that come next are asked
for ahead; behind the values stand the places of what is computed next.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import Array, bare, cgutils, entry_point, intrinsic
from tokenix.drivers.cpu.lanes import (
    F32,
    I32,
    I64,
    LANES,
    VF32,
    VI32,
    add_floats,
    call_address,
    exp_neg,
    fill,
    fma,
    fold,
    larger,
    load,
    prefetch,
    shift,
    splat,
    store,
    switch,
)
from tokenix.drivers.cpu.tile import address, load_plain

MAX_SLOTS = 16
"""Slots that are computed together at most."""
CHAINS = 24
"""Of the value sums: 24 registers, and some for what goes in."""

AHEAD = 12
"""Blocks of 16 tokens from what is computed to what is asked for: some times the latency of memory,
since pages lie anywhere and no processor guesses the next one."""

ROW = 4 * LANES
"""Bytes of 16 floats."""

_PAIRED_SLOTS = 6
"""With so few slots, up to four blocks of keys are scored at once."""


def _sums(b: Any, count: int) -> list[Any]:
    """Variables of 16 floats."""
    return [cgutils.alloca_once(b, VF32) for _ in range(count)]


def _clear(b: Any, totals: list[list[Any]]) -> None:
    for each in totals:
        for total in each:
            b.store(fill(VF32, 0.0), total)


def _place(b: Any, places: Any, index: Any) -> Any:
    """places[index]"""
    return load(b, I64, b.add(places, b.shl(index, ir.Constant(I64, 3))), 0, 8)


def _emit_steps(
    b: Any, dtype: Any, totals: list[list[Any]], tiles: list[Any], ahead: list[Any], x: Any,
    steps: Any,
) -> None:  # fmt: skip
    """totals[tile][slot] += over k: tile[k][lane] * x[slot][k]; what is ahead is asked for.

    Written out no further: a processor guesses what a load reads next if it always goes on by the
    same small step, and a cold page took 1.15 times as long with four steps in a round.
    """
    size = ir.Constant(I64, LANES * dtype.bitwidth // 8)
    with cgutils.for_range(b, steps, intp=I64) as loop:
        offset = b.mul(loop.index, size)
        here = b.add(x, b.shl(loop.index, ir.Constant(I64, 2)))
        for each in ahead:
            prefetch(b, b.add(each, offset), 2)
        lanes = [load_plain(b, b.add(each, offset), dtype) for each in tiles]
        for slot in range(len(totals[0])):
            scalar = splat(b, load(b, F32, here, ROW * slot))
            for tile, total in zip(lanes, totals, strict=True):
                b.store(fma(b, tile, scalar, b.load(total[slot])), total[slot])


def _emit_scores(b: Any, dtype: Any, slots: int, blocks: int, args: Any) -> None:
    """`blocks` (1, 2 or 4) blocks of keys at once, from `first` until fewer are left of `last`."""
    dim, places, first, last, q, scores = args
    sixteen, part_bytes = ir.Constant(I64, LANES), LANES * LANES * dtype.bitwidth // 8
    totals = [_sums(b, slots) for _ in range(blocks)]
    rounds = b.udiv(b.sub(last, first), ir.Constant(I64, blocks))
    with cgutils.for_range(b, rounds, intp=I64) as outer:
        index = b.add(first, b.mul(outer.index, ir.Constant(I64, blocks)))
        keys = [_place(b, places, shift(b, index, i)) for i in range(blocks)]
        ahead = [_place(b, places, shift(b, index, AHEAD + i)) for i in range(blocks)]
        _clear(b, totals)
        with cgutils.for_range(b, b.udiv(dim, sixteen), intp=I64) as loop:
            offset = b.mul(loop.index, ir.Constant(I64, part_bytes))
            tiles = [b.add(each, offset) for each in keys]
            nexts = [b.add(each, offset) for each in ahead]
            here = b.add(q, b.mul(loop.index, ir.Constant(I64, ROW * slots)))
            _emit_steps(b, dtype, totals, tiles, nexts, here, sixteen)
        at_out = b.add(scores, b.mul(index, ir.Constant(I64, ROW * slots)))
        for block in range(blocks):
            for slot in range(slots):
                store(b, b.load(totals[block][slot]), at_out, ROW * (block * slots + slot))


def _emit_values(b: Any, dtype: Any, slots: int, parts: int, args: Any) -> None:
    """`parts` times 16 dims of all keys."""
    places, offset, keys, weights, out, out_stride = args
    sixteen, part_bytes = ir.Constant(I64, LANES), LANES * LANES * dtype.bitwidth // 8
    totals = [_sums(b, slots) for _ in range(parts)]
    _clear(b, totals)
    blocks = b.udiv(b.add(keys, ir.Constant(I64, LANES - 1)), sixteen)
    with cgutils.for_range(b, blocks, intp=I64) as outer:
        begin = b.add(_place(b, places, outer.index), offset)
        ahead = b.add(_place(b, places, shift(b, outer.index, AHEAD)), offset)
        tiles, nexts = (
            [shift(b, start, part * part_bytes) for part in range(parts)]
            for start in (begin, ahead)
        )
        here = b.add(weights, b.mul(outer.index, ir.Constant(I64, ROW * slots)))
        left = b.sub(keys, b.mul(outer.index, sixteen))
        steps = b.select(b.icmp_unsigned("<", left, sixteen), left, sixteen)
        _emit_steps(b, dtype, totals, tiles, nexts, here, steps)
    for slot in range(slots):
        row = b.add(out, b.mul(out_stride, ir.Constant(I64, slot)))
        for part in range(parts):
            store(b, b.load(totals[part][slot]), row, 64 * part)


def _parts_of(slots: int) -> tuple[int, ...]:
    """How many times 16 dims are summed at once, the most first."""
    return tuple(parts for parts in (4, 2, 1) if parts * slots <= CHAINS or parts == 1)


def _choices(slots: int) -> tuple[int, ...]:
    """How many blocks of keys are scored at once."""
    return (4, 2, 1) if slots <= _PAIRED_SLOTS else (1,)


@intrinsic
def _score_tiles(
    typing: Any, like: Any, slots: Any, blocks: Any, dim: Any, places: Any, first: Any, last: Any,
    q: Any, scores: Any,
) -> Any:  # fmt: skip
    """Code for each number of slots and of blocks; `like` has the dtype of the pages."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, rest = sig.args[0].dtype, args[3:]

        def widths(slots: int) -> None:
            switch(b, args[2], _choices(slots), lambda n: _emit_scores(b, dtype, slots, n, rest))

        switch(b, args[1], range(1, MAX_SLOTS + 1), widths)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 8), codegen


@intrinsic
def _value_tiles(
    typing: Any, like: Any, slots: Any, parts: Any, places: Any, offset: Any, keys: Any,
    weights: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Code for each number of slots and of parts; `like` has the dtype of the pages."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, rest = sig.args[0].dtype, args[3:]

        def widths(slots: int) -> None:
            switch(b, args[2], _parts_of(slots), lambda n: _emit_values(b, dtype, slots, n, rest))

        switch(b, args[1], range(1, MAX_SLOTS + 1), widths)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 8), codegen


_F16, _BF16, _F32 = (np.empty(1, dtype) for dtype in (np.int16, np.uint16, np.float32))
_NUMBERS = types.void(*[types.int64] * 9)


@entry_point(_NUMBERS)
def _tiles_f16(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    if values:
        _value_tiles(_F16, slots, n, a, b, c, d, e, f)
    else:
        _score_tiles(_F16, slots, n, a, b, c, d, e, f)


@entry_point(_NUMBERS)
def _tiles_bf16(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    if values:
        _value_tiles(_BF16, slots, n, a, b, c, d, e, f)
    else:
        _score_tiles(_BF16, slots, n, a, b, c, d, e, f)


@entry_point(_NUMBERS)
def _tiles_f32(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    if values:
        _value_tiles(_F32, slots, n, a, b, c, d, e, f)
    else:
        _score_tiles(_F32, slots, n, a, b, c, d, e, f)


def tiles_of(stored: np.dtype[Any]) -> int:
    """Address of the tiles for pages of a dtype (as in `tile`); 0 for pages of codes."""
    found: dict[np.dtype[Any], Callable[[], int]] = {
        np.dtype(np.int16): _tiles_f16,
        np.dtype(np.uint16): _tiles_bf16,
        np.dtype(np.float32): _tiles_f32,
    }
    return found[stored]() if stored in found else 0


@intrinsic
def _call(
    typing: Any, function: Any, values: Any, slots: Any, n: Any, a: Any, b: Any, c: Any, d: Any,
    e: Any, f: Any,
) -> Any:  # fmt: skip
    """One of the tiles, by its address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_address(b, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), codegen


@bare
def score_blocks(
    tiles: int, slots: int, dim: int, places: Array, blocks: int, q: int, scores: int
) -> None:
    """Scores of 1 to 16 slots with all keys.

    places int64 [2 * blocks + AHEAD]: addresses of the blocks of 16 keys, of those of values, and
    of what is read next; q: address of float32 [dim / 16][slots][16 dims]; scores: likewise,
    [blocks][slots][16 keys].
    """
    first, n = 0, 4 if slots <= _PAIRED_SLOTS else 1
    while first < blocks:
        if first + n <= blocks:
            _call(tiles, 0, slots, n, dim, address(places), first, blocks, q, scores)
            first += (blocks - first) // n * n
        n //= 2


@bare
def sum_blocks(
    tiles: int,
    element: int,
    slots: int,
    dim: int,
    places: Array,
    keys: int,
    weights: int,
    out: int,
    out_stride: int,
) -> None:
    """Sums of the values of the first `keys` keys for 1 to 16 slots.

    element: bytes of a number; places: as for `score_blocks`; weights: address of float32
    [blocks][slots][16 keys]; out: address of float32 [slots][dim], rows `out_stride` bytes apart.
    """
    part, first = 0, address(places) + (keys + LANES - 1) // LANES * 8
    while part < dim // LANES:
        n = 4
        while n > 1 and (n * slots > CHAINS or part + n > dim // LANES):
            n //= 2
        at = part * LANES * LANES * element
        to = out + part * LANES * 4
        _call(tiles, 1, slots, n, first, at, keys, weights, to, out_stride)
        part += n


@intrinsic
def softmax(typing: Any, scores: Any, stride: Any, keys: Any, blocks: Any) -> Any:
    """exp(scores - max) of the first `keys` (at least 1) float32, in place; returns their sum.

    They lie 16 at a time, `stride` bytes from the first of some to the first of the next, and
    become 0 behind the last key until the end of `blocks` times 16. 16 partial sums by index, then
    their halves onto each other.
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        start, stride, keys, blocks = args
        most, total = cgutils.alloca_once(b, VF32), cgutils.alloca_once(b, VF32)
        lowest, one = fill(VF32, float("-inf")), ir.Constant(I64, 1)
        b.store(lowest, most)
        b.store(fill(VF32, 0.0), total)
        last = b.lshr(b.sub(keys, one), ir.Constant(I64, 4))
        count = b.sub(keys, b.shl(last, ir.Constant(I64, 4)))
        known = b.icmp_signed(
            "<", ir.Constant(VI32, list(range(LANES))), splat(b, b.trunc(count, I32))
        )
        at_last = b.add(start, b.mul(last, stride))

        def weigh(at: Any, known: Any) -> None:
            e = exp_neg(b, b.fsub(load(b, VF32, at), top))
            e = e if known is None else b.select(known, e, fill(VF32, 0.0))
            store(b, e, at)
            b.store(b.fadd(b.load(total), e), total)

        with cgutils.for_range(b, last, intp=I64) as loop:
            x = load(b, VF32, b.add(start, b.mul(loop.index, stride)))
            b.store(larger(b, x, b.load(most)), most)
        x = b.select(known, load(b, VF32, at_last), lowest)
        top = splat(b, fold(b, larger(b, x, b.load(most)), larger))
        with cgutils.for_range(b, last, intp=I64) as loop:
            weigh(b.add(start, b.mul(loop.index, stride)), None)
        weigh(at_last, known)
        with cgutils.for_range(b, b.sub(b.sub(blocks, last), one), intp=I64) as loop:
            behind = b.add(loop.index, b.add(last, one))
            store(b, fill(VF32, 0.0), b.add(start, b.mul(behind, stride)))
        return fold(b, b.load(total), add_floats)

    return types.float32(*[types.int64] * 4), codegen


@intrinsic
def divide(typing: Any, x: Any, number: Any, out: Any) -> Any:
    """16 float32 at an address by a number, to another address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, number, out = args
        store(b, b.fdiv(load(b, VF32, x), splat(b, number)), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), codegen
