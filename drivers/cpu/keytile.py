"""Attention's arithmetic over pages of plain numbers, as LLVM vector code.

    scores[slot][key]  =  sum over d of     k[key][d] * q[d][slot]        16 lanes are keys
    sums[slot][dim]    =  sum over keys of  v[key][dim] * weights[slot][key]     lanes are dims

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

_PAIRED_SLOTS = 6
"""With so few slots, up to four blocks of keys are scored at once."""


def _sums(b: Any, count: int) -> list[Any]:
    """Variables of 16 zeros."""
    found = [cgutils.alloca_once(b, VF32) for _ in range(count)]
    for each in found:
        b.store(fill(VF32, 0.0), each)
    return found


def _place(b: Any, places: Any, index: Any) -> Any:
    """places[index]"""
    return load(b, I64, b.add(places, b.shl(index, ir.Constant(I64, 3))), 0, 8)


def _emit_scores(b: Any, dtype: Any, slots: int, blocks: int, args: Any) -> None:
    """`blocks` (1, 2 or 4) blocks of keys from `index` on."""
    dim, places, index, q, scores, stride = args
    size = ir.Constant(I64, LANES * dtype.bitwidth // 8)
    totals = [_sums(b, slots) for _ in range(blocks)]
    keys = [_place(b, places, shift(b, index, i)) for i in range(blocks)]
    ahead = [_place(b, places, shift(b, index, AHEAD + i)) for i in range(blocks)]
    at_q = cgutils.alloca_once(b, I64)
    b.store(q, at_q)
    with cgutils.for_range(b, dim, intp=I64) as loop:
        offset = b.mul(loop.index, size)
        here = b.load(at_q)
        for each in ahead:
            prefetch(b, b.add(each, offset), 2)
        lanes = [load_plain(b, b.add(each, offset), dtype) for each in keys]
        for slot in range(slots):
            scalar = splat(b, load(b, F32, here, 4 * slot))
            for block in range(blocks):
                total = totals[block][slot]
                b.store(fma(b, lanes[block], scalar, b.load(total)), total)
        b.store(shift(b, here, 4 * slots), at_q)
    at_out = b.add(scores, b.shl(index, ir.Constant(I64, 6)))
    for slot in range(slots):
        row = b.add(at_out, b.mul(stride, ir.Constant(I64, slot)))
        for block in range(blocks):
            store(b, b.load(totals[block][slot]), row, 64 * block)


def _emit_values(b: Any, dtype: Any, slots: int, parts: int, args: Any) -> None:
    """`parts` times 16 dims of all keys."""
    places, offset, keys, weights, stride, out, out_stride = args
    size = dtype.bitwidth // 8
    totals = [_sums(b, slots) for _ in range(parts)]
    part_bytes, key_bytes = LANES * LANES * size, ir.Constant(I64, LANES * size)
    rows = [b.add(weights, b.mul(stride, ir.Constant(I64, slot))) for slot in range(slots)]
    sixteen = ir.Constant(I64, LANES)
    blocks = b.sdiv(b.add(keys, ir.Constant(I64, LANES - 1)), sixteen)
    with cgutils.for_range(b, blocks, intp=I64) as outer:
        begin = b.add(_place(b, places, outer.index), offset)
        ahead = b.add(_place(b, places, shift(b, outer.index, AHEAD)), offset)
        first = b.mul(outer.index, sixteen)
        left = b.sub(keys, first)
        count = b.select(b.icmp_signed("<", left, sixteen), left, sixteen)
        with cgutils.for_range(b, count, intp=I64) as loop:
            where = b.mul(loop.index, key_bytes)
            at = b.add(begin, where)
            lanes = []
            for part in range(parts):
                prefetch(b, shift(b, b.add(ahead, where), part * part_bytes), 2)
                lanes.append(load_plain(b, shift(b, at, part * part_bytes), dtype))
            at_weight = b.shl(b.add(first, loop.index), ir.Constant(I64, 2))
            for slot, row in enumerate(rows):
                scalar = splat(b, load(b, F32, b.add(row, at_weight)))
                for part in range(parts):
                    total = totals[part][slot]
                    b.store(fma(b, lanes[part], scalar, b.load(total)), total)
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
    typing: Any, like: Any, slots: Any, blocks: Any, dim: Any, places: Any, index: Any, q: Any,
    scores: Any, stride: Any,
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
    weights: Any, stride: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Code for each number of slots and of parts; `like` has the dtype of the pages."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, rest = sig.args[0].dtype, args[3:]

        def widths(slots: int) -> None:
            switch(b, args[2], _parts_of(slots), lambda n: _emit_values(b, dtype, slots, n, rest))

        switch(b, args[1], range(1, MAX_SLOTS + 1), widths)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 9), codegen


_F16, _BF16, _F32 = (np.empty(1, dtype) for dtype in (np.int16, np.uint16, np.float32))
_NUMBERS = types.void(*[types.int64] * 10)


@entry_point(_NUMBERS)
def _tiles_f16(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int
) -> None:
    if values:
        _value_tiles(_F16, slots, n, a, b, c, d, e, f, g)
    else:
        _score_tiles(_F16, slots, n, a, b, c, d, e, f)


@entry_point(_NUMBERS)
def _tiles_bf16(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int
) -> None:
    if values:
        _value_tiles(_BF16, slots, n, a, b, c, d, e, f, g)
    else:
        _score_tiles(_BF16, slots, n, a, b, c, d, e, f)


@entry_point(_NUMBERS)
def _tiles_f32(
    values: int, slots: int, n: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int
) -> None:
    if values:
        _value_tiles(_F32, slots, n, a, b, c, d, e, f, g)
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
    e: Any, f: Any, g: Any,
) -> Any:  # fmt: skip
    """One of the tiles, by its address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_address(b, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), codegen


