"""Attention's arithmetic over pages of keys and values, as LLVM vector code.

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
    I16,
    I32,
    I64,
    LANES,
    VF32,
    call_address,
    fill,
    fma,
    load,
    prefetch,
    shift,
    splat,
    store,
    switch,
)
from tokenix.drivers.cpu.numbers import PLAIN, STEP, address, load_lanes, load_plain
from tokenix.drivers.kvkind import KvKind

MAX_SLOTS = 16
"""Slots that are computed together at most."""
CHAINS = 24
"""Of the value sums: 24 registers, and some for what goes in."""

AHEAD = 12
"""Blocks of 16 tokens from what is computed to what is asked for: some times the latency of memory,
since pages lie anywhere and no processor guesses the next one."""

ROW = 4 * LANES
"""Bytes of 16 floats."""

_AS_INT16, _AS_UINT16, _AS_FLOAT32, _AS_INT8, _AS_UINT8, _AS_UINT32, _AS_UINT64 = (
    np.empty(1, kind) for kind in ("i2", "u2", "f4", "i1", "u1", "u4", "u8")
)
"""Arrays whose dtype tells what pages hold, as in `tile`."""

_PAIRED_SLOTS = 6
"""With so few slots, up to four blocks of keys are scored at once."""


def _sums(b: Any, count: int) -> list[Any]:
    """Variables of 16 floats."""
    return [cgutils.alloca_once(b, VF32) for _ in range(count)]


def _clear(b: Any, totals: list[list[Any]]) -> None:
    for each in totals:
        for total in each:
            b.store(fill(VF32, 0.0), total)


def _part_bytes(dtype: Any) -> int:
    """Of a tile: 16 steps of 16 lanes."""
    step_bytes, at_once = STEP[dtype]
    return step_bytes * LANES // at_once


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
    step_bytes, at_once = STEP[dtype]
    with cgutils.for_range(b, b.udiv(steps, ir.Constant(I64, at_once)), intp=I64) as loop:
        offset = b.mul(loop.index, ir.Constant(I64, step_bytes))
        here = b.add(x, b.mul(loop.index, ir.Constant(I64, 4 * at_once)))
        for each in ahead:
            prefetch(b, b.add(each, offset), 2)
        lanes = [load_lanes(b, b.add(each, offset), dtype) for each in tiles]
        for k in range(at_once):
            for slot in range(len(totals[0])):
                scalar = splat(b, load(b, F32, here, ROW * slot + 4 * k))
                for tile, total in zip(lanes, totals, strict=True):
                    b.store(fma(b, tile[k], scalar, b.load(total[slot])), total[slot])


def _emit_scores(b: Any, dtype: Any, slots: int, blocks: int, args: Any) -> None:
    """`blocks` (1, 2 or 4) blocks of keys at once, from `first` until fewer are left of `last`."""
    parts, places, first, last, q, scores, groups, *_ = args
    totals = [_sums(b, slots) for _ in range(blocks)]
    rounds = b.udiv(b.sub(last, first), ir.Constant(I64, blocks))
    each_parts = b.udiv(parts, groups)
    with cgutils.for_range(b, rounds, intp=I64) as outer:
        index = b.add(first, b.mul(outer.index, ir.Constant(I64, blocks)))
        keys = [_place(b, places, shift(b, index, i)) for i in range(blocks)]
        ahead = [_place(b, places, shift(b, index, AHEAD + i)) for i in range(blocks)]
        at_out = b.add(scores, b.mul(index, ir.Constant(I64, ROW * slots)))
        with cgutils.for_range(b, groups, intp=I64) as middle:
            _clear(b, totals)
            begin = b.mul(middle.index, each_parts)
            with cgutils.for_range(b, each_parts, intp=I64) as loop:
                part = b.add(begin, loop.index)
                offset = b.mul(part, ir.Constant(I64, _part_bytes(dtype)))
                tiles = [b.add(each, offset) for each in keys]
                nexts = [b.add(each, offset) for each in ahead]
                here = b.add(q, b.mul(part, ir.Constant(I64, ROW * slots)))
                _emit_steps(b, dtype, totals, tiles, nexts, here, ir.Constant(I64, LANES))
            if dtype in PLAIN:
                for block, slot, out in _rows_of(blocks, slots):
                    store(b, b.load(totals[block][slot]), at_out, out)
            else:
                _scale_scores(b, dtype, totals, keys, at_out, middle.index, args)


def _rows_of(blocks: int, slots: int) -> list[tuple[int, int, int]]:
    """(block, slot, bytes from the first to this one's 16 numbers)"""
    pairs = [(block, slot) for block in range(blocks) for slot in range(slots)]
    return [(*pair, ROW * i) for i, pair in enumerate(pairs)]


def _scale_scores(
    b: Any, dtype: Any, totals: list[list[Any]], keys: list[Any], at_out: Any, group: Any, args: Any
) -> None:
    """scores (of the first group: 0) += sums over codes * scales (+ sums over queries * lows)"""
    *_, groups, scales_at, shifts = args
    slots = len(totals[0])
    begun = b.icmp_unsigned(">", group, ir.Constant(I64, 0))
    row = ir.Constant(I64, 2 * LANES)
    at_scale = b.add(scales_at, b.mul(group, row))
    at_low = b.add(at_scale, b.mul(groups, row))
    at_shift = b.add(shifts, b.mul(group, ir.Constant(I64, 4 * slots)))
    for block, slot, out in _rows_of(len(totals), slots):
        before = b.select(begun, load(b, VF32, at_out, out), fill(VF32, 0.0))
        scale = load_plain(b, b.add(keys[block], at_scale), types.uint16)
        found = fma(b, b.load(totals[block][slot]), scale, before)
        if dtype is types.uint32:
            low = load_plain(b, b.add(keys[block], at_low), types.uint16)
            found = fma(b, splat(b, load(b, F32, at_shift, 4 * slot)), low, found)
        store(b, found, at_out, out)


def _emit_values(b: Any, dtype: Any, slots: int, parts: int, args: Any) -> None:
    """`parts` times 16 dims of all keys, from part `first` on."""
    first, places, keys, weights, out, out_stride = args
    sixteen, bytes_each = ir.Constant(I64, LANES), _part_bytes(dtype)
    offset = b.mul(first, ir.Constant(I64, bytes_each))
    totals = [_sums(b, slots) for _ in range(parts)]
    _clear(b, totals)
    blocks = b.udiv(b.add(keys, ir.Constant(I64, LANES - 1)), sixteen)
    with cgutils.for_range(b, blocks, intp=I64) as outer:
        begin = b.add(_place(b, places, outer.index), offset)
        ahead = b.add(_place(b, places, shift(b, outer.index, AHEAD)), offset)
        tiles, nexts = (
            [shift(b, start, part * bytes_each) for part in range(parts)]
            for start in (begin, ahead)
        )
        here = b.add(weights, b.mul(outer.index, ir.Constant(I64, ROW * slots)))
        left = b.sub(keys, b.mul(outer.index, sixteen))
        steps = b.select(b.icmp_unsigned("<", left, sixteen), left, sixteen)
        _emit_steps(b, dtype, totals, tiles, nexts, here, steps)
    at_out = b.add(out, b.mul(first, ir.Constant(I64, ROW)))
    for slot in range(slots):
        row = b.add(at_out, b.mul(out_stride, ir.Constant(I64, slot)))
        for part in range(parts):
            store(b, b.load(totals[part][slot]), row, ROW * part)


def _parts_of(slots: int) -> tuple[int, ...]:
    """How many times 16 dims are summed at once, the most first."""
    return tuple(parts for parts in (4, 2, 1) if parts * slots <= CHAINS or parts == 1)


def _choices(slots: int) -> tuple[int, ...]:
    """How many blocks of keys are scored at once."""
    return (4, 2, 1) if slots <= _PAIRED_SLOTS else (1,)


@intrinsic
def _score_tiles(typing: Any, like: Any, slots: Any, blocks: Any, rest: Any) -> Any:
    """Code for each number of slots and of blocks; `like` has the dtype of the pages."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, rest = sig.args[0].dtype, cgutils.unpack_tuple(b, args[3])

        def widths(slots: int) -> None:
            switch(b, args[2], _choices(slots), lambda n: _emit_scores(b, dtype, slots, n, rest))

        switch(b, args[1], range(1, MAX_SLOTS + 1), widths)
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64, rest), codegen


@intrinsic
def _value_tiles(typing: Any, like: Any, slots: Any, parts: Any, rest: Any) -> Any:
    """Code for each number of slots and of parts; `like` has the dtype of the pages."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, rest = sig.args[0].dtype, cgutils.unpack_tuple(b, args[3])

        def widths(slots: int) -> None:
            switch(b, args[2], _parts_of(slots), lambda n: _emit_values(b, dtype, slots, n, rest))

        switch(b, args[1], range(1, MAX_SLOTS + 1), widths)
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64, rest), codegen


