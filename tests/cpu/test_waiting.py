"""Threads that wait for a number: they sleep, nobody is forgotten, whoever else needs the cores."""

import threading
import time

import numpy as np

from tokenix.drivers.cpu.claims import claim, finish, new_claims
from tokenix.drivers.cpu.jit import kernel
from tokenix.drivers.cpu.numbers import address, atomic_add
from tokenix.drivers.cpu.waiting import wait_for, wake


@kernel
def wait(words, least):
    wait_for(address(words), least, address(words) + 8)


@kernel
def change(words, by):
    atomic_add(address(words), by)
    wake(address(words), address(words) + 8)


@kernel
def work(counts, claims, worker):
    for phase in range(claims.shape[0]):
        items, done = phase % counts.shape[1] + 1, 0
        item = claim(claims, phase, worker, items)
        while item >= 0:
            atomic_add(address(counts) + (phase * counts.shape[1] + item) * 8, 1)
            done += 1
            item = claim(claims, phase, worker, items)
        finish(claims, phase, worker, done, items)


def start(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_who_waits_sleeps_until_the_number_is_there():
    words = np.zeros(2, np.int64)
    change(words, 0)
    wait(words, 0)
    threads = [start(wait, words, 3) for _ in range(4)]
    deadline = time.monotonic() + 60
    for by in (1, 1, 1):
        while words[1] < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert words[1] == 4 and all(thread.is_alive() for thread in threads)
        change(words, by)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert words.tolist() == [3, 0]


def test_more_workers_than_cores_end_all_phases():
    """Whoever is first has to wait for threads that have no core."""
    work(np.zeros((1, 7), np.int64), new_claims(1, 1), 0)
    counts, claims = np.zeros((700, 7), np.int64), new_claims(700, 8)
    threads = [start(work, counts, claims, worker) for worker in range(8)]
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    expected = np.arange(7)[None] <= (np.arange(700) % 7)[:, None]
    assert (counts == expected).all()
