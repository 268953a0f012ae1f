"""Kernels over token rows that are then quantized for `blocktile`: norms, SwiGLU; the embedding.

    scale   = most / 127, the largest |x| of 32 numbers being `most`
    code    = x / scale, to the nearest whole number, -127 to 127

Scales are told to the nearest of MOST_SCALE parts of the larger one of a pair of blocks.
A row is computed from itself alone. What is not finite makes the unit of its pair not-a-number,
so that it reaches the logits.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.blockcodes import pair_numbers
from tokenix.drivers.cpu.blocks import (
    ALIGNMENT,
    BEGINS,
    DROPPED,
    FACTORS,
    FIRST,
    FORMS,
    LOW_STEP,
    MOST_SCALE,
    PAIR,
    PAIR_BYTES,
    SCALES,
    SECOND,
    STEP,
    SUMS,
    ZEROS,
)
from tokenix.drivers.cpu.jit import Array, Float32, Int64, bare, intrinsic, kernel
from tokenix.drivers.cpu.lanes import (
    F32,
    I8,
    I32,
    I64,
    LANES,
    ROUND,
    VF32,
    VI32,
    exp_neg,
    fill,
    fold,
    load,
    shift,
    size,
    splat,
    store,
    switch,
)
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.rows import sum_squares

VECTOR = LANES * 4
"""Bytes of 16 float32."""
_VECTORS = PAIR // LANES
_NOTHING = 1e-30
"""A block whose numbers are all smaller has codes of zero."""
_ROUNDED = int(np.full(LANES, ROUND, np.float32).view(np.int32).sum(dtype=np.int32))
"""What the bits of 16 numbers add up to that were rounded by adding ROUND, less the numbers."""
SWIGLU_ROWS = 2
_SIZES = tuple(PAIR_BYTES[form] for form in FORMS)
_VI8 = ir.VectorType(I8, LANES)


class Rows8(NamedTuple):
    """Token rows in codes of 8 bits, in tiles of T; see `blocktile`."""

    codes: Array
    """int8 [tiles, pairs, T, 64]"""
    factors: Float32
    """[tiles, pairs, T, FACTORS]: those of a row side by side, so that rows of two workers seldom
    share a cache line."""


def _emit_quantize(b: Any, x: list[Any], codes: Any, factors: Any) -> None:
    """A pair of blocks, given as four registers. What is largest is found among the bits without
    signs: as whole numbers they have the same order, and what is not finite is above all."""
    bits = [b.and_(b.bitcast(each, VI32), fill(VI32, 0x7FFFFFFF)) for each in x]
    most = [fold(b, _higher(b, *bits[i : i + 2]), _higher) for i in (0, 2)]
    top = b.bitcast(_higher(b, *most), F32)
    counts, sizes, whole = [], [], _inverse(b, MOST_SCALE, top)
    for block, bits in enumerate(most):
        own = b.bitcast(bits, F32)
        inverse = splat(b, _inverse(b, 127.0, own))
        sizes.append(b.fmul(own, whole))
        for half in (2 * block, 2 * block + 1):
            shifted = b.bitcast(b.fadd(b.fmul(x[half], inverse), fill(VF32, ROUND)), VI32)
            store(b, b.trunc(shifted, _VI8), codes, LANES * half, 1)
            counts.append(b.sub(fold(b, shifted, _add), ir.Constant(I32, _ROUNDED)))
    unit = b.fmul(top, ir.Constant(F32, float(np.float32(1 / 127 / MOST_SCALE))))
    unit = b.fadd(unit, b.fmul(top, ir.Constant(F32, 0.0)))
    _emit_factors(b, sizes, counts, unit, factors)


def _inverse(b: Any, over: float, most: Any) -> Any:
    """over / most, or 0 where that is hardly a number."""
    zero = ir.Constant(F32, 0.0)
    above = b.fcmp_ordered(">", most, ir.Constant(F32, _NOTHING))
    return b.select(above, b.fdiv(ir.Constant(F32, over), most), zero)


def _emit_factors(b: Any, sizes: list[Any], counts: list[Any], unit: Any, factors: Any) -> None:
    """sizes: scales of the two blocks in units; counts: sums of the codes of their halves."""
    totals = [b.add(*counts[i : i + 2]) for i in (0, 2)]
    scale = ir.Constant(F32, LOW_STEP)
    sums = [
        b.fmul(b.fmul(b.sitofp(total, F32), size), scale)
        for total, size in zip(totals, sizes, strict=True)
    ]
    first, second = (_rounded(b, size) for size in sizes)
    words = {
        SCALES: _beside(b, first, second),
        SUMS: _beside(b, *(_rounded(b, each) for each in sums)),
        STEP: unit,
        FIRST: _beside(b, first, first),
        SECOND: _beside(b, second, second),
    }
    for form, places in BEGINS.items():
        parts = counts if len(places) == len(counts) else totals
        for i, (place, part) in enumerate(zip(places, parts, strict=True)):
            half = ir.Constant(I32, (1 << DROPPED[form]) - 1 + i % 2 >> 1)
            words[place] = b.add(b.mul(part, ir.Constant(I32, -ZEROS[form])), half)
    for place, word in words.items():
        store(b, word, factors, 4 * place)


def _rounded(b: Any, x: Any) -> Any:
    """A float32 to the nearest whole number, in the low half of an int32."""
    bits = b.bitcast(b.fadd(x, ir.Constant(F32, ROUND)), I32)
    return b.and_(bits, ir.Constant(I32, 0xFFFF))


def _beside(b: Any, first: Any, second: Any) -> Any:
    return b.or_(first, b.shl(second, ir.Constant(I32, 16)))


def _higher(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed(">", x, y), x, y)


def _add(b: Any, x: Any, y: Any) -> Any:
    return b.add(x, y)


def _scaled(b: Any, x: Any, scale: Any, weight: Any, offset: int) -> Any:
    """x * scale * weight of 16 float32."""
    return b.fmul(b.fmul(load(b, VF32, x, offset), splat(b, scale)), load(b, VF32, weight, offset))


@intrinsic
def quantize_pair(typing: Any, x: Any, codes: Any, factors: Any) -> Any:
    """64 float32 at x to 64 codes and their factors."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, *rest = args
        _emit_quantize(b, [load(b, VF32, x, VECTOR * i) for i in range(_VECTORS)], *rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def quantize_scaled(
    typing: Any, vectors: Any, x: Any, scale: Any, weight: Any, codes: Any, factors: Any
) -> Any:
    """x * scale * weight of so many times 16 float32, 1 to 4, and zeros behind them, quantized as
    `quantize_pair` does."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vectors, x, scale, weight, *rest = args

        def emit(count: int) -> None:
            products = [_scaled(b, x, scale, weight, VECTOR * i) for i in range(count)]
            zeros = [fill(VF32, 0.0)] * (_VECTORS - count)
            _emit_quantize(b, products + zeros, *rest)

        switch(b, vectors, range(1, _VECTORS + 1), emit)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, *[types.int64] * 3), codegen


def _silu(b: Any, x: Any) -> Any:
    """x * sigmoid(x), from exp(-|x|)."""
    small = exp_neg(b, b.fneg(size(b, x)))
    above = b.fcmp_ordered(">", x, fill(VF32, 0.0))
    share = b.select(above, fill(VF32, 1.0), small)
    return b.fmul(x, b.fdiv(share, b.fadd(fill(VF32, 1.0), small)))


def _emit_swiglu(b: Any, rows: int, both: Any, stride: Any, rest: Any) -> None:
    """A pair of some rows. All are begun before one is ended: a row by itself would mostly wait
    for its own results."""
    begins = [b.add(both, b.mul(stride, ir.Constant(I64, row))) for row in range(rows)]
    places = [(at, VECTOR * i) for at in begins for i in range(_VECTORS)]
    gates = [_silu(b, load(b, VF32, at, offset)) for at, offset in places]
    ups = [load(b, VF32, at, 4 * PAIR + offset) for at, offset in places]
    products = [b.fmul(gate, up) for gate, up in zip(gates, ups, strict=True)]
    codes, factors = rest
    for row in range(rows):
        own = products[_VECTORS * row : _VECTORS * (row + 1)]
        _emit_quantize(b, own, shift(b, codes, PAIR * row), shift(b, factors, 4 * FACTORS * row))


@intrinsic
def swiglu_rows(typing: Any, rows: Any, both: Any, stride: Any, codes: Any, factors: Any) -> Any:
    """silu(gate) * up of a pair of the first `rows` rows of a tile, 1 or SWIGLU_ROWS, quantized as
    `quantize_pair` does. both: 64 float32 of gate, then 64 of up; `stride` bytes apart."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        rows, both, stride, *rest = args
        switch(b, rows, (1, SWIGLU_ROWS), lambda n: _emit_swiglu(b, n, both, stride, rest))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@bare
def tile_places(rows: Rows8, row: int, pair: int) -> tuple[int, int]:
    """Addresses of a row's codes and of its first factor, for a pair of blocks."""
    pairs, columns = rows.codes.shape[1], rows.codes.shape[2]
    at = (row // columns * pairs + pair) * columns + row % columns
    return address(rows.codes) + at * PAIR, address(rows.factors) + at * FACTORS * 4


@bare
def quantize_row(x: int, rows: Rows8, row: int) -> None:
    """The float32 at an address, as many as a row of `rows` has, to that row."""
    pairs, columns = rows.codes.shape[1], rows.codes.shape[2]
    codes, factors = tile_places(rows, row, 0)
    for pair in range(pairs):
        quantize_pair(
            x + 4 * PAIR * pair,
            codes + pair * columns * PAIR,
            factors + pair * columns * FACTORS * 4,
        )


@bare
def norm_row(x: Float32, weight: Float32, eps: float, rows: Rows8, row: int) -> None:
    """RMSNorm of x [width], quantized to a row."""
    vectors, columns = len(x) // LANES, rows.codes.shape[2]
    square = sum_squares(address(x), vectors)
    scale = np.float32(1.0 / np.sqrt(np.float64(square) / len(x) + eps))
    codes, factors = tile_places(rows, row, 0)
    at_x, at_weight = address(x), address(weight)
    while vectors > 0:
        quantize_scaled(min(vectors, _VECTORS), at_x, scale, at_weight, codes, factors)
        at_x, at_weight, vectors = at_x + 4 * PAIR, at_weight + 4 * PAIR, vectors - _VECTORS
        codes, factors = codes + columns * PAIR, factors + columns * FACTORS * 4


@kernel
def embed_row(blob: Array, entries: Int64, token: int, x: Float32) -> None:
    """A row of a matrix in blocks, widened: x [width]."""
    form = entries[token // LANES] & (ALIGNMENT - 1)
    at, lane = address(blob) + entries[token // LANES] - form, token % LANES
    units = at + (len(x) + PAIR - 1) // PAIR * _SIZES[form]
    numbers = np.empty((PAIR, LANES), np.float32)
    for first in range(0, len(x), PAIR):
        pair_numbers(form, at, units, address(numbers))
        for k in range(first, min(first + PAIR, len(x))):
            x[k] = numbers[k - first, lane]
        at += _SIZES[form]
