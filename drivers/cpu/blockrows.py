"""Kernels over token rows that are then quantized for `blocktile`: norms, SwiGLU; the embedding.

    scale   = most / 127, the largest |x| of 32 numbers being `most`
    code    = x / scale, to the nearest whole number, -127 to 127

A row is computed from itself alone. What is not finite makes the scale of its block not-a-number,
so that it reaches the logits.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.blockcodes import ZEROS, block_numbers
from tokenix.drivers.cpu.blocks import (
    ALIGNMENT,
    BLOCK,
    BLOCK_BYTES,
    BYTES,
    FACTORS,
    FORMS,
    SIXES,
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
_NOTHING = 1e-30
"""A block whose numbers are all smaller has codes of zero."""
_ROUNDED = int(np.full(LANES, ROUND, np.float32).view(np.int32).sum(dtype=np.int32))
"""What the bits of 16 numbers add up to that were rounded by adding ROUND, less the numbers."""
SWIGLU_ROWS = 4
_SIZES = tuple(BLOCK_BYTES[form] for form in FORMS)
_VI8 = ir.VectorType(I8, LANES)


class Rows8(NamedTuple):
    """Token rows in codes of 8 bits, in tiles of T; see `blocktile`."""

    codes: Array
    """int8 [tiles, blocks, T, 32]"""
    factors: Float32
    """[tiles, blocks, T, FACTORS]: those of a row side by side, so that rows of two workers seldom
    share a cache line."""


def _emit_quantize(b: Any, first: Any, second: Any, codes: Any, factors: Any) -> None:
    """A block, given as two registers. What is largest is found among the bits without signs: as
    whole numbers they have the same order, and what is not finite is above all numbers."""
    bits = [b.and_(b.bitcast(x, VI32), fill(VI32, 0x7FFFFFFF)) for x in (first, second)]
    most = b.bitcast(fold(b, _higher(b, *bits), _higher), F32)
    zero, tiny = ir.Constant(F32, 0.0), ir.Constant(F32, _NOTHING)
    scale = b.fmul(most, ir.Constant(F32, float(np.float32(1 / 127))))
    scale = b.fadd(scale, b.fmul(most, zero))
    inverse = b.fdiv(ir.Constant(F32, 127.0), most)
    inverse = splat(b, b.select(b.fcmp_ordered(">", most, tiny), inverse, zero))
    counts = []
    for half, x in enumerate((first, second)):
        shifted = b.bitcast(b.fadd(b.fmul(x, inverse), fill(VF32, ROUND)), VI32)
        store(b, b.trunc(shifted, _VI8), codes, LANES * half, 1)
        counts.append(b.sub(fold(b, shifted, _add), ir.Constant(I32, _ROUNDED)))
    count = b.add(*counts)
    begins = [b.mul(count, ir.Constant(I32, -ZEROS[BYTES]))]
    begins += [b.mul(half, ir.Constant(I32, -ZEROS[SIXES])) for half in counts]
    for i, number in enumerate((scale, b.fmul(scale, b.sitofp(count, F32)), *begins)):
        store(b, number, factors, 4 * i)


def _higher(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed(">", x, y), x, y)


def _add(b: Any, x: Any, y: Any) -> Any:
    return b.add(x, y)


def _scaled(b: Any, x: Any, scale: Any, weight: Any, offset: int) -> Any:
    """x * scale * weight of 16 float32."""
    return b.fmul(b.fmul(load(b, VF32, x, offset), splat(b, scale)), load(b, VF32, weight, offset))


@intrinsic
def quantize_block(typing: Any, x: Any, codes: Any, factors: Any) -> Any:
    """32 float32 at x to 32 codes and their factors."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, *rest = args
        _emit_quantize(b, load(b, VF32, x), load(b, VF32, x, VECTOR), *rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def quantize_scaled(typing: Any, x: Any, scale: Any, weight: Any, codes: Any, factors: Any) -> Any:
    """x * scale * weight of 32 float32 each, quantized as `quantize_block` does."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, scale, weight, *rest = args
        products = [_scaled(b, x, scale, weight, offset) for offset in (0, VECTOR)]
        _emit_quantize(b, *products, *rest)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, *[types.int64] * 3), codegen


@intrinsic
def quantize_half(typing: Any, x: Any, scale: Any, weight: Any, codes: Any, factors: Any) -> Any:
    """Of 16 float32 each and as many zeros."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, scale, weight, *rest = args
        _emit_quantize(b, _scaled(b, x, scale, weight, 0), fill(VF32, 0.0), *rest)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, *[types.int64] * 3), codegen


