"""What this machine can do at most, measured: bytes read from memory, dots of codes and of pairs
of bfloat16, multiply-adds.

Each rate is that of a loop that does nothing else, on all threads at once, the best of several
runs: what the time of a pass can be compared with.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.blocktile import dot_codes
from tokenix.drivers.cpu.claims import claim, finish, new_claims
from tokenix.drivers.cpu.floattile import dot_pairs
from tokenix.drivers.cpu.jit import (
    PARALLEL,
    Float32,
    Int64,
    cgutils,
    has_bf16,
    has_vnni,
    intrinsic,
    kernel,
)
from tokenix.drivers.cpu.lanes import I32, I64, LANES, VF32, VI32, add_floats, fill, fma, fold
from tokenix.drivers.cpu.numbers import address, read_ticks
from tokenix.drivers.cpu.rows import sum_squares
from tokenix.drivers.cpu.team import helpers_of, outline, share

READ_BYTES = 256 << 20
"""Far more than any cache holds."""
CHUNK_BYTES = 1 << 18
ROUNDS = 200_000
"""Of the loops in registers, for each item."""
CHAINS = 12
"""Independent sums: enough to hide the latency of each."""
ITEMS = 16


class Limits(NamedTuple):
    read_bytes_per_s: float
    dot_macs_per_s: float
    """Of bytes, with the instruction that `blocktile` uses."""
    pair_macs_per_s: float
    """Of bfloat16, with that of `floattile`."""
    fma_macs_per_s: float
    """Of float32."""


def _in_registers(step: Callable[[Any, Any, Any], Any], kind: Any, finish_sum: Any) -> Any:
    """An intrinsic that does `step` ROUNDS times with each of CHAINS registers."""

    @intrinsic
    def loop(typing: Any, seed: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            sums = [cgutils.alloca_once(b, kind) for _ in range(CHAINS)]
            for i, each in enumerate(sums):
                b.store(fill(kind, i), each)  # equal chains would be made into one
            with cgutils.for_range(b, ir.Constant(I64, ROUNDS), intp=I64):
                for each in sums:
                    b.store(step(b, context, b.load(each)), each)
            total = b.load(sums[0])
            for each in sums[1:]:
                total = finish_sum(b, total, b.load(each))
            return b.bitcast(fold(b, total, finish_sum), I32)

        return types.int32(types.int64), codegen

    return loop


def _one_dot(b: Any, context: Any, total: Any) -> Any:
    weights, four = fill(VI32, 0x01020304), ir.Constant(I32, 0x01FF01FF)
    return dot_codes(b, has_vnni(context), total, weights, four)


def _one_pair(b: Any, context: Any, total: Any) -> Any:
    weights, pair = fill(VI32, 0x3F003F80), ir.Constant(I32, 0x3F80BF00)
    return dot_pairs(b, has_bf16(context), total, weights, pair)


def _one_fma(b: Any, context: Any, total: Any) -> Any:
    return fma(b, total, fill(VF32, 0.5), fill(VF32, 1.0))


def _add_whole(b: Any, x: Any, y: Any) -> Any:
    return b.add(x, y)


_dots = _in_registers(_one_dot, VI32, _add_whole)
_pairs = _in_registers(_one_pair, VF32, add_floats)
_fmas = _in_registers(_one_fma, VF32, add_floats)


@kernel
def _work(what: int, data: Float32, found: Float32, claims: Int64, worker: int) -> None:
    """Items of READ_BYTES, or of loops in registers; their results go where they are not lost."""
    items = len(data) * 4 // CHUNK_BYTES if what == 0 else ITEMS
    done, item = 0, claim(claims, 0, worker, items)
    while item >= 0:
        if what == 0:
            at = address(data) + item * CHUNK_BYTES
            found[worker] += sum_squares(at, CHUNK_BYTES // (LANES * 4))
        elif what == 1:
            found[worker] += _dots(item)
        elif what == 2:
            found[worker] += _pairs(item)
        else:
            found[worker] += _fmas(item)
        done += 1
        item = claim(claims, 0, worker, items)
    finish(claims, 0, worker, done, items)


_job = outline(_work)


@kernel
def _run(team: Int64, what: int, data: Float32, found: Float32, claims: Int64) -> None:
    share(team, _job((what, data, found, claims)))


@kernel
def _now() -> int:
    return int(read_ticks())


@cache
def ticks_per_s() -> float:
    """The rate of `tile.read_ticks`, measured in 20 ms."""
    _now()
    before_s, before = time.perf_counter(), _now()
    time.sleep(0.02)
    after, after_s = _now(), time.perf_counter()
    return (after - before) / (after_s - before_s)


def measure(threads: int, runs: int = 5) -> Limits:
    """The best of so many runs of each, some 20 ms apiece."""
    data = aligned_empty((READ_BYTES // 4,), np.dtype(np.float32))
    data[::1024] = 1.0  # so that it is there
    found = np.zeros(threads, np.float32)

    def best_s(what: int) -> float:
        times = []
        for _ in range(runs):
            began_s = time.perf_counter()
            _run(helpers_of(threads), what, data, found, new_claims(1, threads))
            times.append(time.perf_counter() - began_s)
        return min(times)

    with PARALLEL:
        for what in range(4):
            _run(helpers_of(threads), what, data[:0], found, new_claims(1, threads))
        steps = ITEMS * ROUNDS * CHAINS * LANES
        rates = (factor * steps / best_s(what) for what, factor in ((1, 4), (2, 2), (3, 1)))
        return Limits(READ_BYTES / best_s(0), *rates)
