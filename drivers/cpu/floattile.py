"""The arithmetic primitive of float weights: a tile of 16 outputs for T token rows.

    sum[t][row]  =  sum over k of  w[row][k] * x[t][k]        one chain of fused multiply-adds

    weights   a block is 16 k of 16 rows              token rows               order of k
    f32       [16 k][16 rows] float32                 float32                  0, 1, 2, 3, ..
    f16       [16 k][16 rows] float16, widened        float32                  0, 1, 2, 3, ..
    bf16      [8 pairs][16 rows][2 k] bfloat16        rounded to bfloat16      1, 0, 3, 2, ..

    a group is 16 rows: [blocks][a block]; a tile of token rows is [blocks][T][16 k]

Each of the T x 16 sums depends on its own row of weights and its own token only, so a row's result
is bitwise the same in every batch. The order of bf16 is that of an instruction:

    vdpbf16ps (AVX512-BF16)    32 products and their sums, two for each of 16 rows: of each pair the
                               second product is added first, each sum rounded by itself
    elsewhere                  two fused multiply-adds: the same bits

The instruction takes subnormal numbers for 0 and makes none (Intel SDM, VDPBF16PS). Products and
sums of what is left by `put_numbers`, in weights and in token rows, never are: all are whole
multiples of 2**-126, the smallest number that is not.

What arrays hold is told by their dtype, as elsewhere: int16 stands for float16, uint16 for
bfloat16. `tests/cpu/test_floattile.py` compares all of it with numpy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import bare, cgutils, entry_point, has_bf16, intrinsic
from tokenix.drivers.cpu.lanes import (
    F32,
    I32,
    I64,
    LANES,
    VF32,
    VI32,
    call_address,
    fetch_lines,
    fill,
    fma,
    load,
    shift,
    size,
    splat,
    store,
    switch,
)
from tokenix.drivers.cpu.numbers import load_plain, round_vector
from tokenix.drivers.cpu.workspace import MAX_COLUMNS

LINE = 64
"""Bytes of a cache line."""
SMALLEST = 2.0**-56
"""Of bfloat16 weights and token rows; what is smaller is 0. (2**-56 * 2**-7)**2 is 2**-126."""

_PAIRS = LANES // 2


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not know."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_VBF = ir.VectorType(_BFloat(), 2 * LANES)


def dot_pairs(b: Any, bf16: bool, total: Any, weights: Any, pair: Any) -> Any:
    """total + dot of a pair of bfloat16 of each row with the token's pair, both as int32."""
    if bf16:
        kind = ir.FunctionType(VF32, [VF32, _VBF, _VBF])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        function = cgutils.get_or_insert_function(b.module, kind, name)
        return b.call(function, [total, b.bitcast(weights, _VBF), b.bitcast(splat(b, pair), _VBF)])
    both = (weights, splat(b, pair))
    w_second, x_second = (b.bitcast(b.and_(v, fill(VI32, -0x10000)), VF32) for v in both)
    w_first, x_first = (b.bitcast(b.shl(v, fill(VI32, 16)), VF32) for v in both)
    return fma(b, w_first, x_first, fma(b, w_second, x_second, total))