_NUMBERS = types.void(*[types.int64] * 12)


@entry_point(_NUMBERS)
def _tiles_f16(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int,
    i: int,
) -> None:  # fmt: skip
    if values:
        _value_tiles(_AS_INT16, slots, n, (a, b, c, d, e, f))
    else:
        _score_tiles(_AS_INT16, slots, n, (a, b, c, d, e, f, g, h, i))


@entry_point(_NUMBERS)
def _tiles_bf16(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int,
    i: int,
) -> None:  # fmt: skip
    if values:
        _value_tiles(_AS_UINT16, slots, n, (a, b, c, d, e, f))
    else:
        _score_tiles(_AS_UINT16, slots, n, (a, b, c, d, e, f, g, h, i))


@entry_point(_NUMBERS)
def _tiles_f32(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int,
    i: int,
) -> None:  # fmt: skip
    if values:
        _value_tiles(_AS_FLOAT32, slots, n, (a, b, c, d, e, f))
    else:
        _score_tiles(_AS_FLOAT32, slots, n, (a, b, c, d, e, f, g, h, i))


@entry_point(_NUMBERS)
def _tiles_int8(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int,
    i: int,
) -> None:  # fmt: skip
    if values:
        _value_tiles(_AS_INT8, slots, n, (a, b, c, d, e, f))
    else:
        _score_tiles(_AS_INT8, slots, n, (a, b, c, d, e, f, g, h, i))


