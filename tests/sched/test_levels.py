"""The levels that ps and top show."""

import pytest

from tokenix.sched.entity import Qos
from tokenix.sched.levels import place
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.fakes import newcomer, scheduler, stream

T, RATES = Tunables(), Rates(0.01, 10_000.0)


@pytest.mark.parametrize(
    ("lead_s", "level"),
    [(-1.0, 1), (0.3, 1), (0.5, 2), (1.5, 3), (3.0, 4), (7.9, 5), (8.0, 6), (1e6, 6)],
)
def test_bands_of_lead(lead_s: float, level: int) -> None:
    assert place(stream(1, lead_s=lead_s).entity, 100.0, T, RATES).level == level


def test_newcomers_batch_and_idle_have_their_own() -> None:
    assert place(newcomer(1).entity, 100.0, T, RATES).level == 0
    assert place(stream(1, qos=Qos.BATCH).entity, 100.0, T, RATES).level == T.level_bands + 2
    assert place(stream(1, qos=Qos.IDLE).entity, 100.0, T, RATES).level == T.level_bands + 3


def test_sinks_by_progress_and_rises_as_its_reader_catches_up() -> None:
    sched = scheduler()
    task = stream(1, lead_s=0.95)
    assert place(task.entity, 100.0, T, RATES)[:2] == (2, 1)
    sched.note_delivered(task, 100.0, 1)
    assert sched.place(task, 100.0).level == 3, "the quantum of one token is used up"
    assert sched.place(task, 100.4).level == 2
    assert sched.place(task, 101.2).level == 1


def test_quantum_is_what_is_left_of_the_band_and_doubles() -> None:
    quanta = [place(stream(1, lead_s=s).entity, 100.0, T, RATES)[1] for s in (1.0, 2.0, 4.0)]
    assert quanta == [10, 20, 40]
