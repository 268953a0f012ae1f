"""A token of each row: the one that `drivers/cpu/sampling.py` draws, a block for each row.

    greedy                  the best
    temperature alone       sums of warps in the order of ids, then the warp where the draw falls
    with top_k or top_p     no sorting: where a sum over the tokens, the most likely first, is
                            enough is found digit by digit, for top_k, for top_p and for the draw

Weights are float64, as there. A logit and its id make one number, `rank`: the larger the more
likely, of equals the lower id; no two are the same. What threads add up in any order is added up
in integers, so that a draw is a function of its row.
"""

import math
from typing import Any

import numpy as np

from tokenix.drivers.cuda.kernels.abi import FAULT
from tokenix.drivers.cuda.kernels.words import (
    as_float,
    as_word,
    cuda,
    device,
    float32,
    float64,
    int32,
    int64,
    quotient,
    uint32,
    uint64,
)

THREADS = 512

MOST_VOCAB = 1 << 21
UNIT = 2.0**42
"""The largest weight, 1, as an integer: a vocabulary of them is less than 2**63."""

DIGITS, DIGIT_BITS, LAST_DIGIT = 128, np.uint64(7), np.uint64(127)
FIRST_SHIFT, LOGIT_SHIFT, ID_SHIFT = 57, 29, 14
"""Of a rank the first digit, the last one with bits of its logit, the first by which ids differ."""
SAME_IDS = np.uint64((1 << LOGIT_SHIFT) - MOST_VOCAB)
"""The bits between those."""
COPIES = 32
"""Of each sum: lanes of a warp do not wait for each other."""

AT_ONCE = 8
"""Logits that a thread has on their way before it looks at the first, as else it waits for each."""

COUNT, CUT, DRAW = 0, 1, 2

ALL = 0xFFFFFFFF
NOT_MINE = -9
"""No token: another thread has it."""

_SIGN = np.uint32(1 << 31)
_LOW = np.uint64(0xFFFFFFFF)
_ID = np.uint64((1 << LOGIT_SHIFT) - 1)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@device
def rank_of(logit: Any, token: Any) -> Any:
    """uint64: the logit's bits so that they sort, then how far the id is from the last."""
    bits = as_word(logit + float32(0.0))  # -0 is 0
    bits = uint32(~bits) if bits & _SIGN else uint32(bits | _SIGN)
    return uint64(bits) << uint64(32) | (_LOW - uint64(token))


@device
def _token_of(rank: Any) -> Any:
    return int32(_LOW - (rank & _LOW))


@device
def _logit_of(rank: Any) -> Any:
    bits = uint32(rank >> uint64(32))
    return as_float(uint32(bits ^ _SIGN) if bits & _SIGN else uint32(~bits))


@device
def _weight(logit: Any, best: Any, temperature: Any) -> Any:
    return math.exp((float64(logit) - float64(best)) / temperature)


@device
def _mix(x: Any) -> Any:
    """A round of splitmix64."""
    x = uint64(x + _GAMMA)
    x = uint64((x ^ (x >> uint64(30))) * _FIRST)
    x = uint64((x ^ (x >> uint64(27))) * _SECOND)
    return uint64(x ^ (x >> uint64(31)))


@device
def uniform(seed: Any, position: Any) -> Any:
    """A number in [0, 1), as `drivers/cpu/sampling.py` makes it of (seed, position)."""
    mixed = _mix(uint64(_mix(uint64(seed)) ^ uint64(position)))
    return float64(mixed >> uint64(11)) * 2.0**-53


@device
def _largest_of_warp(rank: Any) -> Any:
    step = 16
    while step > 0:
        other = cuda.shfl_xor_sync(ALL, rank.view(np.int64), step)
        rank = max(rank, other.view(np.uint64))
        step //= 2
    return rank


@device
def _sum_of_warp(x: Any) -> Any:
    step = 16
    while step > 0:
        x += cuda.shfl_xor_sync(ALL, x, step)
        step //= 2
    return x


