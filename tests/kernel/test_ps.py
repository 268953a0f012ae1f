"""`ps`: some processes at a time, in the order of their pids, however they come and go."""

import errno

import pytest

from tokenix.kernel.answers import Listing
from tokenix.kernel.calls import KernelError, Kill, Principal, Ps, Signal, Spawn, Wait
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.tests.sim.machine import ROOT, SimMachine

RED, BLUE = Principal("red"), Principal("blue")


def machine_with(processes: int, listed: int = 4) -> SimMachine:
    """Every third is blue's, the others are red's."""
    machine = SimMachine(16, 16, params=Params(listed_processes=listed, poison=True))
    for i in range(processes):
        machine.call(Spawn((1, 2, 3), max_tokens=5), BLUE if i % 3 == 2 else RED)
    return machine


def listings(machine: SimMachine, who: Principal = ROOT, **fields: object) -> list[list[int]]:
    """Pids of every answer until there are no more."""
    found, after = [], Pid(0)
    while True:
        listing = machine.call(Ps(after, **fields), who)  # type: ignore[arg-type]
        found.append([stat.pid for stat in listing.processes])
        if listing.after is None:
            return found
        assert listing.after > after, "it goes on"
        after = listing.after


@pytest.mark.parametrize(
    ("fields", "pids"),
    [
        ({}, [[1, 2, 3, 4], [5, 6, 7, 8], [9]]),
        ({"limit": 3}, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        ({"limit": 1000}, [[1, 2, 3, 4], [5, 6, 7, 8], [9]]),
        ({"pids": (7, 3, 3, 99)}, [[3, 7]]),
        ({"pids": (9, 8, 7, 3, 1, 2)}, [[1, 2, 3, 7], [8, 9]]),
        ({"pids": (99,)}, [[]]),
    ],
)
def test_root_sees_all_some_at_a_time(fields: dict[str, object], pids: list[list[int]]) -> None:
    assert listings(machine_with(9), **fields) == pids


def test_nobody_is_listed_of_nobody() -> None:
    assert machine_with(0).call(Ps()) == Listing(())


def test_a_tenant_sees_its_own() -> None:
    machine = machine_with(12)
    assert listings(machine, BLUE) == [[3, 6, 9, 12]]
    assert listings(machine, RED) == [[1, 2, 4, 5], [7, 8, 10, 11], []]
    assert listings(machine, BLUE, pids=(2, 3)) == [[3]]


def test_the_finished_are_listed_until_they_are_waited_for() -> None:
    machine = machine_with(6)
    machine.call(Kill(Pid(2), Signal.KILL))
    machine.call(Kill(Pid(5), Signal.KILL))
    assert [p.state == "zombie" for p in machine.call(Ps(pids=(1, 2, 5))).processes] == [
        False, True, True,
    ]  # fmt: skip
    machine.call(Wait(Pid(2)))
    assert listings(machine) == [[1, 3, 4, 5], [6]]


def test_who_ends_between_two_listings_is_left_out_and_nobody_else() -> None:
    machine = machine_with(9)
    first = machine.call(Ps())
    for pid in (first.after, Pid(5)):
        machine.call(Kill(pid, Signal.KILL))
        machine.call(Wait(pid))
    rest = machine.call(Ps(first.after))
    assert [stat.pid for stat in rest.processes] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("request_", "number"),
    [(Ps(limit=0), errno.EINVAL), (Ps(pids=tuple(map(Pid, range(5000)))), errno.E2BIG)],
)
def test_what_cannot_be_asked(request_: Ps, number: int) -> None:
    with pytest.raises(KernelError) as problem:
        machine_with(1).call(request_)
    assert problem.value.errno == number
