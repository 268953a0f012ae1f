"""The arithmetic primitive of weights in blocks: a tile of 16 outputs for T token rows.

    sum[t][row]  =  unit[row] * sum over pairs of blocks of  step[t] * whole[t][row]
    whole        =  sum over the pair of  dot * own  +  low[row] * total[t]        exact in int32
    own          =  scale[row] * x scale[t] / 2**15, to the nearest whole number
    dot          =  sum over 32 k of  (code[row][k] - ZEROS) * x code[t][k] / 2**DROPPED, likewise
                    SIXES: two of them, over 16 k each, with scales of their own

All of these are whole numbers but `unit` and `step`, float32. Token rows are quantized the same way
(`blockrows`), to signed codes of 8 bits:

    codes     int8 [tiles][pairs][T][64]
    factors   int32 [tiles][pairs][T][16]: SCALES, SUMS: x scales and totals of the two blocks, as
              int16 side by side; STEP, a float32; FIRST, SECOND: the x scale of one of the blocks,
              twice; BEGINS: where dots begin, -ZEROS * sum of codes + half of what is dropped;
              of what lies halfway, every other dot is rounded down, so that sums lean to no side

A dot is at most 32 * 8 * 127 (NIBBLES; what is dropped makes that of others as large), `own` 2**14,
a low 32767 and a total 32 * 127 * 4: so a `whole` is less than 2**31 (of SIXES, without lows, too).

Each of the T x 16 sums is one chain of fused multiply-adds in the order of pairs, so it depends on
its own row of weights and its own token only. Whole numbers are exact, so how they are computed is
free. What multiplies needs one of two pipes of a Zen 4, which take a register in a cycle; all else
has others. For a pair of blocks, 16 rows and a token there are

    16  vpdpbusd  (AVX512-VNNI)   64 products of bytes, added to 16 sums of int32: a register of
                                  weights is 16 rows x 4 k, the token's 4 codes are broadcast
     1  vpmulhrsw                 `own` of both blocks
     1  vpdpwssd                  dots, as int16 side by side, times `own`
     1  vpdpwssd                  lows times totals
     1  vfmadd                    step

Elsewhere portable code computes the same bits. LLVM never makes vpdpbusd of ordinary loops, hence
the intrinsics. `tests/cpu/test_blocks.py` compares both with numpy.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.blockcodes import read_codes, read_numbers
from tokenix.drivers.cpu.blocks import (
    ALIGNMENT,
    BEGINS,
    BLOCK,
    BLOCK_BYTES,
    DROPPED,
    FACTORS,
    FIRST,
    FORMS,
    PAIR,
    PAIR_BYTES,
    QUADS,
    SCALES,
    SECOND,
    STEP,
    SUMS,
    UNIT_BYTES,
)
from tokenix.drivers.cpu.jit import bare, cgutils, entry_point, has_vnni, intrinsic
from tokenix.drivers.cpu.lanes import (
    F32,
    I8,
    I16,
    I32,
    I64,
    VF32,
    VI32,
    call_address,
    fetch_lines,
    fill,
    fma,
    load,
    prefetch,
    shift,
    splat,
    store,
    switch,
)
from tokenix.drivers.cpu.workspace import MAX_COLUMNS

_NOTHING = ir.Constant(I64, 0)
_BYTES64 = ir.VectorType(I8, 64)
_WORDS32 = ir.VectorType(I16, 32)


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


def multiply_pairs(b: Any, vnni: bool, total: Any, x: Any, y: Any) -> Any:
    """total + the products of two int16 in each lane, all as int32 [16]."""
    if vnni:
        kind = ir.FunctionType(VI32, [VI32, _WORDS32, _WORDS32])
        name = "llvm.x86.avx512.vpdpwssd.512"
        function = cgutils.get_or_insert_function(b.module, kind, name)
        return b.call(function, [total, b.bitcast(x, _WORDS32), b.bitcast(y, _WORDS32)])
    sixteen = fill(VI32, 16)
    first = b.mul(*(b.ashr(b.shl(each, sixteen), sixteen) for each in (x, y)))
    second = b.mul(*(b.ashr(each, sixteen) for each in (x, y)))
    return b.add(total, b.add(first, second))


def multiply_scales(b: Any, vnni: bool, x: Any, y: Any) -> Any:
    """The products of int16 [32] over 2**15, to the nearest whole number."""
    x, y = b.bitcast(x, _WORDS32), b.bitcast(y, _WORDS32)
    if vnni:
        kind = ir.FunctionType(_WORDS32, [_WORDS32, _WORDS32])
        name = "llvm.x86.avx512.pmul.hr.sw.512"
        function = cgutils.get_or_insert_function(b.module, kind, name)
        return b.bitcast(b.call(function, [x, y]), VI32)
    wide = ir.VectorType(I32, 32)
    product = b.add(b.mul(b.sext(x, wide), b.sext(y, wide)), fill(wide, 1 << 14))
    return b.bitcast(b.trunc(b.ashr(product, fill(wide, 15)), _WORDS32), VI32)


def _pack(b: Any, form: int, first: Any, second: Any) -> Any:
    """Two dots, less their lowest bits, as int16 [16][2]."""
    dropped = DROPPED[form]
    if dropped:
        first = b.ashr(first, fill(VI32, dropped))
    second = b.shl(second, fill(VI32, 16 - dropped))
    first, second = b.bitcast(first, _WORDS32), b.bitcast(second, _WORDS32)
    order = [32 * (i % 2) + i for i in range(32)]
    mixed = b.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, 32), order))
    return b.bitcast(mixed, VI32)


def _emit_dots(b: Any, vnni: bool, codes: list[Any], at_code: Any, begins: list[Any]) -> list[Any]:
    """Of a block's rows with a token, int32, for each part of it. begins: where they begin."""
    dots, each = [], QUADS // len(begins)
    for part, begin in enumerate(begins):
        dot = begin
        for quad in range(part * each, (part + 1) * each):
            dot = dot_codes(b, vnni, dot, codes[quad], load(b, I32, at_code, 4 * quad))
        dots.append(dot)
    return dots


