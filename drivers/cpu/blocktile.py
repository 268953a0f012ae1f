"""The arithmetic primitive of weights in blocks: a tile of 16 outputs for T token rows.

    sum[t][row]  =  sum over blocks of  scale[row] * (x scale[t] * dot)  +  low[row] * x total[t]
    dot          =  sum over 32 k of  code[row][k] * x code[t][k]             an exact whole number
                    SIXES: of the sums over 16 k each, times its size

Token rows are quantized the same way, to signed codes of 8 bits for each 32 numbers (`blockrows`):

    codes     int8 [tiles][blocks][T][32]
    factors   float32 [tiles][blocks][T][5]: scale; scale * sum of codes; then as int32 where dots
              begin whose codes are too large: BYTES -128 * sum; SIXES -32 * sum of each half

A dot of SIXES is at most 2 * 16 * 32 * 127 * 128, less than 2**24: float32 holds it exactly.

Each of the T x 16 sums is one chain of fused multiply-adds in the order of blocks, so it depends on
its own row of weights and its own token only. Dots are exact, so how they are computed is free:

    vpdpbusd  (AVX512-VNNI)    64 products of bytes, added to 16 sums of int32, in one instruction:
                               a register of weights is 16 rows x 4 k, the token's 4 codes are
                               broadcast to all rows
    elsewhere                  portable code, the same bits

LLVM never makes vpdpbusd of ordinary loops, hence the intrinsic. `tests/cpu/test_blocks.py`
compares both with numpy.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.blockcodes import Block, read_block
from tokenix.drivers.cpu.blocks import (
    ALIGNMENT,
    BLOCK,
    BLOCK_BYTES,
    BYTES,
    FACTORS,
    FIVES,
    FORMS,
    NIBBLES,
    QUADS,
    SIXES,
)
from tokenix.drivers.cpu.jit import bare, cgutils, entry_point, has_vnni, intrinsic
from tokenix.drivers.cpu.lanes import (
    F32,
    I8,
    I32,
    I64,
    VF32,
    VI32,
    call_address,
    fetch_lines,
    fill,
    fma,
    load,
    shift,
    splat,
    store,
    switch,
)
from tokenix.drivers.cpu.workspace import MAX_COLUMNS

_BEGINS = {NIBBLES: (), FIVES: (), SIXES: (3, 4), BYTES: (2,)}
"""Which factors are where dots begin."""
_NOTHING = ir.Constant(I64, 0)
_BYTES64 = ir.VectorType(I8, 64)


def dot_codes(b: Any, vnni: bool, total: Any, weights: Any, four: Any) -> Any:
    """total + dot of 4 unsigned codes of each row with the token's 4 signed ones, an int32."""
    if vnni:
        kind = ir.FunctionType(VI32, [VI32, _BYTES64, _BYTES64])
        name = "llvm.x86.avx512.vpdpbusd.512"
        function = cgutils.get_or_insert_function(b.module, kind, name)
        wide = b.bitcast(splat(b, four), _BYTES64)
        return b.call(function, [total, b.bitcast(weights, _BYTES64), wide])
    for byte in range(4):
        code = b.and_(b.lshr(weights, fill(VI32, 8 * byte)), fill(VI32, 255))
        upper = b.shl(four, ir.Constant(I32, 24 - 8 * byte))
        signed = splat(b, b.ashr(upper, ir.Constant(I32, 24)))
        total = b.add(total, b.mul(code, signed))
    return total


def _if(b: Any, relation: str, x: Any, y: Any, number: Any) -> Any:
    """The number where the relation holds, else 0."""
    return b.select(b.icmp_signed(relation, x, y), number, _NOTHING)


def _emit_dot(b: Any, form: int, vnni: bool, block: Block, at_code: Any, begins: list[Any]) -> Any:
    """Of the block's rows with a token: int32. begins: where the dot of each part begins, a scalar
    or None."""
    parts = []
    for part, begin in enumerate(begins):
        dot = fill(VI32, 0) if begin is None else splat(b, begin)
        each = QUADS // len(begins)
        for quad in range(part * each, (part + 1) * each):
            dot = dot_codes(b, vnni, dot, block.codes[quad], load(b, I32, at_code, 4 * quad))
        parts.append(b.mul(dot, block.sizes[part]) if block.sizes else dot)
    return parts[0] if len(parts) == 1 else b.add(*parts)


def _emit_block(b: Any, form: int, vnni: bool, sums: list[Any], places: list[Any]) -> None:
    """A block of the group, for each of the tile's rows."""
    at_w, at_code, at_factor = places
    block = read_block(b, form, at_w)
    for t, total in enumerate(sums):

        def factor(kind: Any, which: int, t: int = t) -> Any:
            return load(b, kind, at_factor, 4 * (FACTORS * t + which))

        begins = [factor(I32, which) for which in _BEGINS[form]] or [None]
        dot = _emit_dot(b, form, vnni, block, shift(b, at_code, BLOCK * t), begins)
        own = b.fmul(block.scale, splat(b, factor(F32, 0)))
        value = fma(b, b.sitofp(dot, VF32), own, b.load(total))
        if block.low is not None:
            value = fma(b, block.low, splat(b, factor(F32, 1)), value)
        b.store(value, total)


