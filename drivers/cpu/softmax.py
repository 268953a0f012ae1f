"""The softmax of attention, but for the division by its sum, as LLVM vector code."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import bare, cgutils, intrinsic
from tokenix.drivers.cpu.lanes import (
    I32,
    I64,
    LANES,
    VF32,
    VI32,
    add_floats,
    exp_neg,
    fill,
    fold,
    larger,
    load,
    shift,
    splat,
    store,
    switch,
)

ROWS = 4
"""Slots that take turns in a loop: one alone would wait for each step of its polynomial."""
_ROW = ir.Constant(I64, 4 * LANES)


@intrinsic
def _weigh(
    typing: Any, rows: Any, scores: Any, stride: Any, first: Any, group: Any, position: Any,
    blocks: Any, sums: Any,
) -> Any:  # fmt: skip
    """`softmax` of 1 to ROWS slots, from `first` on."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        switch(b, args[0], range(1, ROWS + 1), lambda rows: _emit(b, rows, args[1:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


def _emit(b: Any, rows: int, args: Any) -> None:
    """The largest score of each row, then its weights and their sum."""
    scores, stride, first, group, position, blocks, sums = args
    lowest, nothing, zero = fill(VF32, float("-inf")), fill(VF32, 0.0), ir.Constant(I64, 0)
    most, totals = ([cgutils.alloca_once(b, VF32) for _ in range(rows)] for _ in range(2))
    for row in range(rows):
        b.store(lowest, most[row])
        b.store(nothing, totals[row])
    ends = [b.add(position, b.udiv(shift(b, first, row), group)) for row in range(rows)]
    seen = b.lshr(shift(b, ends[0], 1), ir.Constant(I64, 4))
    lanes, start = ir.Constant(VI32, list(range(LANES))), b.add(scores, b.mul(first, _ROW))

    def each(begin: Any, end: Any, masked: bool, work: Callable[[int, Any, Any], None]) -> None:
        """work(row, address of 16 scores, which of them are seen or None) for some blocks"""
        with cgutils.for_range(b, b.sub(end, begin), intp=I64) as loop:
            block = b.add(begin, loop.index)
            at = b.add(start, b.mul(block, stride))
            for row in range(rows):
                left = b.sub(ends[row], b.shl(block, ir.Constant(I64, 4)))
                last = splat(b, b.trunc(left, I32))
                known = b.icmp_signed("<=", lanes, last) if masked else None
                work(row, shift(b, at, row * LANES * 4), known)

    def compare(row: int, at: Any, known: Any) -> None:
        x = load(b, VF32, at)
        x = x if known is None else b.select(known, x, lowest)
        b.store(larger(b, x, b.load(most[row])), most[row])

    each(zero, seen, False, compare)
    each(seen, blocks, True, compare)
    tops = [splat(b, fold(b, b.load(found), larger)) for found in most]

    def weigh(row: int, at: Any, known: Any) -> None:
        e = exp_neg(b, b.fsub(load(b, VF32, at), tops[row]))
        e = e if known is None else b.select(known, e, nothing)
        store(b, e, at)
        b.store(b.fadd(b.load(totals[row]), e), totals[row])

    each(zero, seen, False, weigh)
    each(seen, blocks, True, weigh)
    for row in range(rows):
        at = b.add(sums, b.shl(shift(b, first, row), ir.Constant(I64, 2)))
        store(b, fold(b, b.load(totals[row]), add_floats), at)


@bare
def softmax(scores: int, slots: int, group: int, position: int, blocks: int, sums: int) -> None:
    """exp(scores - the largest) of each slot over the keys that it sees, in place, and 0 for the
    others; and the sums of these.

    scores: address of float32 [blocks][slots][16 keys]; of slots (query, head) with `group` heads;
    the first query sees keys 0..position, the next one more; sums: address of float32 [slots], 16
    partial sums by index, then their halves onto each other.
    """
    first = 0
    while first < slots:
        rows = min(ROWS, slots - first)
        _weigh(rows, scores, slots * LANES * 4, first, group, position, blocks, sums)
        first += rows
