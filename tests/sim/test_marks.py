"""Proof that the rare branches are reached: by random worlds, and by stories where those are too
seldom there."""

from collections.abc import Callable
from functools import partial

import pytest

from tokenix.kernel.calls import Signal
from tokenix.tests.kernel.test_life import test_no_wait_is_left_behind as no_wait_is_left_behind
from tokenix.tests.sched.fakes import stream
from tokenix.tests.sched.test_room import test_leaders_are_the_last_of_the_last as leaders_come_last
from tokenix.tests.sched.test_room import test_never_a_victim as never_a_victim
from tokenix.tests.sched.test_step import test_shared_pages_cannot_deadlock as cannot_deadlock
from tokenix.tests.sim import test_gaps as gaps
from tokenix.tests.sim import test_meetings as meetings
from tokenix.tests.sim import test_scenarios_d as copies
from tokenix.tests.sim import test_scenarios_d_file as file
from tokenix.tests.sim import test_scenarios_f as exits
from tokenix.tests.sim import test_swapoff as swapoff
from tokenix.tests.sim.draws import KINDS
from tokenix.tests.sim.marks import Mark, Watch
from tokenix.tests.sim.rare import RARE
from tokenix.tests.sim.world import World

WORLDS = 600
"""In so many all must be reached that are not told as stories; mostly it takes some hundred."""

STORIES: list[tuple[set[str], Callable[[], None]]] = [
    (
        {"leader protected in the last resort", "all are leaders"},
        leaders_come_last,
    ),
    ({"leader protected from displacement"}, lambda: never_a_victim("leader", stream(1))),
    ({"wait that nobody is left for"}, no_wait_is_left_behind),
    ({"nobody maps what was loaded"}, lambda: exits.test_f1_killed_while_loading(True)),
    (
        {"abandoned copy in", "lost while loading", "slot under a copy is freed"},
        lambda: copies.test_d8_a_copy_that_never_ends_is_given_up(True, "hang_in"),
    ),
    (
        {"resume waits for a writer", "abandoned under a tail"},
        lambda: copies.test_d8_resumed_while_its_last_page_is_late(True, "delay_out"),
    ),
    ({"forked in a gap"}, lambda: gaps.test_forked_in_a_gap(True)),
    ({"paused in a gap"}, lambda: gaps.test_signals_in_a_gap(True, Signal.STOP)),
    ({"no slot for a fetch"}, meetings.test_a_resume_whose_pages_sank_and_have_no_way_back),
    ({"tail lost behind a gap"}, lambda: gaps.test_tail_lost_behind_a_gap(True, "fail_in", 0)),
    ({"abandoned store"}, lambda: file.test_d8_a_store_has_a_deadline(True, "hang_store")),
    ({"drained page rises"}, swapoff.test_pages_rise_where_there_is_room_for_them),
    ({"fork without a frame"}, meetings.test_a_fork_for_whose_tail_no_frame_is_left),
    ({"all are blocked"}, cannot_deadlock),
    ({"abandoned fetch"}, lambda: file.test_d8_a_fetch_has_a_deadline(True, "hang_fetch")),
    (
        {"lost while fetching"},
        lambda: file.test_d7_d14_what_the_file_lost_is_computed_again(True, "fail_fetch", None),
    ),
    ({"prompt found in the file"}, file.test_a_prompt_in_the_file_is_there_when_its_turn_comes),
    ({"fetch joins a fetch"}, lambda: meetings.test_a_fork_joins_the_fetch_of_its_parent(True)),
    (
        {"resume finds pages sunk"},
        lambda: meetings.test_a_resume_finds_its_pages_sunk(True, "progress"),
    ),
    (
        {"plan miss of a decode"},
        lambda: with_patches(partial(meetings.test_a_plan_that_promises_too_much, True)),
    ),
]
"""What is reached by which."""

TOLD = set[str]().union(*(names for names, _ in STORIES))


def with_patches(story: Callable[[pytest.MonkeyPatch], None]) -> None:
    """A story that changes what is not its own, and changes it back."""
    with pytest.MonkeyPatch.context() as patches:
        story(patches)


@pytest.mark.parametrize(("names", "story"), STORIES)
def test_stories_reach(names: set[str], story: Callable[[], None]) -> None:
    watch = Watch([mark for mark in RARE if mark.name in names])
    assert set(watch.missed) == names, "they are on the list"
    with watch.on():
        story()
    assert not watch.missed


def test_worlds_reach() -> None:
    """Of all kinds, until nothing is missed."""
    watch = Watch([mark for mark in RARE if mark.name not in TOLD])
    with watch.on():
        for seed in range(WORLDS):
            World(seed, draw=list(KINDS.values())[seed // 2 % 3]).run()
            if not watch.missed:
                break
    assert not watch.missed


# ---- marks themselves ----


def climb(height: int) -> int:
    steps = 0
    while steps < height:
        steps += 1
        if steps > 3:
            break
    return steps


HERE = "tests.sim.test_marks.climb"


def test_a_mark_is_reached_only_by_its_line() -> None:
    high = Mark("high", HERE, "if steps > 3: / break")
    even = Mark("even", HERE, "if steps > 3", lambda v: v["steps"] % 2 == 0)
    watch = Watch([high, even])
    climb(9)
    assert watch.missed == ["even", "high"], "nobody watched"
    with watch.on():
        climb(1)
        assert watch.missed == ["even", "high"]
        climb(3)
        assert watch.missed == ["high"]
        climb(9)
    assert not watch.missed


@pytest.mark.parametrize("line", ["nothing begins so", "steps"])
def test_a_line_that_is_not_one_is_told(line: str) -> None:
    with pytest.raises(AssertionError, match="name it anew"):
        Watch([Mark("lost", HERE, line)])