def _emit_tile(
    b: Any, form: int, vnni: bool, sums: list[Any], w: Any, blocks: Any, at: Any
) -> None:
    """The sums of a tile. at: where its codes, its factors, and the two things to ask for lie, all
    moved on; then how many lines of them with each block."""
    at_code, at_factor, at_ahead, at_more, lines, more_lines = at
    at_w = cgutils.alloca_once(b, I64)
    b.store(w, at_w)
    for total in sums:
        b.store(fill(VF32, 0.0), total)
    with cgutils.for_range(b, blocks, intp=I64):
        fetch_lines(b, at_ahead, lines)
        fetch_lines(b, at_more, more_lines)
        places = (at_w, at_code, at_factor)
        _emit_block(b, form, vnni, sums, [b.load(place) for place in places])
        steps = (BLOCK_BYTES[form], len(sums) * BLOCK, 4 * FACTORS * len(sums))
        for place, step in zip(places, steps, strict=True):
            b.store(shift(b, b.load(place), step), place)


def _emit(b: Any, form: int, columns: int, vnni: bool, args: Any) -> None:
    """All tiles of all groups in one loop: called for each of them, the processor would end one
    before it begins the next, a twentieth part of a tile of 18 blocks."""
    w, codes, factors, out, groups, tiles, blocks, stride, adding, lines, more, more_lines = args
    sums = [cgutils.alloca_once(b, VF32) for _ in range(columns)]
    at_code, at_factor, at_out, at_ahead, at_part = (cgutils.alloca_once(b, I64) for _ in range(5))
    at_group, at_more = (cgutils.alloca_once_value(b, each) for each in (w, more))
    size = b.mul(blocks, ir.Constant(I64, BLOCK_BYTES[form]))
    size = b.and_(shift(b, size, ALIGNMENT - 1), ir.Constant(I64, -ALIGNMENT))
    with cgutils.for_range(b, groups, intp=I64) as loop:
        group = b.load(at_group)
        following = b.add(group, size)
        beyond = b.add(following, size)
        begins = (codes, factors, b.add(out, b.shl(loop.index, ir.Constant(I64, 6))), following)
        for place, begin in zip((at_code, at_factor, at_out, at_ahead), begins, strict=True):
            b.store(begin, place)
        with cgutils.for_range(b, tiles, intp=I64):
            own_lines = _if(b, "<", b.load(at_ahead), beyond, lines)
            b.store(_NOTHING, at_part)
            with b.if_then(b.icmp_signed(">", more_lines, _NOTHING)):
                b.store(load(b, I64, b.load(at_more), 0, 8), at_part)
                b.store(shift(b, b.load(at_more), 8), at_more)
            part_lines = _if(b, "!=", b.load(at_part), _NOTHING, more_lines)
            at = (at_code, at_factor, at_ahead, at_part, own_lines, part_lines)
            _emit_tile(b, form, vnni, sums, group, blocks, at)
            with b.if_then(b.icmp_signed("!=", adding, _NOTHING)):
                for t, total in enumerate(sums):
                    row = b.add(b.load(at_out), b.mul(stride, ir.Constant(I64, t)))
                    b.store(b.fadd(load(b, VF32, row), b.load(total)), total)
            for total in sums:
                store(b, b.load(total), b.load(at_out))
                b.store(b.add(b.load(at_out), stride), at_out)
        b.store(following, at_group)


@intrinsic
def _any_tiles(
    typing: Any, form: Any, columns: Any, w: Any, codes: Any, factors: Any, out: Any, groups: Any,
    tiles: Any, blocks: Any, stride: Any, adding: Any, lines: Any, more: Any, more_lines: Any,
) -> Any:  # fmt: skip
    """Tiles of any format and any width, each in code of its own."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vnni = has_vnni(context)

        def widths(form: int) -> None:
            widest = range(1, MAX_COLUMNS + 1)
            switch(b, args[1], widest, lambda columns: _emit(b, form, columns, vnni, args[2:]))

        switch(b, args[0], FORMS, widths)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 14), codegen


@intrinsic
def _call(
    typing: Any, function: Any, form: Any, columns: Any, w: Any, codes: Any, factors: Any, out: Any,
    groups: Any, tiles: Any, blocks: Any, stride: Any, adding: Any, lines: Any, more: Any,
    more_lines: Any,
) -> Any:  # fmt: skip
    """What `tile_function` is the address of."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_address(b, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 15), codegen


@entry_point(types.void(*[types.int64] * 14))
def tile_function(
    form: int,
    columns: int,
    w: int,
    codes: int,
    factors: int,
    out: int,
    groups: int,
    tiles: int,
    blocks: int,
    stride: int,
    adding: int,
    lines: int,
    more: int,
    more_lines: int,
) -> None:
    """All tiles, in one function."""
    _any_tiles(
        form,
        columns,
        w,
        codes,
        factors,
        out,
        groups,
        tiles,
        blocks,
        stride,
        adding,
        lines,
        more,
        more_lines,
    )


@bare
def block_tiles(
    function: int,
    entry: int,
    start: int,
    columns: int,
    codes: int,
    factors: int,
    out: int,
    groups: int,
    tiles: int,
    blocks: int,
    stride: int,
    adding: int,
    lines: int,
    more: int,
    more_lines: int,
) -> None:
    """Consecutive groups of one format for consecutive tiles of 1 to 8 token rows each.

    function: `tile_function()`; entry: of the first group, see `blocks`; start: address of the
    weights; codes, factors: addresses of the first tile's; out: address of its first row's outputs,
    16 for each group, rows `stride` bytes apart; adding: 0 stores the sums, 1 adds them to what is
    there; lines: with each block of a tile, so many cache lines of the next group are asked for,
    until all are; more: address of int64 [groups, tiles], of anything else that is during each
    tile, `more_lines` with each block, or 0.
    """
    form = entry & (ALIGNMENT - 1)
    w = start + entry - form
    _call(
        function,
        form,
        columns,
        w,
        codes,
        factors,
        out,
        groups,
        tiles,
        blocks,
        stride,
        adding,
        lines,
        more,
        more_lines,
    )