def _emit_block(
    b: Any, form: int, vnni: bool, odd: Any, kept: list[Any], sums: list[Any], places: list[Any]
) -> None:
    """A block of the group, for each of the tile's rows. odd: it is the second one of a pair;
    kept: variables for the dots of the first one."""
    at_w, at_code, at_factor = places
    begins = BEGINS[form][: _parts(form)]
    codes, dots = read_codes(b, form, at_w), []
    for t in range(len(sums)):
        starts = [splat(b, load(b, I32, at_factor, 4 * (FACTORS * t + i))) for i in begins]
        own = _emit_dots(b, vnni, codes, shift(b, at_code, PAIR * t), starts)
        dots.append(own[0] if len(own) == 1 else _pack(b, form, *own))
    with b.if_else(odd) as (second, first):
        with first:
            for own, place in zip(dots, kept, strict=True):
                b.store(own, place)
        with second:
            both = [(b.load(place), own) for place, own in zip(kept, dots, strict=True)]
            at_w, at_factor = (
                shift(b, at_w, -BLOCK_BYTES[form]),
                shift(b, at_factor, -4 * len(begins)),
            )
            _emit_sums(b, form, vnni, both, sums, at_w, at_factor)


def _parts(form: int) -> int:
    """Of a block, that have scales of their own."""
    return len(BEGINS[form]) // 2


def _emit_sums(
    b: Any, form: int, vnni: bool, dots: list[Any], sums: list[Any], at_w: Any, at_factor: Any
) -> None:
    """Add a pair to the sums. dots: two for each row; of SIXES two in each, packed."""
    numbers = read_numbers(b, form, at_w)
    words = [SCALES] if _parts(form) == 1 else [FIRST, SECOND]
    for t, (both, total) in enumerate(zip(dots, sums, strict=True)):

        def factor(kind: Any, which: int, t: int = t) -> Any:
            return splat(b, load(b, kind, at_factor, 4 * (FACTORS * t + which)))

        whole = fill(VI32, 0)
        if numbers.lows is not None:
            whole = multiply_pairs(b, vnni, whole, numbers.lows, factor(I32, SUMS))
        packed = [_pack(b, form, *both)] if _parts(form) == 1 else both
        for each, scales, word in zip(packed, numbers.scales, words, strict=True):
            own = multiply_scales(b, vnni, scales, factor(I32, word))
            whole = multiply_pairs(b, vnni, whole, each, own)
        b.store(fma(b, b.sitofp(whole, VF32), factor(F32, STEP), b.load(total)), total)


