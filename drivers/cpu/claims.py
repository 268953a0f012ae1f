"""How workers share the items of a phase, and wait for its end.

    worker 0   | item | item | item |              | item | ...    a phase ends when its items are
    worker 1   | item | item |  (lost its core)                    done, not when workers arrive

All phases of a pass are one job of the team (`team`): a job for each would wait for every thread
hundreds of times a step, each time for as long as another process holds a core. Here a worker that
lost its core delays the others only while it holds an item. What an item computes does not depend
on who claims it.

Each worker begins with a share of its own, so that two seldom touch the same counter, and takes
from the others' when that is done.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from tokenix.drivers.cpu.jit import Int64, bare
from tokenix.drivers.cpu.numbers import address, atomic_add, atomic_load, read_ticks
from tokenix.drivers.cpu.waiting import wait_for, wake

LINE_WORDS = 8
"""int64 in a cache line: a counter has one for itself."""
DONE, SLEEPERS, ENDED, BEGUN = 0, 1, 2, 3
"""Words of the last line of a phase: items done; how many sleep until all are; when worker 0 saw
that; of the first phase, when it began. Times are ticks, see `read_ticks`."""


def new_claims(phases: int, workers: int) -> Int64:
    """Counters of a pass: [phases, workers + 1, 8]. How many items of each worker's share are
    claimed, then how many of the phase are done."""
    return np.zeros((phases, workers + 1, LINE_WORDS), np.int64)


@bare
def claim(claims: Int64, phase: int, worker: int, items: int) -> int:
    """An item that nobody else has; -1 if there is none left."""
    workers = claims.shape[1] - 1
    for turn in range(workers):
        owner = worker + turn
        if owner >= workers:
            owner -= workers
        first, end = items * owner // workers, items * (owner + 1) // workers
        counter = address(claims) + (phase * (workers + 1) + owner) * LINE_WORDS * 8
        if turn > 0 and atomic_load(counter) >= end - first:
            continue
        mine = atomic_add(counter, 1)
        if mine < end - first:
            return int(first + mine)
    return -1


@bare
def finish(claims: Int64, phase: int, worker: int, done: int, items: int) -> None:
    """Tell how many items were done here, and wait until all are."""
    workers = claims.shape[1] - 1
    counter = address(claims) + (phase * (workers + 1) + workers) * LINE_WORDS * 8
    sleepers = counter + SLEEPERS * 8
    if done > 0 and atomic_add(counter, done) + done == items:
        wake(counter, sleepers)
    wait_for(counter, items, sleepers)
    if worker == 0:
        claims[phase, workers, ENDED] = read_ticks()


@bare
def begin(claims: Int64, worker: int) -> None:
    """Before the first phase."""
    if worker == 0:
        claims[0, claims.shape[1] - 1, BEGUN] = read_ticks()


def spent(claims: Int64, names: Iterable[str]) -> dict[str, int]:
    """Ticks of a pass that is over by the names of its phases, in the order of their first ones."""
    marks = [int(claims[0, -1, BEGUN]), *claims[:, -1, ENDED].tolist()]
    ticks: dict[str, int] = {}
    for name, (before, after) in zip(names, pairwise(marks), strict=True):
        ticks[name] = ticks.get(name, 0) + after - before
    return ticks
