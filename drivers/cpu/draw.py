"""One token out of one row of scores: the compiled part of `sampling.py`.

Weights are exp((score - best) / temperature) in float32, added up by blocks in one fixed order, so
that a draw depends on its row alone. What top_k and top_p keep is found without sorting the
vocabulary: scores above a bar are collected, and the bar sinks until there are enough of them.

    scores   | block | block | block | ...      peaks: the greatest score of each
                 ^ only blocks whose peak is above the bar are looked at
"""

import numpy as np

from tokenix.drivers.cpu.jit import Array, Float32, Float64, Int64, kernel
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.numbers import exp_neg

BLOCK = 512
MOST = 4096
"""Candidates that are sorted here."""
WIDE = -1
"""In place of a token: there are more candidates."""

_LEAST = np.float32(-80.0)
"""exp of less is 0 here."""


_LOWEST = -np.finfo(np.float64).max
"""Below all scores but -inf."""


@kernel
def find_peaks(scores: Array) -> Float64:
    """The greatest score of each block, as float64. Scores are numbers or -inf."""
    blocks = (len(scores) + BLOCK - 1) // BLOCK
    peaks = np.empty(blocks, np.float64)
    best = np.empty(LANES, scores.dtype)
    for block in range(blocks):
        first, last = block * BLOCK, min((block + 1) * BLOCK, len(scores))
        best[:] = -np.inf
        whole = first + (last - first) // LANES * LANES
        for at in range(first, whole, LANES):
            for lane in range(LANES):
                x = scores[at + lane]
                best[lane] = x if x > best[lane] else best[lane]
        for at in range(whole, last):
            best[0] = max(best[0], scores[at])
        peaks[block] = best.max()
    return peaks


@kernel
def _weigh(scores: Array, best: float, inverse: float, floor: float, out: Float32) -> None:
    """The weights of some scores; 0 below `floor`. inverse: 1 / temperature, perhaps infinite."""
    factor, least = np.float32(inverse), np.float32(floor)
    for i in range(len(scores)):
        below = np.float32(scores[i] - best)
        x = np.float32(0.0) if below == np.float32(0.0) else np.float32(below * factor)
        weight = exp_neg(x if x > _LEAST else _LEAST)
        out[i] = weight if x > _LEAST and weight >= least else np.float32(0.0)


@kernel
def _fold(weights: Float32) -> float:
    """The sum of BLOCK weights, which are overwritten: halves onto each other, again and again."""
    half = BLOCK // 2
    while half:
        for i in range(half):
            weights[i] += weights[half + i]
        half //= 2
    return float(weights[0])


@kernel
def _sum_blocks(
    scores: Array, peaks: Float64, best: float, inverse: float, floor: float
) -> Float64:
    """The weights of each block, added up."""
    sums, weights = np.empty(len(peaks), np.float64), np.empty(BLOCK, np.float32)
    for block in range(len(peaks)):
        some = scores[block * BLOCK : (block + 1) * BLOCK]
        weights[len(some) :] = 0.0
        _weigh(some, best, inverse, floor, weights)
        sums[block] = _fold(weights)
    return sums


@kernel
def log_sum_exp(scores: Array, peaks: Float64) -> float:
    """The logarithm of the sum of exp(score)."""
    best, total = peaks.max(), 0.0
    for part in _sum_blocks(scores, peaks, best, 1.0, 0.0):
        total += part
    return float(best + np.log(total))


@kernel
def draw_any(scores: Array, temperature: float, min_p: float, u: float) -> int:
    """Out of all scores, in the order of ids; u in [0, 1)."""
    peaks = find_peaks(scores)
    best, inverse, total = peaks.max(), 1.0 / temperature, 0.0
    sums = _sum_blocks(scores, peaks, best, inverse, min_p)
    for part in sums:
        total += part
    target, before, chosen = u * total, 0.0, 0
    for block in range(len(sums)):
        if sums[block] > 0.0:
            chosen = block  # the last one of weight, should rounding leave none behind the target
            if before + sums[block] > target:
                break
            before += sums[block]
    some, weights = scores[chosen * BLOCK : (chosen + 1) * BLOCK], np.empty(BLOCK, np.float32)
    _weigh(some, best, inverse, min_p, weights)
    return chosen * BLOCK + _draw_one(weights[: len(some)], target - before)


@kernel
def _draw_one(weights: Float32, target: float) -> int:
    """The first one at which the running sum is above the target, or else the last of weight."""
    running, chosen = 0.0, 0
    for i in range(len(weights)):
        if weights[i] > np.float32(0.0):
            chosen = i
            running += float(weights[i])
            if running > target:
                break
    return chosen


