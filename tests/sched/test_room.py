"""Whom to pause, and when nobody: the scenarios A2, A3, A15, A21 as tables."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenix.sched.draft import Draft
from tokenix.sched.entity import Qos, Reader, ReaderKind, Task
from tokenix.sched.plan import PauseMode
from tokenix.sched.policies import FCFS, PROGRESS
from tokenix.sched.room import Bar, Room, choose_victims, last_resort, make_room
from tokenix.sched.view import MemoryView
from tokenix.sched.world import World
from tokenix.tests.sched.fakes import (
    FakeTask,
    memory,
    newcomer,
    paused,
    prefilling,
    scheduler,
    stream,
)

ANYBODY = Bar(0, -math.inf)


def anybody(draft: Draft, task: Task) -> Bar:
    return ANYBODY


def no_lead(draft: Draft, task: Task) -> Bar:
    return Bar(0, 0.0)


def above_a_second(draft: Draft, task: Task) -> Bar:
    return Bar(0, 1.0)


def draft(view: MemoryView, policy: str = "progress", **queues: list[FakeTask]) -> Draft:
    made = scheduler(policy, **queues)
    world = World(made.queues, view, 100.0, made.tunables, made.rates, 1.0, 0.7)
    made.queues.settle(world, made.policy)
    return Draft.open(world, made.policy)


def victims(made: Draft) -> list[int]:
    return list(made.pause)


def test_free_and_cached_frames_come_first() -> None:
    made = draft(memory(free=3, cached_frames=4), ready=[stream(1)])
    assert make_room(made, 7, newcomer(9), anybody, "t") is Room.NOW
    assert not made.pause


def test_frames_on_their_way_count_before_a_second_victim() -> None:
    made = draft(memory(free=3, outgoing_frames=4), ready=[stream(1)])
    assert make_room(made, 7, newcomer(9), anybody, "t") is Room.LATER
    assert not made.pause


def test_own_clean_pages_are_no_room_for_oneself() -> None:
    me = paused(5, pages=10, idle=4)
    made = draft(memory(free=2, cached_frames=4), paused=[me])
    assert make_room(made, 3, me, None, "t") is Room.NO
    assert make_room(made, 2, me, None, "t") is Room.NOW


def test_a_dirty_victim_helps_later_a_clean_one_now() -> None:
    for dirty, answer in ((0, Room.NOW), (1, Room.LATER)):
        made = draft(memory(), ready=[stream(1, pages=10, dirty=dirty)])
        assert make_room(made, 10, newcomer(9), anybody, "t") is answer
        assert victims(made) == [1]


def test_nobody_is_paused_for_nothing() -> None:
    made = draft(memory(), ready=[stream(1, pages=10), stream(2, pages=10)])
    assert make_room(made, 21, newcomer(9), anybody, "t") is Room.NO
    assert not made.pause


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("no lead", stream(1, lead_s=1.0)),
        ("before its first token", prefilling(1, 160)),
        ("computed again", prefilling(1, 160)),
        ("hidden reasoning", stream(1, reader=Reader(ReaderKind.HIDDEN))),
        ("shares every page", stream(1)),
        ("leader", stream(1)),
    ],
)
def test_never_a_victim(name: str, task: FakeTask) -> None:
    if name == "computed again":
        task.entity.first_token_s, task.entity.due_s = 1.0, 200.0
    if name == "shares every page":
        task.space.exclusive = task.space.exclusive_dirty = 0
    task.entity.leader = name == "leader"
    made = draft(memory(), ready=[task])
    assert make_room(made, 1, newcomer(9), above_a_second, "t") is Room.NO, name
    assert not made.pause


def test_most_lead_goes_first_by_time_not_by_tokens() -> None:
    slow = stream(1, lead_s=20.0, reader=Reader(tokens_per_s=2.0))
    fast = stream(2, lead_s=5.0, reader=Reader(tokens_per_s=100.0))
    made = draft(memory(), ready=[slow, fast])
    make_room(made, 1, newcomer(9), anybody, "t")
    assert victims(made) == [1]


def test_lead_counts_net_of_twice_the_way_back() -> None:
    long = stream(1, pages=50, lead_s=12.0)
    short = stream(2, pages=10, lead_s=8.0)
    made = draft(memory(in_s_per_page=0.1), ready=[long, short])
    make_room(made, 1, newcomer(9), above_a_second, "t")
    assert victims(made) == [2]  # 12 - 2*5 = 2 < 8 - 2*1 = 6


def test_stopped_then_idle_then_batch_then_streams() -> None:
    tasks = {
        "held": stream(1, lead_s=0.5),
        "idle": stream(2, qos=Qos.IDLE),
        "batch": stream(3, qos=Qos.BATCH),
        "stream": stream(4, lead_s=1000.0),
    }
    ready = [tasks[name] for name in ("stream", "batch", "idle")]
    for count, expected in enumerate(([1], [1, 2], [1, 2, 3], [1, 2, 3, 4]), start=1):
        made = draft(memory(), ready=ready, held=[tasks["held"]])
        make_room(made, 10 * count, newcomer(9), anybody, "t")
        assert victims(made) == expected


def test_streams_need_host_slots_or_lead_to_be_computed_again_batch_needs_neither() -> None:
    for host, lead, qos, answer in (
        (10, 0.1, Qos.STREAM, Room.LATER),
        (9, 0.1, Qos.STREAM, Room.NOW),  # 16 tokens at 10,000/s and a fifth of the compute: 8 ms
        (0, 0.1, Qos.STREAM, Room.NOW),
        (0, 0.07, Qos.STREAM, Room.NO),
        (9, 0.0, Qos.BATCH, Room.NOW),  # the dirty page has no slot: dropped, not copied
    ):
        task = stream(1, pages=10, lead_s=lead, qos=qos)
        made = draft(memory(host_free_slots=host, in_s_per_page=0.0), ready=[task])
        assert make_room(made, 10, newcomer(9), no_lead, "t") is answer


def test_what_is_to_be_computed_again_already_comes_before_it() -> None:
    dropped = paused(2, 0)
    dropped.space.computed, dropped.length = 0, 20_000
    for others, answer in (([], Room.NOW), ([dropped], Room.NO)):
        made = draft(memory(host_free_slots=0), ready=[stream(1, lead_s=9.0)], paused=others)
        assert make_room(made, 10, newcomer(9), no_lead, "t") is answer


def test_without_a_host_tier_only_much_lead_is_paused_for_others() -> None:
    for lead, room in ((0.05, Room.NO), (30.0, Room.NOW)):
        made = draft(memory(swap=False, host_slots=0), ready=[stream(1, pages=10, lead_s=lead)])
        assert make_room(made, 10, newcomer(9), no_lead, "t") is room
        assert [pause.mode for pause in made.pause.values()] == [PauseMode.RECOMPUTE] * (lead > 1)


def test_a_superfluous_victim_is_left_out() -> None:
    made = draft(memory(), ready=[stream(1, pages=2, lead_s=9.0), stream(2, pages=10, lead_s=8.0)])
    make_room(made, 9, newcomer(9), anybody, "t")
    assert victims(made) == [2]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(-2, 30)), min_size=1, max_size=7),
    st.integers(1, 40),
)
def test_victims_are_enough_and_minimal(shapes: list[tuple[int, int]], short: int) -> None:
    tasks = [stream(i + 1, pages, float(lead)) for i, (pages, lead) in enumerate(shapes)]
    made = draft(memory(in_s_per_page=0.0), ready=tasks)
    chosen = [
        v.task.space.exclusive for v in choose_victims(made, short, newcomer(99), Bar(0, 1.0))
    ]
    able = sum(task.space.exclusive for task in tasks if task.entity.due_s - 100.0 > 1.0)
    assert bool(chosen) == (able >= short)
    if chosen:
        assert sum(chosen) >= short
        assert min(chosen) > 0
        assert all(sum(few) < short for few in combinations(chosen, len(chosen) - 1))
        assert len(chosen) <= math.ceil(short / min(chosen))


# ---- last resort ----------------------------------------------------------------------------


def test_last_resort_takes_most_lead_even_below_the_bar() -> None:
    tasks = [stream(1, lead_s=-1.0, full=True), stream(2, lead_s=0.2), stream(3, lead_s=0.1)]
    made = draft(memory(), ready=tasks)
    assert last_resort(made, tasks[0], 1) is Room.NOW
    assert victims(made) == [2]


def test_last_resort_pauses_oneself_only_if_others_go_on() -> None:
    most, other = stream(1, lead_s=3.0, full=True), stream(2, lead_s=0.1)
    made = draft(memory(), ready=[most, other])
    assert last_resort(made, most, 1) is Room.NO
    assert victims(made) == [1]
    made = draft(memory(), ready=[most, prefilling(2, 160)])
    assert last_resort(made, most, 1) is Room.NO
    assert not made.pause


def test_leaders_are_the_last_of_the_last() -> None:
    me, leader, humble = stream(1, lead_s=-5.0), stream(2, lead_s=9.0), stream(3, lead_s=0.0)
    leader.entity.leader = True
    made = draft(memory(), ready=[me, leader, humble])
    last_resort(made, me, 1)
    assert victims(made) == [3]
    me.entity.leader = True
    made = draft(memory(), ready=[me, leader])
    last_resort(made, me, 1)
    assert victims(made) == [2]


def test_only_stopped_processes_yield_where_the_policy_does_not_displace() -> None:
    made = draft(memory(), "fcfs", ready=[stream(1)], held=[stream(2)])
    assert make_room(made, 11, newcomer(9), None, "t") is Room.NO
    assert make_room(made, 10, newcomer(9), None, "t") is Room.NOW
    assert victims(made) == [2]
    assert FCFS.pause_mode is not PROGRESS.pause_mode
