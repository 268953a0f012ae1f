"""The checksum of a page, alone or in one pass with a copy, without the GIL.

Eight polynomial hashes modulo 2^64 with an odd factor, one for each word of a line of 64 bytes,
folded into one number: any single changed word changes it, as do moved words.

    source   | line | line | line | ... | rest      line k: state = state * factor + line k
                |      |      |                     rest:   the same by words, in the first lane
    target   | line | line | line | ... | rest

Lines are stored past the caches: a plain store reads each line from memory before it overwrites it,
which is a third of all traffic, and what comes back is more than caches keep until it is used.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from tokenix.drivers.cpu.jit import cgutils, intrinsic, kernel
from tokenix.drivers.cpu.lanes import I32, I64, load, pointer, store
from tokenix.drivers.cpu.numbers import address

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_LANES = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LINE = ir.VectorType(I64, _LANES)
_LINE_BYTES = 8 * _LANES


def _emit_lines(b: Any, source: Any, target: Any | None, lines: Any, state: Any) -> None:
    """Add lines to the state at an address, and copy them if there is a target. All addresses are
    multiples of 8."""
    total = cgutils.alloca_once(b, _LINE)
    b.store(load(b, _LINE, state, align=8), total)
    factor = ir.Constant(_LINE, [int(_FACTOR)] * _LANES)
    with cgutils.for_range(b, lines, intp=I64) as loop:
        at = b.mul(loop.index, ir.Constant(I64, _LINE_BYTES))
        line = load(b, _LINE, b.add(source, at), align=8)
        if target is not None:
            stored = b.store(line, pointer(b, b.add(target, at), _LINE))
            stored.align = 8
            stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))
        b.store(b.add(b.mul(b.load(total), factor), line), total)
    store(b, b.load(total), state, align=8)
    if target is not None:
        b.fence("seq_cst")  # such stores may else be seen after those that tell of them


@intrinsic
def _copy_lines(typing: Any, source: Any, target: Any, lines: Any, state: Any) -> Any:
    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        _emit_lines(b, *args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def _sum_lines(typing: Any, source: Any, lines: Any, state: Any) -> Any:
    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        _emit_lines(b, args[0], None, args[1], args[2])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@kernel
def _new_state() -> Words:
    state = np.empty(_LANES, np.uint64)
    for lane in range(_LANES):
        state[lane] = np.uint64(lane + 1)
    return state


@kernel
def _fold(state: Words, words: int) -> np.uint64:
    total = np.uint64(words)
    for lane in range(_LANES):
        mixed = state[lane] ^ (state[lane] >> np.uint64(29))
        total = total * _FACTOR + mixed
    return np.uint64(total ^ (total >> np.uint64(32)))


@kernel
def copy_checksum(source: Words, target: Words) -> np.uint64:
    """Copy source to target [n], both contiguous, and return the checksum of what was copied."""
    state, lines = _new_state(), len(source) // _LANES
    _copy_lines(address(source), address(target), lines, address(state))
    for rest in range(lines * _LANES, len(source)):
        target[rest] = source[rest]
        state[0] = state[0] * _FACTOR + source[rest]
    return _fold(state, len(source))


@kernel
def copy_checksums(
    source: Words, rows: Rows, target: Words, to_rows: Rows, words: int, found: Words
) -> None:
    """Copy the first `words` of source[rows[i]] to target[to_rows[i]], all i, one after another;
    found[i] becomes the checksum of what was copied."""
    for i in range(len(rows)):
        found[i] = copy_checksum(source[rows[i], :words], target[to_rows[i], :words])


@kernel
def checksum(source: Words) -> np.uint64:
    """What `copy_checksum` returns, without a copy."""
    state, lines = _new_state(), len(source) // _LANES
    _sum_lines(address(source), lines, address(state))
    for rest in range(lines * _LANES, len(source)):
        state[0] = state[0] * _FACTOR + source[rest]
    return _fold(state, len(source))
