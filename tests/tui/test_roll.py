"""The processes of a machine, asked for some at a time."""

from tokenix.tests.tui import worlds
from tokenix.tests.tui.worlds import crowd, process
from tokenix.tui.roll import ANSWERS, Roll

ROUND = 10 // ANSWERS
"""Looks in which everybody of those crowds is asked for, ten an answer."""


def test_a_small_machine_is_known_as_it_is():
    shelf, roll = worlds.Shelf(crowd(20), 10), Roll()
    assert roll.take(shelf, ()) == tuple(shelf.processes.values())
    assert shelf.answers == 2
    del shelf.processes[7]
    assert 7 not in [found.pid for found in roll.take(shelf, ())]


def test_a_look_at_a_crowd_asks_for_so_much_and_no_more():
    shelf, roll = worlds.Shelf(crowd(100), 10), Roll()
    for _ in range(ROUND):
        before = shelf.answers
        found = roll.take(shelf, [3, 5])
        assert shelf.answers - before <= ANSWERS + 2
    assert [each.pid for each in found] == list(range(1, 101))


def test_of_a_crowd_newcomers_and_those_on_screen_are_of_now():
    shelf, roll = worlds.Shelf(crowd(100), 10), Roll()
    for _ in range(ROUND):
        roll.take(shelf, ())
    shelf.processes[101] = process(101)
    shelf.processes[50] = process(50, output_tokens=4242)
    del shelf.processes[60]
    found = {each.pid: each for each in roll.take(shelf, [50, 60])}
    assert found[50].output_tokens == 4242
    assert 60 not in found
    assert 101 in found


def test_of_a_crowd_those_that_are_gone_go_within_two_rounds():
    shelf, roll = worlds.Shelf(crowd(100), 10), Roll()
    for _ in range(ROUND):
        roll.take(shelf, ())
    for pid in range(1, 91):
        del shelf.processes[pid]
    for _ in range(2 * ROUND):
        found = roll.take(shelf, ())
    assert [each.pid for each in found] == list(range(91, 101))
