"""A token of each row: the one that `drivers/cpu/sampling.py` draws, a block for each row.

    greedy                  the best
    temperature alone       sums of warps in the order of ids, then the warp where the draw falls
    with top_k or top_p     the CANDIDATES best by radix selection, sorted; one thread sums them in
                            order, cuts and draws

Weights and sums are float64, as there. A logit and its id make one number, `rank`: the larger the
more likely, of equals the lower id; no two are the same. Where more candidates than that would be
needed the token is WIDE, and the row is drawn on the host.
"""

import math
from typing import Any

import numpy as np

from tokenix.drivers.cuda.kernels.abi import FAULT, WIDE
from tokenix.drivers.cuda.kernels.words import (
    as_float,
    as_word,
    cuda,
    device,
    float32,
    float64,
    int32,
    quotient,
    uint32,
    uint64,
)

THREADS = 512
CANDIDATES = 1024
"""A power of two."""

ALL = 0xFFFFFFFF
NOT_MINE = -9
"""No token: another thread has it."""

_SIGN = np.uint32(1 << 31)
_LOW = np.uint64(0xFFFFFFFF)
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
    """A draw from all tokens whose weight is not below `least`, in the order of ids: in all lanes
    of one warp, NOT_MINE in the others."""
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
    return _find_in_order(logits, start, first, end, best, temperature, least, before, target)


@device
def _select(
    logits: Any, start: Any, vocab: Any, count: Any, histogram: Any, state: Any, threads: Any
) -> Any:
    """The `count`th largest rank, or a number below it and above the next: byte by byte."""
    prefix, need, shift = uint64(0), count, 56
    going = True
    while going:
        for digit in range(cuda.threadIdx.x, 256, threads):
            histogram[digit] = 0
        cuda.syncthreads()
        for token in range(cuda.threadIdx.x, vocab, threads):
            rank = rank_of(logits[start + token], token)
            above = (rank ^ prefix) >> uint64(shift)
            if above >> uint64(8) == 0:
                cuda.atomic.add(histogram, int32(rank >> uint64(shift) & uint64(255)), 1)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            digit = 255
            while histogram[digit] < need:
                need -= histogram[digit]
                digit -= 1
            state[0], state[1], state[2] = digit, need, histogram[digit]
        cuda.syncthreads()
        need = state[1]
        prefix |= uint64(state[0]) << uint64(shift)
        going = state[2] != need and shift > 0
        shift -= 8
        cuda.syncthreads()
    return prefix


@device
def _collect(
    logits: Any, start: Any, vocab: Any, least: Any, sorted_ranks: Any, state: Any, threads: Any
) -> None:
    """All ranks from `least` on, at most CANDIDATES, sorted, the largest first; then zeros."""
    thread = cuda.threadIdx.x
    for i in range(thread, CANDIDATES, threads):
        sorted_ranks[i] = uint64(0)
    if thread == 0:
        state[3] = 0
    cuda.syncthreads()
    for token in range(thread, vocab, threads):
        rank = rank_of(logits[start + token], token)
        if rank >= least:
            sorted_ranks[cuda.atomic.add(state, 3, 1)] = rank
    cuda.syncthreads()
    size = 2
    while size <= CANDIDATES:
        step = size // 2
        while step > 0:
            for i in range(thread, CANDIDATES // 2, threads):
                low = 2 * i - (i & (step - 1))
                a, b = sorted_ranks[low], sorted_ranks[low + step]
                if (a < b) == (low & size == 0):
                    sorted_ranks[low] = b
                    sorted_ranks[low + step] = a
            cuda.syncthreads()
            step //= 2
        size *= 2


@device
def _draw_sorted(
    weights: Any, count: Any, is_cut: Any, whole: Any, top_p: Any, least: Any, u: Any
) -> Any:
    """By one thread: of `count` sorted candidates those that top_p of `whole` and min_p leave, and
    one of them by index; WIDE if there are more (`is_cut`) and they are needed."""
    kept, running = 0, float64(0.0)
    while kept < count and (kept == 0 or top_p >= 1.0 or running < top_p * whole):
        running += weights[kept]
        kept += 1
    if is_cut and running < top_p * whole:
        return WIDE
    total = float64(0.0)
    for i in range(kept):
        if weights[i] >= least:
            total += weights[i]
    target, running, at = u * total, float64(0.0), 0
    for i in range(kept):
        if weights[i] >= least and weights[i] > 0.0 and running <= target:
            running += weights[i]
            at = i
    return at


@device
def _draw_best(
    logits: Any, start: Any, vocab: Any, best: Any, temperature: Any, wanted: Any, top_p: Any,
    least: Any, u: Any, ranks: Any, weights: Any, histogram: Any, state: Any, sums: Any,
    threads: Any,
) -> Any:  # fmt: skip
    """A draw from the best: `wanted` by top_k, of them by top_p. In the first thread, NOT_MINE in
    the others."""
    thread, is_cut = cuda.threadIdx.x, wanted > CANDIDATES
    if is_cut and (top_p >= 1.0 or wanted < vocab):
        return WIDE if thread == 0 else NOT_MINE
    count = min(wanted, CANDIDATES)
    whole = _sum_all(logits, start, vocab, best, temperature, 0.0, sums, threads)
    least_rank = _select(logits, start, vocab, count, histogram, state, threads)
    _collect(logits, start, vocab, least_rank, ranks, state, threads)
    for i in range(thread, count, threads):
        weights[i] = _weight(_logit_of(ranks[i]), best, temperature)
    cuda.syncthreads()
    if thread > 0:
        return NOT_MINE
    if wanted < vocab:
        whole = float64(0.0)
        for i in range(count):
            whole += weights[i]
    at = _draw_sorted(weights, count, is_cut, whole, top_p, least, u)
    return WIDE if at == WIDE else _token_of(ranks[max(0, at)])


def make_sample(threads: int = THREADS) -> Any:
    """The kernel `abi.SAMPLE`, of blocks of so many threads."""
    warps = threads // 32

    def sample(
        logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, seeds: Any,
        positions: Any, tokens: Any, vocab: Any,
    ) -> None:  # fmt: skip
        ranks = cuda.shared.array((CANDIDATES,), uint64)
        weights = cuda.shared.array((CANDIDATES,), float64)
        histogram = cuda.shared.array((256,), int32)
        sums = cuda.shared.array((warps,), float64)
        bests = cuda.shared.array((warps,), uint64)
        state = cuda.shared.array((4,), int32)
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
            token = _draw_best(
                logits, start, vocab, best, temperature[row], wanted, top_p[row], min_p[row], u,
                ranks, weights, histogram, state, sums, threads,
            )  # fmt: skip
        if token != NOT_MINE and (thread % 32 == 0):
            tokens[row] = token

    return sample
