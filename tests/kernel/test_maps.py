"""Maps of memory and the outlook: what they show is what is there, of those who may see it."""

import errno
from collections import Counter

import pytest

from tokenix.kernel.answers import PLACE_STATES, PageCode, PageMap, PlaceCode, PlaceMap
from tokenix.kernel.calls import (
    Framemap,
    KernelError,
    Kill,
    Maps,
    Plan,
    Prefixes,
    Principal,
    Read,
    Request,
    Signal,
    Spawn,
    Stat,
    Tail,
    Vmstat,
)
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader
from tokenix.sched.tunables import Tunables
from tokenix.tests.sim.machine import SimMachine

RED, BLUE = Principal("red"), Principal("blue")
PAGE = 4
"""Tokens of a page of the simulated device."""


def machine_with(**options: object) -> SimMachine:
    return SimMachine(32, 64, page_tokens=PAGE, **options)


def prompt(pages: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * token + salt) % 250 for token in range(pages * PAGE))


def states(shown: PlaceMap) -> Counter[PlaceCode]:
    return Counter(PlaceCode(code & PLACE_STATES) for code in shown.codes)


# ---- pages of a process ----


def test_pages_of_a_process_that_runs_and_is_stopped() -> None:
    machine = machine_with()
    pid = machine.spawn(prompt(5), 40)
    machine.run(until_s=0.05)
    shown: PageMap = machine.call(Maps(pid))
    stat = machine.call(Stat(pid))
    assert len(shown.codes) == shown.total == stat.pages >= 5
    assert (shown.pid, shown.page_tokens, shown.start) == (pid, PAGE, 0)
    assert shown.computed_tokens == stat.computed_tokens
    assert all(code & PageCode.DEVICE for code in shown.codes)
    clean = sum(1 for code in shown.codes if code & (PageCode.HOST | PageCode.FILE))
    assert clean == stat.clean_pages

    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=1.0)
    others = machine.spawn(prompt(28, salt=1), 8)  # they want the frames
    machine.run(until_s=2.0)
    assert machine.process(pid).state is State.SWAPPED
    shown = machine.call(Maps(pid))
    assert all(code & PageCode.HOST for code in shown.codes), "all of it is in the host tier"
    gone = sum(1 for code in shown.codes if not code & PageCode.DEVICE)
    assert gone == machine.process(pid).space.missing > 0
    assert not any(code & PageCode.SHARED for code in shown.codes)
    machine.call(Kill(others, Signal.KILL))


def test_pages_that_others_map_too() -> None:
    machine = machine_with()
    first = machine.spawn(prompt(6), 30)
    machine.run(until_s=0.03)
    second = machine.spawn(prompt(6), 30)
    machine.run(until_s=0.05)
    for pid in (first, second):
        codes = machine.call(Maps(pid)).codes
        assert [bool(code & PageCode.SHARED) for code in codes[:6]] == [True] * 5 + [False]


def test_maps_go_on_where_they_ended() -> None:
    machine = machine_with(params=Params(listed_pages=3))
    pid = machine.spawn(prompt(8), 30)
    machine.run(until_s=0.05)
    total = machine.call(Stat(pid)).pages
    lengths = [len(machine.call(Maps(pid, start)).codes) for start in range(0, total + 3, 3)]
    assert sum(lengths) == total and max(lengths) == 3 and lengths[-1] == 0
    whole = machine.kernel.memory.frames.total
    parts = [machine.call(Framemap("frames", start)) for start in range(0, whole + 3, 3)]
    assert b"".join(part.codes for part in parts).count(PlaceCode.FREE) == whole - total


def test_the_tail_of_the_output_stays_where_it_is() -> None:
    machine = machine_with()
    pid = machine.call(Spawn(prompt(2), max_tokens=20))
    assert machine.call(Tail(pid)) == ()
    machine.run(until_s=0.05)
    tail = machine.call(Tail(pid, 3))
    unread = machine.process(pid).unread
    assert len(tail) == 3 < unread
    outputs = machine.call(Read(pid)).outputs
    assert len(outputs) == unread and tuple(one.token for one in outputs[-3:]) == tail
    machine.run()
    assert len(machine.call(Tail(pid, 1000))) == 20, "not a token of the prompt"


