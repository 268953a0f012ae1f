"""What defines each policy, as a table or a story; what all have in common is in test_plan.py."""

import math

import msgspec
import pytest

from tokenix.sched.entity import Qos, Reader
from tokenix.sched.plan import Plan
from tokenix.sched.policies import POLICIES
from tokenix.sched.policies.mlfq import level_of
from tokenix.sched.policies.qoe import gain_per_token
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.tunables import Tunables, retune
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

NOW = 100.0


def plan(sched: Scheduler, free: int = 0, total: int = 100, **fields: object) -> Plan:
    return sched.plan(memory(total, free, **fields), NOW)


def paused_pids(made: Plan) -> list[int]:
    return [pause.pid for pause in made.pause]


def grown(pid: int, prompt: int, outputs: int, **fields: object) -> FakeTask:
    """A decode with that much behind it."""
    task = stream(pid, -(-(prompt + outputs) // 16), **fields)  # type: ignore[arg-type]
    task.entity.prompt_tokens = prompt
    task.length = prompt + outputs
    task.space.computed = task.length - 1
    return task


def test_all_policies_of_the_comparison_are_there() -> None:
    names = {
        "progress", "fcfs", "fcfs+reject", "retract", "mlfq", "qoe", "buffer", "hrrn",
        "oracle-srpt",
    }  # fmt: skip
    assert POLICIES.keys() == names
    assert next(iter(POLICIES)) == "progress"


# ---- fcfs+reject ----------------------------------------------------------------------------


@pytest.mark.parametrize(("queued", "refused"), [(2500, False), (2501, True)])
def test_reject_bounds_the_queued_prefill(queued: int, refused: bool) -> None:
    sched = scheduler("fcfs+reject", waiting=[newcomer(1, queued - 100), newcomer(2, 100)])
    answer = sched.check_arrival(newcomer(3, 50_000), memory(), NOW)
    assert (answer is not None) is refused, "0.25 s at 10,000 tokens/s, whatever its own size"
    assert answer is None or answer.retry_after_s > 0


def test_reject_counts_those_that_are_computed_again_and_never_drops_from_the_queue() -> None:
    gone = paused(1, 0)
    gone.space.computed, gone.length = 0, 2501
    sched = scheduler("fcfs+reject", paused=[gone])
    assert sched.check_arrival(newcomer(3, 1), memory(), NOW)
    waits = scheduler("fcfs+reject", waiting=[newcomer(1, 1000, 1.0)], ready=[stream(9)])
    assert plan(waits).refuse == ()


# ---- hrrn -----------------------------------------------------------------------------------


def test_hrrn_weighs_waiting_against_cost() -> None:
    def first(long_waits_s: float) -> int:
        waiting = [newcomer(1, 1000, NOW - long_waits_s), newcomer(2, 100, NOW - 0.5)]
        sched = scheduler("hrrn", waiting=waiting)
        return plan(sched, 1000, 1000).admit[0]

    assert first(0.5) == 2, "the same wait: the short one"
    assert first(5.0) == 1, "110 ms against 20 ms: the ratios cross at 2.75 s"


def test_hrrn_changes_its_mind_as_time_passes() -> None:
    waiting = [newcomer(1, 1000, 97.0), newcomer(2, 100, 99.9)]
    sched = scheduler("hrrn", waiting=waiting, ready=[stream(9, 90)])
    view = msgspec.structs.replace(memory(2000), upsets=0)
    sched.plan(view, NOW)
    assert list(sched.queues.waitlist.peek_newcomers()) == [1, 2]
    sched.plan(view, NOW + 10.0)
    assert list(sched.queues.waitlist.peek_newcomers()) == [2, 1]


# ---- mlfq -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "outputs", "level"),
    [
        (1, 1, 0),
        (512, 1, 0),
        (513, 1, 1),  # skip-join: its prefill is more than the first quantum
        (1025, 1, 2),
        (10, 600, 1),  # demoted: 512 tokens of service
        (10, 512 + 1024, 2),
        (10, 512 + 1024 + 2048 + 1, 3),
        (1000, 200, 2),  # joined at level 1, whose 1024 tokens are used up
    ],
)
def test_mlfq_levels_by_prefill_and_service(prompt: int, outputs: int, level: int) -> None:
    assert level_of(grown(1, prompt, outputs), Tunables()) == level


def test_mlfq_swaps_the_lowest_level_out_for_a_newcomer() -> None:
    old, new = grown(1, 100, 3000), grown(2, 100, 50)
    sched = scheduler("mlfq", ready=[old, new], waiting=[newcomer(3, 160, 99.0)])
    made = plan(sched, 3, total=207)
    assert paused_pids(made) == [1] and made.pause[0].mode.value == "swap"


def test_mlfq_pauses_nobody_for_a_lower_level() -> None:
    sched = scheduler("mlfq", ready=[grown(1, 100, 50)], waiting=[newcomer(3, 16 * 60)])
    assert plan(sched, 20, total=60).pause == ()


def test_mlfq_frees_frames_ahead_of_need() -> None:
    ready = [grown(1, 100, 3000), grown(2, 100, 50)]
    sched = scheduler("mlfq", ready=ready, waiting=[newcomer(3, 16 * 190)])
    made = plan(sched, 3, total=208)
    assert paused_pids(made) == [1] and made.admit == (), "4 frames are to be free, 3 are"


def test_mlfq_promotes_the_starving() -> None:
    low = grown(1, 100, 5000)
    low.space.active, low.space.missing, low.space.exclusive = False, low.space.mapped, 0
    low.entity.paused_since_s = 70.0
    sched = scheduler("mlfq", paused=[low], ready=[grown(2, 100, 3000)])
    made = plan(sched, 200, total=400)
    assert paused_pids(made) == [2], "30 s without service"
    low.entity.paused_since_s = 90.0
    assert plan(sched, 200, total=400).pause == ()
    low.entity.paused_since_s = 70.0
    sched.note_resumed(low, NOW)
    assert level_of(low, sched.tunables) == 0, "a quantum of the first level again"


# ---- qoe ------------------------------------------------------------------------------------


def gain(task: FakeTask) -> float:
    sched = scheduler("qoe")
    task.entity.waiting_since_s = task.entity.arrival_s
    world = World(sched.queues, memory(), NOW, sched.tunables, sched.rates, 1.0, 0.7)
    return gain_per_token(task, world)


def test_qoe_gains_by_what_a_reader_would_lose_per_token() -> None:
    full, low, late = (grown(1, 100, 50, lead_s=lead) for lead in (9.0, 1.0, -5.0))
    assert gain(full) == 0 < gain(low) < gain(late)
    assert gain(grown(1, 1000, 50, lead_s=1.0)) < gain(low), "more KV for the same"
    assert gain(newcomer(1, 100)) > gain(low)
    assert gain(newcomer(1, 100, 60.0)) < gain(newcomer(1, 100)), "its answer is spoilt already"
    assert gain(newcomer(1, 50_000)) == 0, "served, it waits as long for its own prefill"


def test_qoe_pauses_whom_nobody_reads_for_whoever_gains() -> None:
    ready = [grown(1, 400, 100, lead_s=30.0), grown(2, 400, 100, lead_s=0.5)]
    sched = scheduler("qoe", ready=ready, waiting=[newcomer(3, 160)])
    assert paused_pids(plan(sched, 2, total=66)) == [1]


# ---- buffer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("lead", "paused_for_it"), [(1.9, False), (2.1, True)])
def test_buffer_pauses_above_two_seconds(lead: float, paused_for_it: bool) -> None:
    sched = scheduler("buffer", ready=[stream(1, 50, lead)], waiting=[newcomer(2, 16 * 40)])
    assert bool(plan(sched, in_s_per_page=0.1).pause) is paused_for_it, "the way back is ignored"


def test_buffer_takes_the_largest_first() -> None:
    ready = [stream(1, 50, 3.0), stream(2, 50, 9.0, reader=Reader(tokens_per_s=2.0))]
    sched = scheduler("buffer", ready=ready, waiting=[newcomer(3, 160)])
    assert paused_pids(plan(sched)) == [2]


@pytest.mark.parametrize(("lead", "resumed"), [(0.79, True), (0.81, False)])
def test_buffer_resumes_below_four_fifths_of_a_second(lead: float, resumed: bool) -> None:
    sched = scheduler("buffer", paused=[paused(1, 10, lead_s=lead)], ready=[stream(9)])
    assert bool(plan(sched, 50, in_queue_s=0.5).resume) is resumed


def test_buffer_serves_in_order_of_arrival_and_refuses_nobody() -> None:
    waiting = [newcomer(1, 5000, 50.0), newcomer(2, 16, 99.0)]
    sched = scheduler("buffer", waiting=waiting, ready=[stream(9, 10, 0.0)])
    made = plan(sched, 100)
    assert made.admit == () and made.refuse == (), "the long one blocks the short one"
    assert sched.check_arrival(newcomer(3, 100_000), memory(), NOW) is None


# ---- oracle-srpt ----------------------------------------------------------------------------


def test_srpt_serves_the_shortest_that_is_left() -> None:
    long, short = grown(1, 100, 50, max_tokens=5000), grown(2, 100, 990, max_tokens=1000)
    sched = scheduler("oracle-srpt", ready=[long, short], waiting=[newcomer(3, 160, max_tokens=20)])
    assert paused_pids(plan(sched, 0, total=80)) == [1]
    sched = scheduler("oracle-srpt", ready=[short], waiting=[newcomer(3, 160, max_tokens=900)])
    assert plan(sched, 0, total=71).pause == ()


# ---- those that seat by rank ----------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mlfq", "qoe", "oracle-srpt"])
def test_seats_stop_at_the_first_that_does_not_fit(policy: str) -> None:
    waiting = [newcomer(1, 160, 98.0, max_tokens=10), newcomer(2, 16 * 95, 99.0, max_tokens=900)]
    sched = scheduler(policy, waiting=waiting)
    assert plan(sched, 100).admit == (1,)


@pytest.mark.parametrize("policy", ["mlfq", "qoe", "oracle-srpt"])
def test_seats_need_no_victim_where_all_fit(policy: str) -> None:
    ready = [prefilling(1, 100), grown(2, 100, 900, qos=Qos.BATCH)]
    sched = scheduler(policy, ready=ready, waiting=[newcomer(3, 50)])
    made = plan(sched, 500, total=1000)
    assert made.admit == (3,) and made.pause == ()
    assert sorted(run.pid for run in made.run) == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_runing": 8}, "no tunable 'max_runing'"),
        ({"max_running": 1.5}, "max_running must be a whole number"),
        ({"margin_s": math.nan}, "margin_s must be finite"),
        ({"margin_s": -1.0}, "margin_s must not be negative"),
        ({"max_running": 1 << 20}, "max_running is above step_tokens"),
        ({"retract_ratio_floor": 0.9}, "retract_ratio_floor=0.9 cannot be: out of range"),
    ],
)
def test_constants_that_cannot_be_are_named(values: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        retune(Tunables(), values)
    assert retune(Tunables(), {"max_running": 8.0}) == Tunables(max_running=8)
