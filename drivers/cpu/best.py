"""The best token of a row of logits: part of a pass, so that all threads look for it."""

from typing import Any

from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import cgutils, intrinsic
from tokenix.drivers.cpu.lanes import (
    F32,
    I32,
    I64,
    LANES,
    VF32,
    VI32,
    add_floats,
    fill,
    fma,
    fold,
    larger,
    load,
    splat,
)

NOT_FINITE = -1
"""In place of a token."""


@intrinsic
def find_best(typing: Any, logits: Any, count: Any) -> Any:
    """Which of `count` float32 at an address is the largest, the first of equal ones; NOT_FINITE if
    one is not finite. There is memory for whole lines of 16."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        at, count = args
        lowest, zero = fill(VF32, float("-inf")), fill(VF32, 0.0)
        best, spoiled = (cgutils.alloca_once_value(b, each) for each in (lowest, zero))
        where = cgutils.alloca_once_value(b, fill(VI32, 0))
        left, lanes = b.trunc(count, I32), ir.Constant(VI32, list(range(LANES)))
        lines = b.udiv(b.add(count, ir.Constant(I64, LANES - 1)), ir.Constant(I64, LANES))
        with cgutils.for_range(b, lines, intp=I64) as loop:
            ids = b.add(splat(b, b.trunc(b.shl(loop.index, ir.Constant(I64, 4)), I32)), lanes)
            known = b.icmp_signed("<", ids, splat(b, left))
            x = load(b, VF32, b.add(at, b.shl(loop.index, ir.Constant(I64, 6))))
            # Times zero: 0, or not a number.
            b.store(fma(b, b.select(known, x, zero), zero, b.load(spoiled)), spoiled)
            x = b.select(known, x, lowest)
            more = b.fcmp_ordered(">", x, b.load(best))
            b.store(b.select(more, x, b.load(best)), best)
            b.store(b.select(more, ids, b.load(where)), where)
        top = splat(b, fold(b, b.load(best), larger))
        same = b.fcmp_ordered("==", b.load(best), top)
        first = fold(b, b.select(same, b.load(where), fill(VI32, 0x7FFFFFFF)), _lower)
        whole = b.fcmp_ordered("==", fold(b, b.load(spoiled), add_floats), ir.Constant(F32, 0.0))
        return b.sext(b.select(whole, first, ir.Constant(I32, NOT_FINITE)), I64)

    return types.int64(types.int64, types.int64), codegen


def _lower(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed("<", x, y), x, y)