@bare
def score_blocks(
    tiles: int, slots: int, dim: int, places: Array, blocks: int, q: int, scores: int, stride: int
) -> None:
    """Scores of 1 to 16 slots with all keys.

    places int64 [2 * blocks + AHEAD]: addresses of the blocks of 16 keys, of those of values, and
    of what is read next; q: address of [dim][slots]; scores: address of the first slot's, those of
    the next are `stride` bytes on.
    """
    index = 0
    while index < blocks:
        n = 4 if slots <= _PAIRED_SLOTS else 1
        while index + n > blocks:
            n //= 2
        _call(tiles, 0, slots, n, dim, address(places), index, q, scores, stride, 0)
        index += n


@bare
def sum_blocks(
    tiles: int,
    element: int,
    slots: int,
    dim: int,
    places: Array,
    keys: int,
    weights: int,
    stride: int,
    out: int,
    out_stride: int,
) -> None:
    """Sums of the values of the first `keys` keys for 1 to 16 slots.

    element: bytes of a number; places: as for `score_blocks`; weights: address
    of the first slot's, those of the next are `stride` bytes on; out: address of float32
    [slots][dim], rows `out_stride` bytes apart.
    """
    part, first = 0, address(places) + (keys + LANES - 1) // LANES * 8
    while part < dim // LANES:
        n = 4
        while n > 1 and (n * slots > CHAINS or part + n > dim // LANES):
            n //= 2
        at = part * LANES * LANES * element
        to = out + part * LANES * 4
        _call(tiles, 1, slots, n, first, at, keys, weights, stride, to, out_stride)
        part += n


@intrinsic
def softmax(typing: Any, scores: Any, keys: Any) -> Any:
    """exp(scores - max) of the first `keys` float32 at an address, in place; returns their sum.

    What is behind them, up to a multiple of 16, becomes 0. 16 partial sums by index, then their
    halves onto each other.
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        at, keys = args
        most, total = cgutils.alloca_once(b, VF32), cgutils.alloca_once(b, VF32)
        lowest = fill(VF32, float("-inf"))
        b.store(lowest, most)
        b.store(fill(VF32, 0.0), total)
        vectors = b.lshr(b.add(keys, ir.Constant(I64, LANES - 1)), ir.Constant(I64, 4))
        count, order = splat(b, b.trunc(keys, I32)), ir.Constant(VI32, list(range(LANES)))

        def each(index: Any) -> tuple[Any, Any]:
            first = splat(b, b.trunc(b.shl(index, ir.Constant(I64, 4)), I32))
            known = b.icmp_signed("<", b.add(first, order), count)
            return b.add(at, b.shl(index, ir.Constant(I64, 6))), known

        with cgutils.for_range(b, vectors, intp=I64) as loop:
            where, known = each(loop.index)
            x = b.select(known, load(b, VF32, where), lowest)
            b.store(larger(b, x, b.load(most)), most)
        top = splat(b, fold(b, b.load(most), larger))
        with cgutils.for_range(b, vectors, intp=I64) as loop:
            where, known = each(loop.index)
            e = exp_neg(b, b.fsub(load(b, VF32, where), top))
            e = b.select(known, e, fill(VF32, 0.0))
            store(b, e, where)
            b.store(b.fadd(b.load(total), e), total)
        return fold(b, b.load(total), add_floats)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def divide(typing: Any, x: Any, number: Any, out: Any) -> Any:
    """16 float32 at an address by a number, to another address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, number, out = args
        store(b, b.fdiv(load(b, VF32, x), splat(b, number)), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), codegen
