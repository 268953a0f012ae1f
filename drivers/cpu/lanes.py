"""Sixteen numbers side by side: the LLVM building blocks of kernels.

These functions emit code into a builder `b` while a kernel is compiled. Addresses are int64 values
in bytes. Only portable LLVM operations are used: on any processor they compute the same bits.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from llvmlite import ir

from tokenix.drivers.cpu.jit import cgutils

LANES = 16
"""Width of a vector; packed matrices, pages and heads are whole multiples of it."""

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32 = ir.HalfType(), ir.FloatType()
VI32, VF32 = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)

ROUND = 12582912.0
"""1.5 * 2**23: what is added to it is rounded to a whole number, nearest even, in the low bits."""
_EXP2 = (
    1.5252733804e-5, 1.5403530393e-4, 1.3333558146e-3, 9.6181291076e-3, 5.5504108665e-2,
    2.4022650696e-1, 6.9314718056e-1, 1.0,
)  # fmt: skip
"""Taylor series of 2**f, highest power first."""
_LOG2E = float(np.float32(1.4426950408889634))


def pointer(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def shift(b: Any, address: Any, offset: int) -> Any:
    """The address `offset` bytes on."""
    return b.add(address, ir.Constant(I64, offset)) if offset else address


def load(b: Any, kind: Any, address: Any, offset: int = 0, align: int = 4) -> Any:
    value = b.load(pointer(b, shift(b, address, offset), kind))
    value.align = align
    return value


def store(b: Any, value: Any, address: Any, offset: int = 0, align: int = 4) -> None:
    stored = b.store(value, pointer(b, shift(b, address, offset), value.type))
    stored.align = align


def splat(b: Any, scalar: Any) -> Any:
    """The scalar in all lanes."""
    empty = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = b.insert_element(empty, scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(first, empty, ir.Constant(VI32, [0] * LANES))


def fill(kind: Any, number: float) -> Any:
    """A constant of a vector type with the number in all lanes."""
    return ir.Constant(kind, [number] * kind.count)


def call(b: Any, name: str, kind: Any, args: list[Any]) -> Any:
    """Of an LLVM function whose arguments and result are all of one type."""
    signature = ir.FunctionType(kind, [kind] * len(args))
    return b.call(cgutils.get_or_insert_function(b.module, signature, name), args)


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z in each lane, rounded once."""
    return call(b, "llvm.fma.v16f32", VF32, [x, y, z])


def size(b: Any, x: Any) -> Any:
    """|x| in each lane."""
    return call(b, "llvm.fabs.v16f32", VF32, [x])


def larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def fold(b: Any, vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes into a scalar: the upper half onto the lower one, until one is left."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        empty = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            b.shuffle_vector(vector, empty, ir.Constant(ir.VectorType(I32, half), lanes))
            for lanes in (list(range(half)), list(range(half, 2 * half)))
        )
        vector = combine(b, low, high)
    return b.extract_element(vector, ir.Constant(I32, 0))


def add_floats(b: Any, x: Any, y: Any) -> Any:
    return b.fadd(x, y)


def exp_neg(b: Any, x: Any) -> Any:
    """exp(x) for x <= 0 in each lane, relative error about 1e-7 * (1 + |x|); not-a-number stays so.

    2**n * p(f) with n = round(x / ln 2) and f in [-1/2, 1/2].
    """
    t = b.fmul(x, fill(VF32, _LOG2E))
    low = fill(VF32, -126.0)
    t = b.select(b.fcmp_ordered("<", t, low), low, t)
    shifted = b.fadd(t, fill(VF32, ROUND))
    f = b.fsub(t, b.fsub(shifted, fill(VF32, ROUND)))
    p = fill(VF32, float(np.float32(_EXP2[0])))
    for factor in _EXP2[1:]:
        p = fma(b, p, f, fill(VF32, float(np.float32(factor))))
    exponent = b.add(b.bitcast(shifted, VI32), fill(VI32, 127))
    return b.fmul(p, b.bitcast(b.shl(exponent, fill(VI32, 23)), VF32))


def switch(b: Any, value: Any, cases: Iterable[int], emit: Callable[[int], None]) -> None:
    """Code for each of the values that an int64 may have."""
    after = b.append_basic_block("after")
    choice = b.switch(value, after)
    for case in cases:
        block = b.append_basic_block(f"case{case}")
        choice.add_case(ir.Constant(I64, case), block)
        b.position_at_end(block)
        emit(case)
        b.branch(after)
    b.position_at_end(after)


def prefetch(b: Any, address: Any, level: int) -> None:
    """Ask for the cache line at an address, which need not be a valid one; level: of the cache."""
    byte = I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    numbers = [ir.Constant(I32, number) for number in (0, 4 - level, 1)]
    b.call(function, [pointer(b, address, I8), *numbers])


def fetch_lines(b: Any, place: Any, lines: Any) -> None:
    """Ask for so many cache lines from the address in a variable on, which is moved behind them."""
    address = b.load(place)
    with cgutils.for_range(b, lines, intp=I64) as loop:
        prefetch(b, b.add(address, b.shl(loop.index, ir.Constant(I64, 6))), 2)
    b.store(b.add(address, b.shl(lines, ir.Constant(I64, 6))), place)


def call_address(b: Any, address: Any, numbers: list[Any]) -> None:
    """Call what is at an address with int64 arguments, see `jit.entry_point`."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(numbers))
    b.call(pointer(b, address, kind), numbers)
