"""A forward that goes on with the one before while that runs: its rows run tokens that only the
device knows. Whatever its depth, a device draws what it draws one forward at a time."""

from functools import lru_cache

import pytest

from tokenix.drivers.ops import (
    Forward,
    ForwardDone,
    Row,
    RowFault,
    SampleSpec,
    SamplingParams,
    drawn_by,
)
from tokenix.tests.device.line import Line
from tokenix.tests.device.machine import Harness, Machine, Proc, words

NEW = 8

DRAWS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.5, top_p=0.9, seed=4),
    SamplingParams(temperature=1.0, top_k=5, min_p=0.01, seed=5),
    SamplingParams(),
]


def procs_of(machine: Machine, count: int) -> list[Proc]:
    """Prompts of several lengths, some of which end with a page, with room for NEW tokens."""
    page = machine.page_tokens
    lengths = [page - 2, page, 2 * page - 1, 3, page + 1][:count]
    return [
        machine.proc(words(n, machine.harness.vocab, i), range(6 * i, 6 * i + 5), DRAWS[i])
        for i, n in enumerate(lengths)
    ]


@lru_cache
def told(harness: Harness, count: int) -> list[list[int]]:
    """What each draws when every token is told before the next one."""
    machine = Machine(harness)
    procs = procs_of(machine, count)
    machine.decode(*procs, tokens=NEW)
    machine.close()
    return [[drawn.token for drawn in proc.drawn] for proc in procs]


@pytest.mark.parametrize("columns", [False, True])
def test_tokens_that_nobody_was_told_are_run(machine: Machine, columns: bool) -> None:
    procs, line = procs_of(machine, 5), Line(machine)
    line.launch(procs)
    for n in range(NEW - 1):
        line.launch(procs[:: -1 if n % 2 == 0 else 1], columns)
        line.land()
    line.land()
    drawn = [[one.token for one in proc.drawn] for proc in procs]
    assert drawn == told(machine.harness, 5)


def test_some_come_and_some_go(machine: Machine) -> None:
    """Who joins has a prompt, who leaves has an answer that nobody goes on with."""
    procs, line = procs_of(machine, 5), Line(machine)
    line.launch(procs[:3])
    line.launch(procs[1:3])
    line.land()
    line.launch([procs[3], procs[2], procs[4]])
    line.land()
    line.launch([procs[4], procs[0], procs[3]])  # the first one was told its token meanwhile
    line.land()
    line.land()
    expected = told(machine.harness, 5)
    for proc, count, tokens in zip(procs, (2, 2, 3, 2, 2), expected, strict=True):
        assert [one.token for one in proc.drawn] == tokens[:count]


def test_a_row_fails_with_the_one_that_it_goes_on_with(machine: Machine) -> None:
    machine.expects_breach = True
    procs, line = procs_of(machine, 2), Line(machine)
    procs[0].frames = procs[0].frames[:1]
    procs[0].tokens *= 3  # more than its table covers
    procs[0].prompt = len(procs[0].tokens)
    line.launch(procs)
    line.launch(procs[::-1])
    first, second = line.land(), line.land()
    assert isinstance(first[0], RowFault) and isinstance(second[1], RowFault)
    expected = told(machine.harness, 2)[1][:2]
    assert [one.token for one in procs[1].drawn] == expected


def test_only_its_own_row_can_be_gone_on_with(machine: Machine) -> None:
    machine.expects_breach = True
    procs, line = procs_of(machine, 2), Line(machine)
    line.launch(procs)
    rows = tuple(
        Row(proc.pid, proc.done + late, (drawn_by(place),), SampleSpec(proc.params, (), 0))
        for proc, late, place in zip(procs, (0, 1), (1, 1), strict=True)
    )
    done = machine.wait(machine.submit(Forward(machine.ticket(), rows)))
    assert isinstance(done, ForwardDone)
    assert all(isinstance(result, RowFault) for result in done.results)
