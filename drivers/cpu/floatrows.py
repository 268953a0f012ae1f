"""Kernels over token rows that are then multiplied by `floattile`: norms, SwiGLU, quotients.

    rows   [tiles][blocks][T][16]    float32, or uint16 for bfloat16: rounded to nearest even

A row is computed from itself alone, in one fixed order, so no result depends on the batch. Who
writes vectors to `rows` is compiled for their dtype.
"""

from typing import Any

from numba.core import types

from tokenix.drivers.cpu.floattile import put_numbers
from tokenix.drivers.cpu.jit import Array, Float32, bare, intrinsic
from tokenix.drivers.cpu.lanes import LANES, VF32, exp_neg, fill, load, size, splat
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.rows import root_mean_square

_VECTOR = LANES * 4
"""Bytes of 16 float32."""


@bare
def find_row(rows: Array, row: int, block: int) -> int:
    """Address of a block of a row; those of the next blocks are `step_of` bytes apart."""
    columns = rows.shape[2]
    place: int = (row // columns * rows.shape[1] + block) * columns + row % columns
    return int(address(rows)) + place * LANES * rows.itemsize


@bare
def step_of(rows: Array) -> int:
    return int(rows.shape[2]) * LANES * int(rows.itemsize)


@intrinsic
def put_quotient(typing: Any, rows: Any, x: Any, number: Any, to: Any) -> Any:
    """16 float32 at an address by a number, to a block of `rows`."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        _, x, number, to = args
        put_numbers(b, b.fdiv(load(b, VF32, x), splat(b, number)), sig.args[0].dtype, to)
        return context.get_dummy_value()

    return types.void(rows, types.int64, types.float32, types.int64), codegen


@intrinsic
def _put_scaled(typing: Any, rows: Any, x: Any, scale: Any, weight: Any, to: Any) -> Any:
    """x * scale * weight of 16 float32 each, to a block of `rows`."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        _, x, scale, weight, to = args
        scaled = b.fmul(b.fmul(load(b, VF32, x), splat(b, scale)), load(b, VF32, weight))
        put_numbers(b, scaled, sig.args[0].dtype, to)
        return context.get_dummy_value()

    return types.void(rows, types.int64, types.float32, types.int64, types.int64), codegen


@intrinsic
def _put_swiglu(typing: Any, rows: Any, gate: Any, up: Any, to: Any) -> Any:
    """silu(gate) * up of 16 float32 each, to a block of `rows`; silu(x) is x * sigmoid(x), from
    exp(-|x|)."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        _, gate, up, to = args
        x, one = load(b, VF32, gate), fill(VF32, 1.0)
        small = exp_neg(b, b.fneg(size(b, x)))
        share = b.select(b.fcmp_ordered(">", x, fill(VF32, 0.0)), one, small)
        sigmoid = b.fdiv(share, b.fadd(one, small))
        product = b.fmul(b.fmul(x, sigmoid), load(b, VF32, up))
        put_numbers(b, product, sig.args[0].dtype, to)
        return context.get_dummy_value()

    return types.void(rows, *[types.int64] * 3), codegen


@bare
def norm_row(x: Float32, weight: Float32, eps: float, rows: Array, row: int) -> None:
    """RMSNorm of x [width] into a row."""
    scale = root_mean_square(x, eps)
    to, step = find_row(rows, row, 0), step_of(rows)
    for block in range(rows.shape[1]):
        at = block * _VECTOR
        _put_scaled(rows, address(x) + at, scale, address(weight) + at, to + block * step)


@bare
def swiglu_row(gate_up: Float32, rows: Array, row: int) -> None:
    """silu(gate) * up of gate_up [2 * width] into a row."""
    blocks = rows.shape[1]
    gate, up = address(gate_up), address(gate_up) + blocks * _VECTOR
    to, step = find_row(rows, row, 0), step_of(rows)
    for block in range(blocks):
        at = block * _VECTOR
        _put_swiglu(rows, gate + at, up + at, to + block * step)
