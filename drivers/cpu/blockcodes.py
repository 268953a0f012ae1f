"""Weights in registers: where formats differ, for all that reads them packed.

read_codes(b, form, at)      of a block: 8 registers, [16 rows][4 steps of k] of unsigned bytes,
                             for quads 0 to 7
read_numbers(b, form, at)    of the pair of blocks that begins there
"""

from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.blocks import (
    BLOCK,
    BLOCK_BYTES,
    BYTES,
    CODE_BYTES,
    DROPPED,
    FORMS,
    LOW_STEP,
    QUADS,
    SCALE_STEP,
    SIXES,
    UPPER_BITS,
    ZEROS,
)
from tokenix.drivers.cpu.jit import intrinsic
from tokenix.drivers.cpu.lanes import I32, LANES, VF32, VI32, fill, load, shift, store, switch

_REGISTER = 64


class Numbers(NamedTuple):
    """Emitted values of a pair, int16 [16 rows][2] as int32 [16 rows]."""

    scales: list[Any]
    """One: of the two blocks; SIXES two: of the halves of each."""
    lows: Any
    """Of the two blocks, or None."""


def read_numbers(b: Any, form: int, at: Any) -> Numbers:
    """Of the pair at an address."""
    places = [CODE_BYTES[form], BLOCK_BYTES[form] + CODE_BYTES[form]]
    if form == BYTES:
        eight = ir.VectorType(I32, LANES // 2)
        halves = [load(b, eight, at, place, 32) for place in places]
        return Numbers([b.shuffle_vector(*halves, ir.Constant(VI32, list(range(LANES))))], None)
    first, second = (load(b, VI32, at, place, 32) for place in places)
    return Numbers([first, second], None) if form == SIXES else Numbers([first], second)


def read_codes(b: Any, form: int, at: Any) -> list[Any]:
    """Of the block at an address."""
    stored = CODE_BYTES[form] // _REGISTER
    whole = [load(b, VI32, at, _REGISTER * i, 32) for i in range(stored)]
    if form == BYTES:
        return whole
    lower = [_cut(b, each, first, 4, 0) for first in (0, 4) for each in whole[:4]]
    bits = UPPER_BITS[form]
    if not bits:
        return lower
    each = QUADS // bits
    upper = [_cut(b, whole[4 + q // each], q % each * bits, bits, 4) for q in range(QUADS)]
    return [b.or_(low, high) for low, high in zip(lower, upper, strict=True)]


def _cut(b: Any, register: Any, first: int, count: int, to: int) -> Any:
    """Of each byte `count` bits from bit `first` on, moved to bit `to`; the rest is zero."""
    if first > to:
        register = b.lshr(register, fill(VI32, first - to))
    elif first < to:
        register = b.shl(register, fill(VI32, to - first))
    mask = ((1 << count) - 1 << to) * 0x01010101
    return b.and_(register, fill(VI32, mask - (mask >> 31 << 32)))


def _emit_numbers(b: Any, form: int, at: Any, units: Any, out: Any) -> None:
    numbers = read_numbers(b, form, at)
    unit = b.fmul(load(b, VF32, units), fill(VF32, SCALE_STEP / (1 << DROPPED[form])))
    low_unit = b.fmul(load(b, VF32, units), fill(VF32, LOW_STEP))
    for block in (0, 1):
        for quad, codes in enumerate(read_codes(b, form, shift(b, at, BLOCK_BYTES[form] * block))):
            which, part = divmod(2 * block + quad // 4 if form == SIXES else block, 2)
            own = b.fmul(_half(b, numbers.scales[which], part), unit)
            low = None
            if numbers.lows is not None:
                low = b.fmul(_half(b, numbers.lows, part), low_unit)
            for step in range(4):
                code = b.and_(b.lshr(codes, fill(VI32, 8 * step)), fill(VI32, 255))
                number = b.fmul(b.sitofp(b.sub(code, fill(VI32, ZEROS[form])), VF32), own)
                if low is not None:
                    number = b.fadd(number, low)
                store(b, number, out, _REGISTER * (BLOCK * block + 4 * quad + step))


def _half(b: Any, words: Any, which: int) -> Any:
    """The first or the second int16 of each row, as float32."""
    first = b.shl(words, fill(VI32, 16)) if which == 0 else words
    return b.sitofp(b.ashr(first, fill(VI32, 16)), VF32)


@intrinsic
def pair_numbers(typing: Any, form: Any, at: Any, units: Any, out: Any) -> Any:
    """What a pair stands for, to the address of float32 [64 k][16 rows]; units: address of the
    group's."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        form, at, units, out = args
        switch(b, form, FORMS, lambda each: _emit_numbers(b, each, at, units, out))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
