"""A Hadamard matrix times a group of numbers, 16 lanes at a time.

    size 2n    (x, y) -> (H x + H y, H x - H y)      x, y: halves of n

In a vector the halves are lanes that differ in one bit: a lane adds its partner to itself, or to
minus itself where the bit is set.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import Float32, bare, intrinsic
from tokenix.drivers.cpu.lanes import LANES, VF32, VI32, load, store
from tokenix.drivers.cpu.numbers import address


@intrinsic
def _turn_lanes(typing: Any, at: Any) -> Any:
    """The matrix of size 16 times 16 float32 at an address, in place."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, half = load(b, VF32, args[0]), 1
        while half < LANES:
            partners = ir.Constant(VI32, [lane ^ half for lane in range(LANES)])
            minus = [-(2**31) if lane & half else 0 for lane in range(LANES)]
            signed = b.bitcast(b.xor(b.bitcast(x, VI32), ir.Constant(VI32, minus)), VF32)
            x = b.fadd(b.shuffle_vector(x, x, partners), signed)
            half *= 2
        store(b, x, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@bare
def turn(x: Float32, factor: float) -> None:
    """x becomes factor * (the matrix of its length, a power of two from 16 on) x. Twice with factor
    1 gives x * length."""
    for first in range(0, len(x), LANES):
        _turn_lanes(address(x) + first * 4)
    half = LANES
    while half < len(x):
        for first in range(0, len(x), 2 * half):
            for i in range(first, first + half):
                a, b = x[i], x[i + half]
                x[i], x[i + half] = a + b, a - b
        half *= 2
    for i in range(len(x)):
        x[i] *= np.float32(factor)