@device
def _find_best(logits: Any, start: Any, vocab: Any, ranks: Any, flags: Any, threads: Any) -> Any:
    """The largest rank of a row, 0 if a logit is not a number; the same in all threads."""
    thread = cuda.threadIdx.x
    best, strange = uint64(0), 0
    for token in range(thread, vocab, threads):
        logit = logits[start + token]
        if logit != logit:
            strange = 1
        best = max(best, rank_of(logit, token))
    if thread == 0:
        flags[0] = 0
    cuda.syncthreads()
    if strange > 0:
        cuda.atomic.add(flags, 0, 1)
    best = _largest_of_warp(best)
    if thread % 32 == 0:
        ranks[thread // 32] = best
    cuda.syncthreads()
    for warp in range(threads // 32):
        best = max(best, ranks[warp])
    if flags[0] > 0:
        best = uint64(0)
    return best


@device
def _sum_in_order(
    logits: Any, start: Any, first: Any, end: Any, best: Any, temperature: Any, least: Any
) -> Any:
    """The sum of a warp's weights that are not below `least`, in all lanes the same."""
    total = float64(0.0)
    for token in range(first + cuda.threadIdx.x % 32, end, 32):
        weight = _weight(logits[start + token], best, temperature)
        if weight >= least:
            total += weight
    return _sum_of_warp(total)


@device
def _find_in_order(
    logits: Any, start: Any, first: Any, end: Any, best: Any, temperature: Any, least: Any,
    running: Any, target: Any,
) -> Any:  # fmt: skip
    """Of a warp's tokens the first at which the running sum passes `target`, else the last that
    weighs anything; in all lanes the same."""
    lane = cuda.threadIdx.x % 32
    found, last = end, first
    at = first
    while at < end and found == end:
        token, weight = at + lane, float64(0.0)
        if token < end:
            weight = _weight(logits[start + token], best, temperature)
            if weight < least:
                weight = float64(0.0)
        scan, step = weight, 1
        while step < 32:
            before = cuda.shfl_up_sync(ALL, scan, step)
            if lane >= step:
                scan += before
            step *= 2
        passed = cuda.ballot_sync(ALL, weight > 0.0 and running + scan > target)
        heavy = cuda.ballot_sync(ALL, weight > 0.0)
        for i in range(32):
            if passed >> (31 - i) & 1:
                found = at + 31 - i
            if heavy >> i & 1:
                last = at + i
        running += cuda.shfl_sync(ALL, scan, 31)
        at += 32
    return found if found < end else last


@device
def _sum_all(
    logits: Any, start: Any, vocab: Any, best: Any, temperature: Any, least: Any, sums: Any,
    threads: Any,
) -> Any:  # fmt: skip
    """The sum of all weights that are not below `least`, and of each warp's share in sums."""
    warps, warp = threads // 32, cuda.threadIdx.x // 32
    share = quotient(vocab + warps - 1, warps)
    end = min(vocab, warp * share + share)
    total = _sum_in_order(logits, start, warp * share, end, best, temperature, least)
    if cuda.threadIdx.x % 32 == 0:
        sums[warp] = total
    cuda.syncthreads()
    total = float64(0.0)
    for w in range(warps):
        total += sums[w]
    return total


@device
def _draw_in_order(
    logits: Any, start: Any, vocab: Any, best: Any, temperature: Any, least: Any, u: Any,
    sums: Any, threads: Any,
) -> Any:  # fmt: skip
    """A draw from all tokens whose weight is not below `least`, in the order of ids: in one
    thread, NOT_MINE in the others."""
    warps, warp = threads // 32, cuda.threadIdx.x // 32
    target = u * _sum_all(logits, start, vocab, best, temperature, least, sums, threads)
    passed, before, mine = float64(0.0), float64(0.0), 0
    for w in range(warps):
        if sums[w] > 0.0 and passed <= target:
            mine, before = w, passed
            passed += sums[w]
    if mine != warp:
        return NOT_MINE
    share = quotient(vocab + warps - 1, warps)
    first, end = warp * share, min(vocab, warp * share + share)
    token = _find_in_order(logits, start, first, end, best, temperature, least, before, target)
    return token if cuda.threadIdx.x % 32 == 0 else NOT_MINE


@device
def _share_of(logit: Any, best: Any, temperature: Any, least: Any, kind: Any) -> Any:
    """What a token counts, int64: 1 where tokens are counted, else its weight in UNITs."""
    if kind == COUNT:
        return int64(1)
    weight = _weight(logit, best, temperature)
    return int64(weight * UNIT + 0.5) if weight >= least else int64(0)


@device
def _sum_copies(bins: Any, totals: Any, copies: Any, threads: Any) -> None:
    """Each digit's, by a thread. Two barriers."""
    cuda.syncthreads()
    thread = cuda.threadIdx.x
    for digit in range(thread, DIGITS, threads):
        total = int64(0)
        for i in range(copies):
            total += bins[digit * copies + (thread + i) % copies]  # in another bank than others
        totals[digit] = total
    cuda.syncthreads()


@device
def _target(kind: Any, wanted: Any, totals: Any) -> Any:
    """The largest sum, of all there is, that is not enough yet."""
    whole = int64(0)
    for digit in range(DIGITS):
        whole += totals[digit]
    if kind == COUNT:
        target = int64(wanted) - 1
    elif kind == CUT:
        target = int64(math.ceil(wanted * float64(whole))) - 1
    else:
        target = int64(wanted * float64(whole))
    return min(max(target, int64(0)), whole - 1)


@device
def _find(
    logits: Any, start: Any, vocab: Any, best: Any, temperature: Any, least: Any, floor: Any,
    kind: Any, wanted: Any, bins: Any, totals: Any, state: Any, copies: Any, threads: Any,
) -> Any:  # fmt: skip
    """The rank at which a sum over the tokens from `floor` on, the most likely first, is enough;
    the same in all threads. Without the low bits of its id if no other token has its logit.

    COUNT: there are `wanted` tokens. CUT, DRAW: the sum of weights that are not below `least` has
    reached, has passed, `wanted` of what it comes to. Digit by digit, as a radix sort goes.
    """
    thread, shift, prefix, going = cuda.threadIdx.x, FIRST_SHIFT, uint64(0), True
    some = cuda.local.array((AT_ONCE,), float32)
    while going:
        for i in range(thread, DIGITS * copies, threads):
            bins[i] = 0
        cuda.syncthreads()
        right = uint64(shift)
        for first in range(thread, vocab, AT_ONCE * threads):
            for i in range(AT_ONCE):
                some[i] = logits[start + min(first + i * threads, vocab - 1)]
            for i in range(AT_ONCE):
                token = first + i * threads
                rank = rank_of(some[i], token)
                same = (rank ^ prefix) >> right >> DIGIT_BITS == 0
                if token < vocab and rank >= floor and same:
                    share = _share_of(some[i], best, temperature, least, kind)
                    if share > 0:
                        digit = int32(rank >> right & LAST_DIGIT)
                        cuda.atomic.add(bins, digit * copies + thread % copies, share)
        _sum_copies(bins, totals, copies, threads)
        if thread == 0:
            if shift == FIRST_SHIFT:
                state[1] = _target(kind, wanted, totals)
            digit, target = DIGITS - 1, state[1]
            while digit > 0 and totals[digit] <= target:
                target -= totals[digit]
                digit -= 1
            state[0], state[1], state[2] = digit, target, totals[digit]
        cuda.syncthreads()
        prefix |= uint64(state[0]) << uint64(shift)
        going = shift > 0
        if shift == LOGIT_SHIFT:
            going = state[2] > _share_of(_logit_of(prefix), best, temperature, least, kind)
            if going:
                prefix |= SAME_IDS
            shift = ID_SHIFT
        else:
            shift -= 7
    return max(prefix, floor)


@device
def _draw_ranked(
    logits: Any, start: Any, vocab: Any, best: Any, temperature: Any, wanted: Any, top_p: Any,
    least: Any, u: Any, bins: Any, totals: Any, state: Any, copies: Any, threads: Any,
) -> Any:  # fmt: skip
    """A draw, the most likely first, from the `wanted` best, of them those that top_p leaves: in
    the thread that has it, NOT_MINE in the others."""
    floor = uint64(0)
    for kind in range(3):
        if (kind == COUNT and wanted < vocab) or (kind == CUT and top_p < 1.0) or kind == DRAW:
            much = float64(wanted) if kind == COUNT else top_p if kind == CUT else u
            above = least if kind == DRAW else 0.0
            floor = _find(
                logits, start, vocab, best, temperature, above, floor, kind, much, bins, totals,
                state, copies, threads,
            )  # fmt: skip
    mine = NOT_MINE
    for token in range(cuda.threadIdx.x, vocab, threads):
        rank = rank_of(logits[start + token], token)
        if rank == floor or (floor & _ID == 0 and (rank ^ floor) >> uint64(LOGIT_SHIFT) == 0):
            mine = token
    return mine


def make_sample(threads: int = THREADS, copies: int = COPIES) -> Any:
    """The kernel `abi.SAMPLE`, of blocks of so many threads."""
    warps, cells = threads // 32, DIGITS * copies

    def sample(
        logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, seeds: Any,
        positions: Any, tokens: Any, vocab: Any,
    ) -> None:  # fmt: skip
        bins = cuda.shared.array((cells,), int64)
        totals = cuda.shared.array((DIGITS,), int64)
        sums = cuda.shared.array((warps,), float64)
        bests = cuda.shared.array((warps,), uint64)
        state = cuda.shared.array((3,), int64)
        row, thread = cuda.blockIdx.x, cuda.threadIdx.x
        start = row * vocab
        if positions[row] < 0:
            if thread == 0:
                tokens[row] = 0
            return
        rank = _find_best(logits, start, vocab, bests, state, threads)
        best = _logit_of(rank)
        if rank == 0 or math.isinf(best):
            if thread == 0:
                tokens[row] = FAULT
            return
        if temperature[row] <= 0.0:
            if thread == 0:
                tokens[row] = _token_of(rank)
            return
        u = uniform(seeds[row], positions[row])
        wanted = top_k[row] if 0 < top_k[row] < vocab else vocab
        if top_p[row] >= 1.0 and wanted == vocab:
            token = _draw_in_order(
                logits, start, vocab, best, temperature[row], min_p[row], u, sums, threads
            )
        else:
            token = _draw_ranked(
                logits, start, vocab, best, temperature[row], wanted, top_p[row], min_p[row], u,
                bins, totals, state, copies, threads,
            )  # fmt: skip
        if token != NOT_MINE:
            tokens[row] = token

    return sample