def _emit_block(b: Any, dtype: Any, bf16: bool, at_w: Any, at_x: Any, sums: list[Any]) -> None:
    """16 k of all token rows of a tile."""
    pairs = dtype is types.uint16
    for step in range(_PAIRS if pairs else LANES):
        if pairs:
            weights = load(b, VI32, at_w, LINE * step, 64)
        else:
            weights = load_plain(b, shift(b, at_w, LANES * dtype.bitwidth // 8 * step), dtype)
        for t, total in enumerate(sums):
            if pairs:
                pair = load(b, I32, at_x, 2 * LANES * t + 4 * step)
                value = dot_pairs(b, bf16, b.load(total), weights, pair)
            else:
                x = splat(b, load(b, F32, at_x, 4 * (LANES * t + step)))
                value = fma(b, weights, x, b.load(total))
            b.store(value, total)


def _emit(b: Any, dtype: Any, columns: int, bf16: bool, args: Any) -> None:
    w, x, out, blocks, stride, adding, ahead, lines, more, more_lines = args
    sums = [cgutils.alloca_once(b, VF32) for _ in range(columns)]
    for total in sums:
        b.store(fill(VF32, 0.0), total)
    places = [cgutils.alloca_once(b, I64) for _ in range(4)]
    for place, begin in zip(places, (w, x, ahead, more), strict=True):
        b.store(begin, place)
    row_bytes = 2 * LANES if dtype is types.uint16 else 4 * LANES
    steps = (LANES * LANES * dtype.bitwidth // 8, columns * row_bytes)
    with cgutils.for_range(b, blocks, intp=I64):
        at_w, at_x = (b.load(place) for place in places[:2])
        fetch_lines(b, places[2], lines)
        fetch_lines(b, places[3], more_lines)
        _emit_block(b, dtype, bf16, at_w, at_x, sums)
        for place, step in zip(places, steps, strict=False):
            b.store(shift(b, b.load(place), step), place)
    outs = [b.add(out, b.mul(stride, ir.Constant(I64, t))) for t in range(columns)]
    with b.if_then(b.icmp_signed("!=", adding, ir.Constant(I64, 0))):
        for total, at in zip(sums, outs, strict=True):
            b.store(b.fadd(load(b, VF32, at), b.load(total)), total)
    for total, at in zip(sums, outs, strict=True):
        store(b, b.load(total), at)


@intrinsic
def _any_tile(
    typing: Any, like: Any, columns: Any, w: Any, x: Any, out: Any, blocks: Any, stride: Any,
    adding: Any, ahead: Any, lines: Any, more: Any, more_lines: Any,
) -> Any:  # fmt: skip
    """A tile of any width, each in code of its own; `like` has the dtype of the weights."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, bf16 = sig.args[0].dtype, has_bf16(context)
        widths = range(1, MAX_COLUMNS + 1)
        switch(b, args[1], widths, lambda columns: _emit(b, dtype, columns, bf16, args[2:]))
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 11), codegen


@intrinsic
def _call(
    typing: Any, function: Any, columns: Any, w: Any, x: Any, out: Any, blocks: Any, stride: Any,
    adding: Any, ahead: Any, lines: Any, more: Any, more_lines: Any,
) -> Any:  # fmt: skip
    """One of the functions of `tile_function`."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_address(b, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), codegen


_F16, _BF16, _F32 = (np.empty(1, dtype) for dtype in (np.int16, np.uint16, np.float32))
_NUMBERS = types.void(*[types.int64] * 11)


@entry_point(_NUMBERS)
def _tile_f16(
    n: int, w: int, x: int, out: int, blocks: int, stride: int, adding: int, ahead: int, lines: int,
    more: int, more_lines: int,
) -> None:  # fmt: skip
    _any_tile(_F16, n, w, x, out, blocks, stride, adding, ahead, lines, more, more_lines)


@entry_point(_NUMBERS)
def _tile_bf16(
    n: int, w: int, x: int, out: int, blocks: int, stride: int, adding: int, ahead: int, lines: int,
    more: int, more_lines: int,
) -> None:  # fmt: skip
    _any_tile(_BF16, n, w, x, out, blocks, stride, adding, ahead, lines, more, more_lines)


@entry_point(_NUMBERS)
def _tile_f32(
    n: int, w: int, x: int, out: int, blocks: int, stride: int, adding: int, ahead: int, lines: int,
    more: int, more_lines: int,
) -> None:  # fmt: skip
    _any_tile(_F32, n, w, x, out, blocks, stride, adding, ahead, lines, more, more_lines)


def tile_function(stored: np.dtype[Any]) -> int:
    """Address of the tiles for weights of a dtype."""
    found: dict[np.dtype[Any], Callable[[], int]] = {
        np.dtype(np.int16): _tile_f16,
        np.dtype(np.uint16): _tile_bf16,
        np.dtype(np.float32): _tile_f32,
    }
    return found[stored]()


@bare
def float_tile(
    function: int,
    columns: int,
    w: int,
    x: int,
    out: int,
    blocks: int,
    stride: int,
    adding: int,
    ahead: int,
    lines: int,
    more: int,
    more_lines: int,
) -> None:
    """One group for a tile of 1 to 8 token rows.

    function: of `tile_function`; w: address of the group, a multiple of 64; x: of the tile; out: of
    its first row's 16 outputs, rows `stride` bytes apart; adding: 0 stores the sums, 1 adds them to
    what is there; ahead: address of weights that are read next, of which `lines` cache lines are
    asked for with each block; more, more_lines: of anything else, likewise.
    """
    _call(function, columns, w, x, out, blocks, stride, adding, ahead, lines, more, more_lines)


def put_numbers(b: Any, numbers: Any, dtype: Any, at: Any) -> None:
    """Store 16 float32 at an address as a block of a token row of this dtype."""
    if dtype is types.uint16:
        small = b.fcmp_ordered("<", size(b, numbers), fill(VF32, SMALLEST))
        numbers = b.select(small, fill(VF32, 0.0), numbers)
    store(b, round_vector(b, numbers, dtype), at, 0, 2)