@kernel
def _collect(scores: Array, peaks: Float64, bar: float, ids: Int64) -> int:
    """The ids of scores from the bar on, in order; how many there are, or one more than there is
    room for."""
    found = 0
    for block in range(len(peaks)):
        if peaks[block] >= bar:
            for i in range(block * BLOCK, min((block + 1) * BLOCK, len(scores))):
                if scores[i] >= bar:
                    if found == len(ids):
                        return found + 1
                    ids[found] = i
                    found += 1
    return found


@kernel
def _sort(scores: Array, ids: Int64) -> Int64:
    """Greatest scores first, ties to the lowest id; ids are in order."""
    keys = np.empty(len(ids), np.float64)
    for i in range(len(ids)):
        keys[i] = -scores[ids[i]]
    return ids[np.argsort(keys, kind="mergesort")]


@kernel
def _find_likely(
    scores: Array, peaks: Float64, unit: float, count: int, mass: float, inverse: float
) -> Int64:
    """Ids of at least `count` of the greatest scores, and of as many as weigh `mass` together, the
    greatest first; all that are not -inf, if that is fewer. Empty: more than MOST would have to be
    sorted. unit: by which the bar sinks at first."""
    best, ids = peaks.max(), np.empty(MOST, np.int64)
    weights = np.empty(MOST, np.float32)
    some = np.empty(MOST, scores.dtype)
    enough, short, reach = np.inf, 0.0, unit
    while True:
        found = _collect(scores, peaks, max(best - reach, _LOWEST), ids)
        held = 0.0
        if found <= MOST:
            for i in range(found):
                some[i] = scores[ids[i]]
            _weigh(some[:found], best, inverse, 0.0, weights)
            for i in range(found):
                held += float(weights[i])
            if reach == np.inf or found == len(scores) or (found >= count and held >= mass):
                return _sort(scores, ids[:found])
            short = reach
        elif reach == np.inf:
            return ids[:0]
        else:
            enough = reach
        if enough == np.inf:
            reach = 2.0 * reach if reach < 1e30 else np.inf
        elif enough - short > 0.02 * enough:
            reach = 0.5 * (short + enough)
        else:
            return ids[:0]


@kernel
def find_largest(scores: Array, peaks: Float64, count: int) -> Int64:
    """Ids of the `count` largest, greatest first, ties to the lowest id. Empty if that takes the
    sorting of more than MOST."""
    return _find_likely(scores, peaks, 1.0, count, 0.0, 1.0)[:count]


@kernel
def draw_likely(
    scores: Array, temperature: float, top_k: int, top_p: float, min_p: float, u: float
) -> int:
    """Out of the most likely, these first. top_k: above 0, all if it is the whole vocabulary; WIDE
    if more than MOST are to be sorted."""
    peaks = find_peaks(scores)
    best, inverse, total = peaks.max(), 1.0 / temperature, 0.0
    if top_k < len(scores):
        ids = find_largest(scores, peaks, top_k)
    else:
        for part in _sum_blocks(scores, peaks, best, inverse, 0.0):
            total += part
        ids = _find_likely(scores, peaks, temperature, 1, top_p * total, inverse)
    if len(ids) == 0:
        return WIDE
    weights, some = np.empty(len(ids), np.float32), np.empty(len(ids), scores.dtype)
    for i in range(len(ids)):
        some[i] = scores[ids[i]]
    _weigh(some, best, inverse, 0.0, weights)
    if top_k < len(scores):
        for weight in weights:
            total += float(weight)
    count, kept = 0, 0.0
    while count < len(ids):
        if count > 0 and (kept >= top_p * total or weights[count] < np.float32(min_p)):
            break
        kept += float(weights[count])
        count += 1
    return int(ids[_draw_one(weights[:count], u * kept)])


@kernel
def draw_rows(
    scores: Float32,
    starts: Int64,
    vocab: int,
    temperatures: Float64,
    top_ks: Int64,
    top_ps: Float64,
    min_ps: Float64,
    numbers: Float64,
) -> Int64:
    """A token, or WIDE, for each row of `vocab` scores that begins at one of `starts`: in one call,
    since each lets go of the interpreter and may have to wait for it afterwards."""
    found = np.empty(len(starts), np.int64)
    for i in range(len(starts)):
        row = scores[starts[i] : starts[i] + vocab]
        if top_ks[i] == vocab and top_ps[i] >= 1.0:
            found[i] = draw_any(row, temperatures[i], min_ps[i], numbers[i])
        else:
            found[i] = draw_likely(
                row, temperatures[i], top_ks[i], top_ps[i], min_ps[i], numbers[i]
            )
    return found
