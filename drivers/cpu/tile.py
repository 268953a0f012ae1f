"""The one arithmetic primitive of the driver, as LLVM vector code.

    out[t][lane] = sum over k = 0, 1, .., n-1 of w[k][lane] * x[k][t]      16 lanes, T columns

Dense layers (lanes are output rows), attention scores (lanes are keys) and the weighted sum of
values (lanes are dimensions) are all this. Each of the T x 16 sums is one chain of fused
multiply-adds in the order of k, so it does not depend on T, on t, or on what the other columns
hold: the reason why a row's result is bitwise the same in every batch.

`w` may be float32, float16 or bfloat16, told by the dtype of an array argument: Numba has no 16-bit
floats on CPUs, so int16 stands for the bits of float16 and uint16 for those of bfloat16.
Only portable LLVM operations are used (llvm.fma, fpext), no instructions of one processor.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import cgutils, intrinsic, kernel

LANES = 16
"""Width of a tile; packed matrices, pages and heads are whole multiples of it."""

OVERWRITE, ADD, CONTINUE = 0, 1, 2
"""What a tile does with `out`: store the sum, add the finished sum to it, or start from it."""

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F16, _F32 = ir.HalfType(), ir.FloatType()
_VF32 = ir.VectorType(_F32, LANES)
_LOG2E = np.float32(1.4426950408889634)
_ROUND = np.float32(12582912.0)

_BYTES = {types.float32: 4, types.int16: 2, types.uint16: 2}


def _pointer(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def _splat(b: Any, scalar: Any) -> Any:
    empty = ir.Constant(_VF32, ir.Undefined)
    first = b.insert_element(empty, scalar, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return b.shuffle_vector(first, empty, zeros)


def _load_lanes(b: Any, address: Any, dtype: Any) -> Any:
    """16 numbers of `dtype` at `address`, widened to float32 (exactly)."""
    element = {types.float32: _F32, types.int16: _F16, types.uint16: _I16}[dtype]
    lanes = b.load(_pointer(b, address, ir.VectorType(element, LANES)))
    lanes.align = _BYTES[dtype]
    if dtype is types.float32:
        return lanes
    if dtype is types.int16:
        return b.fpext(lanes, _VF32)
    wide = ir.VectorType(_I32, LANES)
    shift = ir.Constant(wide, [16] * LANES)
    return b.bitcast(b.shl(b.zext(lanes, wide), shift), _VF32)


def _load_sum(b: Any, address: Any) -> Any:
    value = b.load(_pointer(b, address, _VF32))
    value.align = 4
    return value


def _emit(b: Any, columns: int, dtype: Any, args: Any) -> None:
    """The body of a tile of `columns` columns."""
    w, x, out, count, stride, mode = args
    fma_type = ir.FunctionType(_VF32, [_VF32] * 3)
    fma = cgutils.get_or_insert_function(b.module, fma_type, "llvm.fma.v16f32")
    sums = [cgutils.alloca_once(b, _VF32) for _ in range(columns)]
    outs = [b.add(out, b.mul(stride, ir.Constant(_I64, t))) for t in range(columns)]
    for total in sums:
        b.store(ir.Constant(_VF32, [0.0] * LANES), total)
    with b.if_then(b.icmp_signed("==", mode, ir.Constant(_I64, CONTINUE))):
        for total, address in zip(sums, outs, strict=True):
            b.store(_load_sum(b, address), total)
    at_w, at_x = cgutils.alloca_once(b, _I64), cgutils.alloca_once(b, _I64)
    b.store(w, at_w)
    b.store(x, at_x)
    with cgutils.for_range(b, count, intp=_I64):
        here_w, here_x = b.load(at_w), b.load(at_x)
        lanes = _load_lanes(b, here_w, dtype)
        for t, total in enumerate(sums):
            scalar = b.load(_pointer(b, b.add(here_x, ir.Constant(_I64, 4 * t)), _F32))
            scalar.align = 4
            b.store(b.call(fma, [lanes, _splat(b, scalar), b.load(total)]), total)
        b.store(b.add(here_w, ir.Constant(_I64, LANES * _BYTES[dtype])), at_w)
        b.store(b.add(here_x, ir.Constant(_I64, 4 * columns)), at_x)
    with b.if_then(b.icmp_signed("==", mode, ir.Constant(_I64, ADD))):
        for total, address in zip(sums, outs, strict=True):
            b.store(b.fadd(b.load(total), _load_sum(b, address)), total)
    for total, address in zip(sums, outs, strict=True):
        stored = b.store(b.load(total), _pointer(b, address, _VF32))
        stored.align = 4


def _make_tile(columns: int) -> Callable[..., None]:
    """tile(like, w, x, out, count, stride, mode); addresses in bytes, stride bytes of `out`."""

    @intrinsic
    def tile(
        typing: Any, like: Any, w: Any, x: Any, out: Any, count: Any, stride: Any, mode: Any
    ) -> Any:
        signature = types.void(like, *[types.int64] * 6)

        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            _emit(b, columns, sig.args[0].dtype, args[1:])
            return context.get_dummy_value()

        return signature, codegen

    return tile


_tile1, _tile2, _tile4 = _make_tile(1), _make_tile(2), _make_tile(4)
_tile8, _tile16 = _make_tile(8), _make_tile(16)


@intrinsic
def address(typing: Any, array: Any) -> Any:
    """The address of an array's first element, an int64."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, b, args[0]).data
        return b.ptrtoint(data, _I64)

    return types.int64(array), codegen