@entry_point(_NUMBERS)
def _tiles_fp8(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int,
    i: int,
) -> None:  # fmt: skip
    if values:
        _value_tiles(_AS_UINT8, slots, n, (a, b, c, d, e, f))
    else:
        _score_tiles(_AS_UINT8, slots, n, (a, b, c, d, e, f, g, h, i))


@entry_point(_NUMBERS)
def _tiles_int4(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int,
    i: int,
) -> None:  # fmt: skip
    if values:
        _value_tiles(_AS_UINT64, slots, n, (a, b, c, d, e, f))
    else:
        _score_tiles(_AS_UINT32, slots, n, (a, b, c, d, e, f, g, h, i))


def tiles_of(kind: KvKind) -> int:
    """Address of the tiles for pages of a format."""
    found: dict[KvKind, Callable[[], int]] = {
        "f16": _tiles_f16,
        "bf16": _tiles_bf16,
        "f32": _tiles_f32,
        "int8": _tiles_int8,
        "fp8": _tiles_fp8,
        "int4": _tiles_int4,
    }
    return found[kind]()


@intrinsic
def _call(typing: Any, function: Any, values: Any, slots: Any, n: Any, rest: Any) -> Any:
    """One of the tiles, by its address, with as many of its numbers as it needs."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        numbers = [*args[1:4], *cgutils.unpack_tuple(b, args[4])]
        numbers += [ir.Constant(I64, 0)] * (len(_NUMBERS.args) - len(numbers))
        call_address(b, args[0], numbers)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, rest), codegen


@bare
def score_blocks(
    tiles: int,
    slots: int,
    parts: int,
    places: Array,
    blocks: int,
    q: int,
    scores: int,
    groups: int,
    scales_at: int,
    shifts: int,
) -> None:
    """Scores of 1 to 16 slots with all keys.

    parts: of 16 dims; places int64 [2 * blocks + AHEAD]: addresses of the blocks of 16 keys, of
    those of values, and of what is read next; q: address of float32 [parts][slots][16 dims];
    scores: likewise, [blocks][slots][16 keys]. Pages of codes: groups of parts that have a scale;
    where scales are in a block; address of float32 [groups][slots], what lows are multiplied with.
    Others have one group, and nothing else.
    """
    first, n = 0, 4 if slots <= _PAIRED_SLOTS else 1
    while first < blocks:
        if first + n <= blocks:
            rest = (parts, address(places), first, blocks, q, scores, groups, scales_at, shifts)
            _call(tiles, 0, slots, n, rest)
            first += (blocks - first) // n * n
        n //= 2


@bare
def sum_blocks(
    tiles: int,
    slots: int,
    part: int,
    parts: int,
    places: Array,
    keys: int,
    weights: int,
    out: int,
    out_stride: int,
) -> None:
    """Sums of the values of the first `keys` keys for 1 to 16 slots: `parts` times 16 dims, from
    part `part` on.

    places: as for `score_blocks`; weights: address of float32 [blocks][slots][16 keys]; out:
    address of float32 [slots][dim], rows `out_stride` bytes apart.
    """
    values, end = address(places) + (keys + LANES - 1) // LANES * 8, part + parts
    while part < end:
        n = 4
        while n > 1 and (n * slots > CHAINS or part + n > end):
            n //= 2
        _call(tiles, 1, slots, n, (part, values, keys, weights, out, out_stride))
        part += n


@intrinsic
def scale_rows(typing: Any, x: Any, scales: Any, out: Any, rows: Any) -> Any:
    """float32 [rows][16] at an address times 16 bfloat16, to another address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, scales, out, rows = args
        scale = load_plain(b, scales, types.uint16)
        with cgutils.for_range(b, rows, intp=I64) as loop:
            offset = b.mul(loop.index, ir.Constant(I64, ROW))
            store(b, b.fmul(load(b, VF32, b.add(x, offset)), scale), b.add(out, offset))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def add_dots(typing: Any, x: Any, y: Any, totals: Any, rows: Any, count: Any) -> Any:
    """totals[row] += over k < count in order: x[row][k] * y[k]. x: address of float32 [rows][16],
    y: of bfloat16, totals: of float32."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, y, totals, rows, count = args
        kind = ir.FunctionType(F32, [F32] * 3)
        chained = cgutils.get_or_insert_function(b.module, kind, "llvm.fma.f32")
        total = cgutils.alloca_once(b, F32)
        two, sixteen = ir.Constant(I64, 2), ir.Constant(I32, 16)
        with cgutils.for_range(b, rows, intp=I64) as outer:
            at_total = b.add(totals, b.shl(outer.index, two))
            row = b.add(x, b.mul(outer.index, ir.Constant(I64, ROW)))
            b.store(load(b, F32, at_total), total)
            with cgutils.for_range(b, count, intp=I64) as loop:
                bits = load(b, I16, b.add(y, b.shl(loop.index, ir.Constant(I64, 1))), 0, 2)
                number = b.bitcast(b.shl(b.zext(bits, I32), sixteen), F32)
                weight = load(b, F32, b.add(row, b.shl(loop.index, two)))
                b.store(b.call(chained, [weight, number, b.load(total)]), total)
            store(b, b.load(total), at_total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen
