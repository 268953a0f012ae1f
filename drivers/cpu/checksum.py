"""The checksum of a page, alone or in one pass with a copy, without the GIL."""

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cpu.jit import kernel

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_LANES = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _fold(state: Words, words: int) -> np.uint64:
    total = np.uint64(words)
    for lane in range(_LANES):
        mixed = state[lane] ^ (state[lane] >> np.uint64(29))
        total = total * _FACTOR + mixed
    return np.uint64(total ^ (total >> np.uint64(32)))


@kernel
def copy_checksum(source: Words, target: Words) -> np.uint64:
    """Copy source to target [n] and return the checksum of what was copied.

    Eight polynomial hashes modulo 2^64 with an odd factor, folded into one: any single changed
    word changes it, as do moved words.
    """
    state = np.empty(_LANES, np.uint64)
    for lane in range(_LANES):
        state[lane] = np.uint64(lane + 1)
    whole = len(source) // _LANES * _LANES
    for first in range(0, whole, _LANES):
        for lane in range(_LANES):
            word = source[first + lane]
            target[first + lane] = word
            state[lane] = state[lane] * _FACTOR + word
    for rest in range(whole, len(source)):
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
    state = np.empty(_LANES, np.uint64)
    for lane in range(_LANES):
        state[lane] = np.uint64(lane + 1)
    whole = len(source) // _LANES * _LANES
    for first in range(0, whole, _LANES):
        for lane in range(_LANES):
            state[lane] = state[lane] * _FACTOR + source[first + lane]
    for rest in range(whole, len(source)):
        state[0] = state[0] * _FACTOR + source[rest]
    return _fold(state, len(source))