# ---- places ----


@pytest.mark.parametrize("tier", ["frames", "host"])
def test_places_are_those_that_are_counted(tier: str) -> None:
    machine = machine_with()
    for salt in range(3):
        pid = machine.spawn(prompt(8, salt), 12)
        machine.run(until_s=machine.now_s + 0.03)
    machine.call(Kill(pid, Signal.STOP))
    counted = {
        "frames": {"free": 0, "held": 1, "cached": 2, "in_transfer": 3},
        "host": {"free": 0, "writing": 3, "doomed": 3},
    }[tier]
    for _ in range(40):
        machine.run(until_s=machine.now_s + 0.01)
        figures, shown = machine.call(Vmstat()), machine.call(Framemap(tier))
        expected: Counter[int] = Counter()
        for name, code in counted.items():
            expected[code] += int(figures[f"{tier}.{name}"])
        found = states(shown)
        assert shown.total == len(shown.codes) == figures[f"{tier}.total"]
        for code, count in expected.items():
            assert found[PlaceCode(code)] == count
    assert found[PlaceCode.HELD] + found[PlaceCode.CACHED] > 0
    if tier == "frames":
        clean = [code for code in shown.codes if code & PlaceCode.CLEAN]
        assert len(clean) > 0, "write-behind has been at work"


def test_no_swap_file_has_no_places() -> None:
    assert machine_with().call(Framemap("disk")) == PlaceMap("disk", 0, 0, b"")


def test_of_others_places_a_tenant_learns_nothing() -> None:
    machine = machine_with()
    for who in (RED, BLUE):
        machine.call(Spawn(prompt(4), max_tokens=30), who)
    machine.run(until_s=0.05)
    mine = machine.call(Framemap(), RED).codes
    theirs = machine.call(Framemap(), BLUE).codes
    every = machine.call(Framemap()).codes
    for red, blue, code in zip(mine, theirs, every, strict=True):
        if code == PlaceCode.FREE:
            assert red == blue == code
        else:
            assert sorted((red, blue)) == sorted((code, int(PlaceCode.FOREIGN)))
    assert PlaceCode.FOREIGN in mine and PlaceCode.FOREIGN in theirs


# ---- prefixes ----


def test_the_tree_of_prefixes() -> None:
    """Two families of prompts: a system prompt of four pages with two documents of three behind it,
    one of them asked about twice; and one of another tenant."""
    machine = machine_with()
    system, one, two = prompt(4), prompt(3, salt=11), prompt(3, salt=23)
    asked = [system + one + (1,), system + two + (2,), system + one + (3,), system + one + (4,)]
    for tokens in asked:
        machine.spawn(tokens, 1)
        machine.finish()
    machine.call(Spawn((*system, 5), max_tokens=1), BLUE)
    machine.call(Spawn((*system, 6), max_tokens=1), BLUE)
    machine.run()
    root, document, *others = machine.call(Prefixes())
    assert (root.depth, root.pages, root.hits, root.parent) == (0, 4, 3, "")
    assert (document.depth, document.pages, document.hits) == (4, 3, 2)
    assert document.parent == root.name and root.name != document.name
    assert root.device + root.host + root.file == root.pages
    assert [(node.tenant, node.pages, node.hits) for node in others] == [("blue", 4, 1)]
    assert [node.tenant for node in machine.call(Prefixes(), BLUE)] == ["blue"]
    assert machine.call(Prefixes(), RED) == ()
    assert machine.call(Prefixes(1)) == (root,)


def test_prefixes_that_are_gone_are_not_listed() -> None:
    machine = machine_with()
    for salt in range(12):
        for _ in range(2):
            machine.spawn((*prompt(9, salt), salt), 1)
            machine.finish()
    nodes = machine.call(Prefixes())
    index = machine.kernel.memory.index
    assert 0 < len(nodes) == len(index.peek_ends()) <= 12
    assert all(page.key is not None for page in index.peek_ends())


