"""Who has waited longest, by class, however they come and go."""

import random

from tokenix.sched.eldest import SLACK, Eldest
from tokenix.sched.entity import Qos
from tokenix.tests.sched.fakes import entity as made


def test_it_knows_what_a_scan_would_find() -> None:
    chance = random.Random(7)
    eldest = Eldest()
    here = {}
    for pid in range(1, 2000):
        entity = made(pid, qos=chance.choice(list(Qos)))
        entity.waiting_since_s = float(chance.randrange(500))
        eldest.put(entity)
        here[pid] = entity
        while len(here) > 20 or (here and chance.random() < 0.5):
            eldest.drop(here.pop(chance.choice(list(here))))
        if pid % 7:
            continue
        for qos in Qos:
            since_s = [entity.waiting_since_s for entity in here.values() if entity.qos is qos]
            assert eldest.count(qos) == len(since_s)
            assert eldest.since_s(qos) == min(since_s, default=None)


def test_who_comes_again_counts_once_and_the_gone_are_forgotten() -> None:
    eldest = Eldest()
    entity = made(1)
    entity.waiting_since_s = 5.0
    for _ in range(10 * SLACK):
        eldest.put(entity)
        eldest.drop(entity)
    assert sum(map(len, eldest._heaps.values())) <= SLACK + 2
    assert eldest.since_s(entity.qos) is None
    eldest.put(entity)
    assert (eldest.count(entity.qos), eldest.since_s(entity.qos)) == (1, 5.0)
    assert eldest.since_s(Qos.IDLE) is None
