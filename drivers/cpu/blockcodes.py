"""A block of weights in registers: where formats differ, for all that reads packed weights.

read_block(b, form, at)
    codes    8 registers, [16 rows][4 steps of k] of unsigned bytes, for quads 0 to 7
    scale    16 float32
    low      likewise, or None
    sizes    16 int32 for each part of the block that has sizes of its own: two, or none
"""

from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.blocks import (
    BYTES,
    CODE_BYTES,
    FIVES,
    FORMS,
    NIBBLES,
    QUADS,
    SIXES,
    UPPER_BITS,
)
from tokenix.drivers.cpu.jit import intrinsic
from tokenix.drivers.cpu.lanes import F16, I8, LANES, VF32, VI32, fill, load, store, switch

ZEROS = {SIXES: 32, BYTES: 128}
"""What the codes of a format without lows are too large by."""

_REGISTER = 64
_VF16, _VI8 = ir.VectorType(F16, LANES), ir.VectorType(I8, LANES)


class Block(NamedTuple):
    """Emitted values, as above."""

    codes: list[Any]
    scale: Any
    low: Any
    sizes: list[Any]


def read_block(b: Any, form: int, at: Any) -> Block:
    """The block at an address."""
    numbers = CODE_BYTES[form]
    scale = b.fpext(load(b, _VF16, at, numbers, 2 * LANES), VF32)
    low, sizes = None, []
    if form in (NIBBLES, FIVES):
        low = b.fpext(load(b, _VF16, at, numbers + 2 * LANES, 2 * LANES), VF32)
    elif form == SIXES:
        places = (numbers + 2 * LANES, numbers + 3 * LANES)
        sizes = [b.sext(load(b, _VI8, at, place, LANES), VI32) for place in places]
    return Block(_read_codes(b, form, at), scale, low, sizes)


def _read_codes(b: Any, form: int, at: Any) -> list[Any]:
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


def _emit_numbers(b: Any, form: int, at: Any, out: Any) -> None:
    block = read_block(b, form, at)
    zero = fill(VI32, ZEROS.get(form, 0))
    for quad, codes in enumerate(block.codes):
        scale = block.scale
        if block.sizes:
            size = block.sizes[quad * len(block.sizes) // QUADS]
            scale = b.fmul(scale, b.sitofp(size, VF32))
        for step in range(4):
            code = b.and_(b.lshr(codes, fill(VI32, 8 * step)), fill(VI32, 255))
            number = b.fmul(b.sitofp(b.sub(code, zero), VF32), scale)
            if block.low is not None:
                number = b.fadd(number, block.low)
            store(b, number, out, _REGISTER * (4 * quad + step))


@intrinsic
def block_numbers(typing: Any, form: Any, at: Any, out: Any) -> Any:
    """What a block stands for, to the address of float32 [32 k][16 rows]."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        form, at, out = args
        switch(b, form, FORMS, lambda each: _emit_numbers(b, each, at, out))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen
