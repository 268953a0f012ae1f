"""Numbers as arrays hold them, 16 at a time, and what else kernels need of the processor.

What an array holds is told by its dtype. Numba has no 16-bit floats on CPUs and nothing below 8
bits, so integers stand for their bits; every number is widened to float32 exactly.

    float32  itself              int8     a whole number, -128 to 127
    int16    float16             uint8    float8 e4m3 with float16's exponents: times 2**-8
    uint16   bfloat16            uint32   4 bits of step k and, in the high halves, 4 of step k + 1
                                 uint64   4 bits of lanes 0-7 and, in the high halves, of lanes 8-15

The left ones are weights too, the right ones codes of keys and values alone.
Only portable LLVM operations are used (llvm.fma, fpext), no instructions of one processor.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import cgutils, intrinsic, kernel
from tokenix.drivers.cpu.lanes import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    LANES,
    ROUND,
    VF32,
    VI32,
    fill,
    load,
    pointer,
    prefetch,
    store,
)

_LOG2E = np.float32(1.4426950408889634)
_ROUND = np.float32(ROUND)

STEP = {
    types.float32: (64, 1), types.int16: (32, 1), types.uint16: (32, 1),
    types.int8: (16, 1), types.uint8: (16, 1), types.uint32: (16, 2), types.uint64: (8, 1),
}  # fmt: skip
"""What is read at once: bytes, and how many k they are."""
PLAIN = (types.float32, types.int16, types.uint16)
"""Numbers as they are."""


def load_lanes(b: Any, address: Any, dtype: Any) -> list[Any]:
    """The numbers at `address`, 16 of each k that is read at once, widened to float32 (exactly)."""
    if dtype in PLAIN:
        return [load_plain(b, address, dtype)]
    lanes = STEP[dtype][0]
    codes = b.load(pointer(b, address, ir.VectorType(I8, lanes)))
    codes.align = 1
    if dtype is types.int8:
        return [b.sitofp(b.sext(codes, VI32), VF32)]
    if dtype is types.uint8:
        bits = b.sext(codes, ir.VectorType(I16, LANES))
        moved = b.and_(
            b.shl(bits, fill(ir.VectorType(I16, LANES), 7)),
            fill(ir.VectorType(I16, LANES), -0x4080),
        )
        return [b.fpext(b.bitcast(moved, ir.VectorType(F16, LANES)), VF32)]
    low = b.and_(codes, fill(codes.type, 15))
    high = b.lshr(codes, fill(codes.type, 4))
    if dtype is types.uint32:
        return [b.uitofp(b.zext(half, VI32), VF32) for half in (low, high)]
    order = ir.Constant(VI32, list(range(LANES)))
    return [b.uitofp(b.zext(b.shuffle_vector(low, high, order), VI32), VF32)]


def load_plain(b: Any, address: Any, dtype: Any) -> Any:
    """16 numbers as they are, widened to float32 (exactly)."""
    element = {types.float32: F32, types.int16: F16, types.uint16: I16}[dtype]
    lanes = b.load(pointer(b, address, ir.VectorType(element, LANES)))
    lanes.align = STEP[dtype][0] // LANES
    if dtype is types.float32:
        return lanes
    if dtype is types.int16:
        return b.fpext(lanes, VF32)
    return b.bitcast(b.shl(b.zext(lanes, VI32), fill(VI32, 16)), VF32)


@intrinsic
def address(typing: Any, array: Any) -> Any:
    """The address of an array's first element, an int64."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, b, args[0]).data
        return b.ptrtoint(data, I64)

    return types.int64(array), codegen


def round_vector(b: Any, numbers: Any, dtype: Any) -> Any:
    """16 float32 in another dtype, rounded to nearest even."""
    if dtype is types.float32:
        return numbers
    if dtype is types.int16:
        return b.fptrunc(numbers, ir.VectorType(F16, LANES))
    bits = b.bitcast(numbers, VI32)
    odd = b.and_(b.lshr(bits, fill(VI32, 16)), fill(VI32, 1))
    carried = b.add(bits, b.add(odd, fill(VI32, 0x7FFF)))
    kept = b.select(b.fcmp_unordered("uno", numbers, numbers), fill(VI32, 0x7FC00000), carried)
    return b.trunc(b.lshr(kept, fill(VI32, 16)), ir.VectorType(I16, LANES))


@intrinsic
def store_rounded(typing: Any, like: Any, at: Any, value: Any) -> Any:
    """Store a float32 at an address in the dtype of `like`, rounded to nearest even."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, (_, where, number) = sig.args[0].dtype, args
        if dtype is types.float32:
            b.store(number, pointer(b, where, F32))
        elif dtype is types.int16:
            half = b.store(b.fptrunc(number, F16), pointer(b, where, F16))
            half.align = 2
        else:
            bits = b.bitcast(number, I32)
            odd = b.and_(b.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
            carried = b.add(bits, b.add(odd, ir.Constant(I32, 0x7FFF)))
            nan = b.fcmp_unordered("uno", number, number)
            kept = b.select(nan, ir.Constant(I32, 0x7FC00000), carried)
            top = b.trunc(b.lshr(kept, ir.Constant(I32, 16)), I16)
            b.store(top, pointer(b, where, I16))
        return context.get_dummy_value()

    return types.void(like, types.int64, types.float32), codegen


@intrinsic
def round_lanes(typing: Any, like: Any, at: Any, to: Any) -> Any:
    """16 float32 at an address to another one, each as `store_rounded` stores it."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, (_, at, to) = sig.args[0].dtype, args
        store(b, round_vector(b, load(b, VF32, at), dtype), to, 0, 2)
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), codegen


@intrinsic
def scatter_lanes(typing: Any, like: Any, at: Any, to: Any, stride: Any) -> Any:
    """As `round_lanes`, to places `stride` bytes apart."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dtype, (_, at, to, stride) = sig.args[0].dtype, args
        rounded = round_vector(b, load(b, VF32, at), dtype)
        for lane in range(LANES):
            number = b.extract_element(rounded, ir.Constant(I32, lane))
            store(b, number, b.add(to, b.mul(stride, ir.Constant(I64, lane))), 0, 2)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), codegen


@intrinsic
def widen(typing: Any, like: Any, at: Any, to: Any) -> Any:
    """16 numbers at an address, in the dtype of `like`, to another address as float32."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        lanes = load_plain(b, args[1], sig.args[0].dtype)
        stored = b.store(lanes, pointer(b, args[2], VF32))
        stored.align = 4
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), codegen


@intrinsic
def ask_for(typing: Any, at: Any) -> Any:
    """The cache line at an address, which need not be a valid one, will be read soon."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        prefetch(b, args[0], 1)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def atomic_add(typing: Any, at: Any, value: Any) -> Any:
    """Add to the int64 at an address; returns what it was. Orders memory both ways."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", pointer(b, args[0], I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typing: Any, at: Any) -> Any:
    """The int64 at an address; what was written before it was stored is seen after."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.load_atomic(pointer(b, args[0], I64), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def read_ticks(typing: Any) -> Any:
    """The processor's clock, int64: counts at one rate on all cores."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [])
        name = "llvm.readcyclecounter"
        return b.call(cgutils.get_or_insert_function(b.module, kind, name), [])

    return types.int64(), codegen


@kernel
def nearest(x: np.float32) -> np.float32:
    """The nearest whole number, the even one of two; for |x| < 2**22."""
    return np.float32(np.float32(x + _ROUND) - _ROUND)


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