def _silu(b: Any, x: Any) -> Any:
    """x * sigmoid(x), from exp(-|x|)."""
    small = exp_neg(b, b.fneg(size(b, x)))
    above = b.fcmp_ordered(">", x, fill(VF32, 0.0))
    share = b.select(above, fill(VF32, 1.0), small)
    return b.fmul(x, b.fdiv(share, b.fadd(fill(VF32, 1.0), small)))


def _emit_swiglu(b: Any, rows: int, both: Any, stride: Any, rest: Any) -> None:
    """A block of some rows. All are begun before one is ended: a row by itself would mostly wait
    for its own results."""
    begins = [b.add(both, b.mul(stride, ir.Constant(I64, row))) for row in range(rows)]
    gates = [_silu(b, load(b, VF32, at, half)) for at in begins for half in (0, VECTOR)]
    ups = [load(b, VF32, at, half) for at in begins for half in (2 * VECTOR, 3 * VECTOR)]
    products = [b.fmul(gate, up) for gate, up in zip(gates, ups, strict=True)]
    codes, factors = rest
    for row in range(rows):
        first, second = products[2 * row : 2 * row + 2]
        places = shift(b, codes, BLOCK * row), shift(b, factors, 4 * FACTORS * row)
        _emit_quantize(b, first, second, *places)


@intrinsic
def swiglu_rows(typing: Any, rows: Any, both: Any, stride: Any, codes: Any, factors: Any) -> Any:
    """silu(gate) * up of a block of the first `rows` rows of a tile, 1 or SWIGLU_ROWS, quantized as
    `quantize_block` does. both: 32 float32 of gate, then 32 of up; `stride` bytes apart."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        rows, both, stride, *rest = args
        switch(b, rows, (1, SWIGLU_ROWS), lambda n: _emit_swiglu(b, n, both, stride, rest))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@bare
def tile_places(rows: Rows8, row: int, block: int) -> tuple[int, int]:
    """Addresses of a row's codes and of its first factor, for a block."""
    blocks, columns = rows.codes.shape[1], rows.codes.shape[2]
    at = (row // columns * blocks + block) * columns
    column = row % columns
    codes = address(rows.codes) + (at + column) * BLOCK
    return codes, address(rows.factors) + (at + column) * FACTORS * 4


@bare
def quantize_row(x: int, rows: Rows8, row: int) -> None:
    """The float32 at an address, as many as a row of `rows` has, to that row."""
    blocks, columns = rows.codes.shape[1], rows.codes.shape[2]
    codes, factors = tile_places(rows, row, 0)
    for block in range(blocks):
        quantize_block(
            x + 2 * VECTOR * block,
            codes + block * columns * BLOCK,
            factors + block * columns * FACTORS * 4,
        )


@bare
def norm_row(x: Float32, weight: Float32, eps: float, rows: Rows8, row: int) -> None:
    """RMSNorm of x [width], quantized to a row."""
    width, columns = len(x), rows.codes.shape[2]
    square = sum_squares(address(x), width // LANES)
    scale = np.float32(1.0 / np.sqrt(np.float64(square) / width + eps))
    codes, factors = tile_places(rows, row, 0)
    at_x, at_weight = address(x), address(weight)
    for _ in range(width // BLOCK):
        quantize_scaled(at_x, scale, at_weight, codes, factors)
        at_x, at_weight = at_x + 2 * VECTOR, at_weight + 2 * VECTOR
        codes, factors = codes + columns * BLOCK, factors + columns * FACTORS * 4
    if width % BLOCK:
        quantize_half(at_x, scale, at_weight, codes, factors)


@kernel
def embed_row(blob: Array, entries: Int64, token: int, x: Float32) -> None:
    """A row of a matrix in blocks, widened: x [width]."""
    form = entries[token // LANES] & (ALIGNMENT - 1)
    at, lane = address(blob) + entries[token // LANES] - form, token % LANES
    numbers = np.empty((BLOCK, LANES), np.float32)
    for first in range(0, len(x), BLOCK):
        block_numbers(form, at, address(numbers))
        for k in range(first, min(first + BLOCK, len(x))):
            x[k] = numbers[k - first, lane]
        at += _SIZES[form]