@intrinsic
def store_rounded(typing: Any, like: Any, at: Any, value: Any) -> Any:
    """Store a float32 at an address in the dtype of `like`, rounded to nearest even."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, (_, where, number) = sig.args[0].dtype, args
        if dtype is types.float32:
            b.store(number, _pointer(b, where, _F32))
        elif dtype is types.int16:
            half = b.store(b.fptrunc(number, _F16), _pointer(b, where, _F16))
            half.align = 2
        else:
            bits = b.bitcast(number, _I32)
            odd = b.and_(b.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
            carried = b.add(bits, b.add(odd, ir.Constant(_I32, 0x7FFF)))
            nan = b.fcmp_unordered("uno", number, number)
            kept = b.select(nan, ir.Constant(_I32, 0x7FC00000), carried)
            top = b.trunc(b.lshr(kept, ir.Constant(_I32, 16)), _I16)
            b.store(top, _pointer(b, where, _I16))
        return context.get_dummy_value()

    return types.void(like, types.int64, types.float32), codegen


@intrinsic
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32] * 3)
        return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.fma.f32"), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def atomic_add(typing: Any, at: Any, value: Any) -> Any:
    """Add to the int64 at an address; returns what it was. Orders memory both ways."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _pointer(b, args[0], _I64), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typing: Any, at: Any) -> Any:
    """The int64 at an address; what was written before it was stored is seen after."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.load_atomic(_pointer(b, args[0], _I64), "acquire", 8)

    return types.int64(types.int64), codegen


@kernel
def tile(
    like: object, columns: int, w: int, x: int, out: int, count: int, stride: int, mode: int
) -> None:
    """One tile of 1, 2, 4, 8 or 16 columns; `x` is packed as [count][columns] float32."""
    if columns == 1:
        _tile1(like, w, x, out, count, stride, mode)
    elif columns == 2:
        _tile2(like, w, x, out, count, stride, mode)
    elif columns == 4:
        _tile4(like, w, x, out, count, stride, mode)
    elif columns == 8:
        _tile8(like, w, x, out, count, stride, mode)
    else:
        _tile16(like, w, x, out, count, stride, mode)


@kernel
def exp_neg(x: np.float32) -> np.float32:
    """exp(x) for x <= 0 in float32, relative error about 1e-7; not-a-number stays so.

    2**n * p(f) with n = round(x / ln 2) and f in [-1/2, 1/2]; p is the Taylor series of 2**f.
    """
    t = np.float32(x * _LOG2E)
    if t < np.float32(-126.0):
        t = np.float32(-126.0)
    shifted = np.float32(t + _ROUND)
    n = np.float32(shifted - _ROUND)
    f = np.float32(t - n)
    p = np.float32(1.5252733804e-5)
    p = np.float32(p * f + np.float32(1.5403530393e-4))
    p = np.float32(p * f + np.float32(1.3333558146e-3))
    p = np.float32(p * f + np.float32(9.6181291076e-3))
    p = np.float32(p * f + np.float32(5.5504108665e-2))
    p = np.float32(p * f + np.float32(2.4022650696e-1))
    p = np.float32(p * f + np.float32(6.9314718056e-1))
    p = np.float32(p * f + np.float32(1.0))
    exponent = (np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23)
    return np.float32(p * np.int32(exponent).view(np.float32))
