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

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tokenix.drivers.cpu.jit import Int64, bare
from tokenix.drivers.cpu.numbers import address, atomic_add, atomic_load, read_ticks
from tokenix.drivers.cpu.waiting import wait_for, wake

LINE_WORDS = 8
"""int64 in a cache line: a counter has one for itself."""
DONE, SLEEPERS, ENDED, BEGUN = 0, 1, 2, 3
"""Words of the last line of a phase: items done; how many sleep until all are; when the last one
was; of the first phase, when it began. Times are ticks, see `read_ticks`."""


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
def _counter(claims: Int64, phase: int) -> int:
    """The address of a phase's last line."""
    workers = claims.shape[1] - 1
    return int(address(claims) + (phase * (workers + 1) + workers) * LINE_WORDS * 8)


@bare
def finish(claims: Int64, phase: int, worker: int, done: int, items: int) -> None:
    """Tell how many items were done here, and wait until all are."""
    counter = _counter(claims, phase)
    ended = worker == 0 if items == 0 else done > 0 and atomic_add(counter, done) + done == items
    if ended:
        atomic_add(counter + ENDED * 8, read_ticks())
        wake(counter, counter + SLEEPERS * 8)
    wait_for(counter, items, counter + SLEEPERS * 8)


@bare
def begin(claims: Int64) -> int:
    """Which phase to begin with: the first that is not over, for who comes late."""
    last = claims.shape[1] - 1
    if claims[0, last, BEGUN] == 0:
        claims[0, last, BEGUN] = read_ticks()
    over, left = 0, claims.shape[0]
    while over < left:  # they end in order
        middle = (over + left) // 2
        if atomic_load(_counter(claims, middle) + ENDED * 8) != 0:
            over = middle + 1
        else:
            left = middle
    return over


def spent(
    halves: Sequence[Int64], names: Sequence[str], head: Int64, head_names: Sequence[str]
) -> dict[str, int]:
    """Ticks of a pass that is over by the names of its phases, in the order of their first ones:
    of its halves, side by side, the mean. One that had no rows never began."""
    ticks: dict[str, int] = {}
    begun = [claims for claims in halves if claims[0, -1, BEGUN]]
    for claims, each in (*((claims, names) for claims in begun), (head, head_names)):
        if not claims[0, -1, BEGUN]:
            continue
        marks = [int(claims[0, -1, BEGUN]), *claims[:, -1, ENDED].tolist()]
        for name, (before, after) in zip(each, pairwise(marks), strict=True):
            part = after - before if claims is head else (after - before) // len(begun)
            ticks[name] = ticks.get(name, 0) + part
    return ticks