# ---- what the scheduler is at ----


def test_the_outlook() -> None:
    """Four run until their pages are too many; pauses are told with their reason."""
    machine = SimMachine(24, 64, page_tokens=PAGE, tunables=Tunables(max_running=4))
    slow = Reader(tokens_per_s=0.5)
    streams = [machine.spawn(prompt(4, salt), 60, reader=slow) for salt in range(4)]
    machine.run(until_s=0.03)
    plan = machine.call(Plan())
    assert plan.policy == "progress" and plan.steps > 0 and plan.time_s == machine.now_s
    assert sorted(plan.decodes) == streams and plan.running == 4 and not plan.chunks
    assert plan.started_s is not None and plan.started_s <= plan.time_s
    while not plan.due:
        machine.run(until_s=machine.now_s + 0.01)
        plan = machine.call(Plan())
    assert [due.pid for due in plan.due] == sorted(
        (due.pid for due in plan.due), key=lambda pid: machine.process(pid).entity.due_s
    )
    assert {due.pid for due in plan.due} <= set(machine.kernel.scheduler.paused)
    pauses = [event for event in plan.decisions if event.kind == "pause"]
    assert pauses and all(dict(event.detail)["reason"] for event in pauses)
    numbers = [event.seq for event in plan.decisions]
    assert numbers == sorted(numbers)


def test_what_waits_is_listed_in_its_order() -> None:
    machine = SimMachine(16, 16, page_tokens=PAGE)
    first = machine.spawn(prompt(10), 20)
    machine.run(until_s=0.02)
    for salt, pages in ((1, 9), (2, 7), (3, 8)):
        machine.spawn(prompt(pages, salt), 4, qos=Qos.BATCH)
    machine.run(until_s=machine.now_s + 0.005)
    plan = machine.call(Plan())
    assert plan.decodes == (first,)
    positions = [machine.call(Stat(one.pid)).queue_position for one in plan.waiting]
    assert len(positions) > 1 and positions == [*range(len(positions))]
    for one in plan.waiting:
        assert one.qos == "batch" and one.todo_tokens > 0 and one.waited_s >= 0 and one.target_s > 0


def test_a_tenant_sees_its_own_part_of_the_plan() -> None:
    machine = machine_with()
    pids = [
        machine.call(Spawn(prompt(2, salt), max_tokens=50), RED if salt % 2 else BLUE)
        for salt in range(6)
    ]
    machine.run(until_s=0.05)
    for who, mine in ((RED, pids[1::2]), (BLUE, pids[::2])):
        plan = machine.call(Plan(), who)
        assert set(plan.decodes) <= set(mine)
        assert {event.pid for event in plan.decisions} == set(mine)
    machine.call(Kill(pids[0], Signal.KILL))
    machine.call(Read(pids[0]))
    assert {event.pid for event in machine.call(Plan(), RED).decisions} == set(pids[1::2])


# ---- errors ----


@pytest.mark.parametrize(
    ("request_", "number"),
    [
        (Maps(Pid(99)), errno.ESRCH),
        (Maps(Pid(1)), errno.ESRCH),
        (Maps(Pid(2), -1), errno.EINVAL),
        (Tail(Pid(1)), errno.ESRCH),
        (Tail(Pid(2), 0), errno.EINVAL),
        (Framemap("moon"), errno.EINVAL),
        (Framemap("host", -1), errno.EINVAL),
        (Prefixes(0), errno.EINVAL),
    ],
)
def test_what_cannot_be_asked(request_: Request, number: int) -> None:
    machine = machine_with()
    machine.call(Spawn((1, 2), max_tokens=5), BLUE)
    machine.call(Spawn((1, 2), max_tokens=5), RED)
    with pytest.raises(KernelError) as problem:
        machine.call(request_, RED)
    assert problem.value.errno == number