def _emit_tile(b: Any, form: int, vnni: bool, sums: list[Any], w: Any, pairs: Any, at: Any) -> None:
    """The sums of a tile. at: where its codes, its factors, and the two things to ask for lie, all
    moved on; then how many lines of them with each block.

    A loop over blocks, not over pairs: what one step of it reads lies so near to what the last one
    has read that the processor guesses it."""
    at_code, at_factor, at_ahead, at_more, lines, more_lines = at
    at_w = cgutils.alloca_once(b, I64)
    b.store(w, at_w)
    for total in sums:
        b.store(fill(VF32, 0.0), total)
    kept = [cgutils.alloca_once(b, VI32) for _ in sums]
    with cgutils.for_range(b, b.add(pairs, pairs), intp=I64) as loop:
        fetch_lines(b, at_ahead, lines)
        fetch_lines(b, at_more, more_lines)
        places, odd = (at_w, at_code, at_factor), b.trunc(loop.index, ir.IntType(1))
        _emit_block(b, form, vnni, odd, kept, sums, [b.load(place) for place in places])
        inside = (BLOCK_BYTES[form], BLOCK, 4 * _parts(form))
        whole = (2 * BLOCK_BYTES[form], PAIR * len(sums), 4 * FACTORS * len(sums))
        for place, half, step in zip(places, inside, whole, strict=True):
            moved = b.select(odd, ir.Constant(I64, step - half), ir.Constant(I64, half))
            b.store(b.add(b.load(place), moved), place)


def _emit(b: Any, form: int, columns: int, vnni: bool, args: Any) -> None:
    """All tiles of all groups in one loop: called for each of them, the processor would end one
    before it begins the next, a twentieth part of a tile of 18 blocks."""
    w, codes, factors, out, groups, tiles, pairs, stride, adding, lines, more, more_lines = args
    sums = [cgutils.alloca_once(b, VF32) for _ in range(columns)]
    at_code, at_factor, at_out, at_ahead, at_part = (cgutils.alloca_once(b, I64) for _ in range(5))
    at_group, at_more = (cgutils.alloca_once_value(b, each) for each in (w, more))
    size = shift(b, b.mul(pairs, ir.Constant(I64, PAIR_BYTES[form])), UNIT_BYTES)
    with cgutils.for_range(b, groups, intp=I64) as loop:
        group = b.load(at_group)
        following = b.add(group, size)
        beyond = b.add(following, size)
        begins = (codes, factors, b.add(out, b.shl(loop.index, ir.Constant(I64, 6))), following)
        for place, begin in zip((at_code, at_factor, at_out, at_ahead), begins, strict=True):
            b.store(begin, place)
        if columns > 1:
            prefetch(b, shift(b, beyond, -UNIT_BYTES), 2)  # the only line that `lines` leave out
        with cgutils.for_range(b, tiles, intp=I64):
            own_lines = _if(b, "<", b.load(at_ahead), beyond, lines)
            b.store(_NOTHING, at_part)
            with b.if_then(b.icmp_signed(">", more_lines, _NOTHING)):
                b.store(load(b, I64, b.load(at_more), 0, 8), at_part)
                b.store(shift(b, b.load(at_more), 8), at_more)
            part_lines = _if(b, "!=", b.load(at_part), _NOTHING, more_lines)
            at = (at_code, at_factor, at_ahead, at_part, own_lines, part_lines)
            _emit_tile(b, form, vnni, sums, group, pairs, at)
            units = load(b, VF32, shift(b, following, -UNIT_BYTES))
            for total in sums:
                b.store(b.fmul(b.load(total), units), total)
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
    tiles: Any, pairs: Any, stride: Any, adding: Any, lines: Any, more: Any, more_lines: Any,
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
    groups: Any, tiles: Any, pairs: Any, stride: Any, adding: Any, lines: Any, more: Any,
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
    pairs: int,
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
        pairs,
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
    pairs: int,
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
        pairs,
        stride,
        adding,
        lines,
        more,
        more_lines,
    )
