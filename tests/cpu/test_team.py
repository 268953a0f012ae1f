"""The threads that help with a pass: what one does is done once, whoever comes."""

import threading
import time

import numpy as np

from tokenix.drivers.cpu import team
from tokenix.drivers.cpu.claims import claim, finish, new_claims
from tokenix.drivers.cpu.jit import kernel
from tokenix.drivers.cpu.numbers import address, atomic_add


@kernel
def work(counts, helped, claims, worker):
    for phase in range(claims.shape[0]):
        done = 0
        atomic_add(address(helped) + worker * 8, 1)
        item = claim(claims, phase, worker, counts.shape[1])
        while item >= 0:
            atomic_add(address(counts) + (phase * counts.shape[1] + item) * 8, 1)
            done += 1
            item = claim(claims, phase, worker, counts.shape[1])
        finish(claims, phase, worker, done, counts.shape[1])


job = team.outline(work)


@kernel
def run(rows, counts, helped, claims):
    team.share(rows, job((counts, helped, claims)))


def test_every_item_is_done_once():
    for items in (0, 1, 2, 7, 100):
        for workers in range(1, team.MAX_HELPERS + 2):
            for _ in range(50):
                counts, helped = np.zeros((9, items), np.int64), np.zeros(workers, np.int64)
                run(team.helpers_of(workers), counts, helped, new_claims(9, workers))
                assert (counts == 1).all() and helped[0] == 9


def test_a_helper_that_does_not_come_is_not_waited_for():
    """Rows that nobody serves; then somebody comes too late, and finds nothing to do."""
    rows = np.zeros((3, team.WORDS), np.int64)
    counts, helped = np.zeros((9, 20), np.int64), np.zeros(4, np.int64)
    run(rows, counts, helped, new_claims(9, 4))
    assert (counts == 1).all() and helped.tolist() == [9, 0, 0, 0]
    threading.Thread(target=team.serve, args=(rows[0], 1), daemon=True).start()
    deadline = time.monotonic() + 60
    while not helped[1] and time.monotonic() < deadline:
        counts = np.zeros((2000, 20), np.int64)
        run(rows, counts, helped, new_claims(2000, 4))
        assert (counts == 1).all() and (rows[:, team.STATE] == team.IDLE).all()
    assert helped[1:].tolist() == [helped[1], 0, 0] and helped[1] > 0


def test_threads_are_bounded():
    before = team.get_threads()
    assert team.set_threads(0) == 1
    assert team.set_threads(10_000) == team.MAX_HELPERS + 1
    seen = []
    other = threading.Thread(target=lambda: seen.append(team.set_threads(1)))
    other.start()
    other.join()
    assert seen == [1] and team.get_threads() == team.MAX_HELPERS + 1
    team.set_threads(before)
