"""What runs in a step: decodes and their pages, chunks of prefill, one budget."""

import dataclasses

import pytest

from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.plan import Plan
from tokenix.sched.scheduler import Scheduler
from tokenix.tests.sched.fakes import (
    FakeSpace,
    FakeTask,
    memory,
    newcomer,
    paused,
    prefilling,
    scheduler,
    stream,
)

NOW = 100.0


def plan(sched: Scheduler, free: int = 0, total: int = 1000, **fields: object) -> Plan:
    return sched.plan(memory(total, free, **fields), NOW)


def runs(made: Plan) -> dict[int, int]:
    return {run.pid: run.tokens for run in made.run}


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan(scheduler()) == Plan()


def test_every_decode_gets_one_token() -> None:
    made = plan(scheduler(ready=[stream(i) for i in range(1, 6)]))
    assert runs(made) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}


# ---- growth ---------------------------------------------------------------------------------


def test_a_page_is_needed_only_where_the_last_is_full() -> None:
    ready = [stream(1, full=True), stream(2)]
    assert runs(plan(scheduler(ready=ready), free=1)) == {1: 1, 2: 1}
    made = plan(scheduler(ready=[stream(1, full=True, lead_s=9.0), stream(2, lead_s=1.0)]))
    assert runs(made) == {2: 1}


def test_the_tightest_reader_gets_the_page() -> None:
    ready = [stream(1, lead_s=2.0, full=True), stream(2, lead_s=1.0, full=True)]
    made = plan(scheduler(ready=ready), free=1)
    assert runs(made)[2] == 1 and [p.pid for p in made.pause] == [1]


def test_growth_displaces_whoever_has_more_lead() -> None:
    sched = scheduler(ready=[stream(1, lead_s=1.0, full=True), stream(2, lead_s=2.0)])
    made = plan(sched)
    assert [p.pid for p in made.pause] == [2] and runs(made) == {1: 1}
    assert not sched.controllers.pressure


def test_last_resort_sets_pressure() -> None:
    sched = scheduler(ready=[stream(1, lead_s=-1.0, full=True), stream(2, lead_s=-0.5)])
    assert [p.pid for p in plan(sched).pause] == [2]
    assert sched.controllers.pressure


def test_two_that_each_lack_one_frame_do_not_wait_for_each_other() -> None:
    """A21, for all policies and all page states."""
    for policy in ("progress", "fcfs", "retract"):
        for dirty in (0, 10):
            ready = [stream(i, 10, 0.0, dirty=dirty, full=True) for i in (1, 2)]
            made = plan(scheduler(policy, ready=ready), total=20)
            assert len(made.pause) == 1
            assert made.run or policy == "progress"


def test_frames_on_their_way_are_awaited_by_growth_too() -> None:
    ready = [stream(1, lead_s=0.0, full=True), stream(2, lead_s=9.0)]
    made = plan(scheduler(ready=ready), outgoing_frames=1)
    assert made.pause == () and runs(made) == {2: 1}


def test_shared_pages_cannot_deadlock() -> None:
    """Two pairs of forks share all their pages; no single pause frees a frame."""
    for policy in ("progress", "fcfs", "retract"):
        ready = [stream(i, 10, 0.0, full=True) for i in (1, 2, 3, 4)]
        for task in ready:
            task.space.exclusive = task.space.exclusive_dirty = 0
        made = plan(scheduler(policy, ready=ready), total=20)
        assert len(made.pause) == 1 and made.wake_s == NOW


# ---- chunks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lead", "tokens"),
    [(9.0, 2047), (0.15, 1499), (0.05, 999), (-3.0, 999)],
)
def test_the_tightest_lead_sizes_the_chunk(lead: float, tokens: int) -> None:
    sched = scheduler(ready=[stream(1, lead_s=lead), prefilling(2, 5000)])
    assert runs(plan(sched)) == {1: 1, 2: tokens}


def test_the_chunk_has_a_floor_and_slow_devices_a_ceiling() -> None:
    sched = scheduler(ready=[stream(1, lead_s=0.0), prefilling(2, 5000)])
    sched.rates.prefill_tokens_per_s = 100.0
    assert runs(plan(sched))[2] == 64
    sched = scheduler(ready=[prefilling(2, 5000)])
    sched.rates.prefill_tokens_per_s = 1000.0
    assert runs(plan(sched)) == {2: 500}


def test_nobody_waits_for_batch_or_hidden_tokens() -> None:
    for fields in ({"qos": Qos.BATCH}, {"reader": Reader(ReaderKind.HIDDEN)}):
        sched = scheduler(ready=[stream(1, lead_s=-9.0, **fields), prefilling(2, 5000)])
        assert runs(plan(sched))[2] == 2047


def test_shortest_remaining_first_and_several_share_a_step() -> None:
    ready = [
        prefilling(1, 3000),
        prefilling(2, 2500, 2000),
        prefilling(3, 100),
        prefilling(4, 2600),
    ]
    assert runs(plan(scheduler(ready=ready))) == {3: 100, 2: 500, 4: 1448}


def test_an_overdue_prefill_goes_first() -> None:
    ready = [prefilling(1, 3000, arrival_s=90.0), prefilling(2, 100)]
    assert list(runs(plan(scheduler(ready=ready)))) == [1]


def test_chat_prefills_before_batch() -> None:
    ready = [prefilling(1, 100, qos=Qos.BATCH), prefilling(2, 2000)]
    assert runs(plan(scheduler(ready=ready))) == {2: 2000, 1: 48}


def test_an_admitted_newcomer_runs_in_the_same_step_even_one_token() -> None:
    made = plan(scheduler(waiting=[newcomer(1, 1), newcomer(2, 30)]), free=100)
    assert runs(made) == {1: 1, 2: 30}


def test_new_input_behind_old_kv_grows_or_takes_what_fits() -> None:
    task = prefilling(1, 400)
    task.space = FakeSpace(96, True, 7, 0, 7, 7)
    for free, tokens in ((19, 304), (4, 80), (0, 16)):
        assert runs(plan(scheduler(ready=[task]), free=free)) == {1: tokens}
    task.space = dataclasses.replace(task.space, mapped=6, exclusive=6)
    other = stream(2, lead_s=-9.0)
    made = plan(scheduler(ready=[task, other]))
    assert len(made.pause) == 1, "it yields, or the other does"


def test_two_turns_that_lack_frames_do_not_wait_for_each_other() -> None:
    ready = [prefilling(i, 400) for i in (1, 2)]
    for task in ready:
        task.space = FakeSpace(160, True, 10, 0, 10, 0)
    made = plan(scheduler(ready=ready), total=20)
    assert len(made.pause) == 1


# ---- the baselines --------------------------------------------------------------------------


def test_fcfs_preempts_the_last_admitted_and_admits_nobody_then() -> None:
    ready = [stream(2, full=True), stream(1), stream(3)]
    made = plan(scheduler("fcfs", ready=ready, waiting=[newcomer(9, 16)]))
    assert [(p.pid, p.mode.value) for p in made.pause] == [(3, "recompute")]
    assert made.admit == () and runs(made) == {2: 1, 1: 1}


def test_fcfs_preempts_itself_if_it_is_the_last() -> None:
    made = plan(scheduler("fcfs", ready=[stream(1), stream(2, full=True)]))
    assert [p.pid for p in made.pause] == [2] and runs(made) == {1: 1}


def test_fcfs_preempted_first_then_arrival_and_stops_at_what_does_not_fit() -> None:
    gone = paused(5, 0)
    gone.space, gone.length = FakeSpace(active=False), 160
    waiting = [newcomer(6, 16 * 30, 1.0), newcomer(7, 16, 2.0)]
    sched = scheduler("fcfs", paused=[gone], waiting=waiting)
    assert (plan(sched, 42).resume, plan(sched, 42).admit) == ((5,), (6,))
    made = plan(sched, 41)
    assert made.resume == (5,) and made.admit == ()
    made = plan(sched, 10)
    assert made.resume == () and made.admit == ()


def test_fcfs_has_one_budget_and_ignores_leads() -> None:
    waiting = [newcomer(i, 1500, float(i)) for i in (3, 1, 2)]
    made = plan(scheduler("fcfs", ready=[stream(9, lead_s=0.0)], waiting=waiting), 900)
    assert runs(made) == {9: 1, 1: 1500, 2: 547} and made.admit == (1, 2)


def test_retract_prefills_first() -> None:
    sched = scheduler("retract", ready=[stream(9)], waiting=[newcomer(1, 100)])
    assert runs(plan(sched, 500)) == {1: 100}
    assert runs(plan(sched, 50)) == {9: 1}, "0.7 * 1000 tokens each are reserved"
    sched.controllers.new_token_ratio = 0.1
    assert runs(plan(sched, 50)) == {1: 100}


def test_retract_takes_the_fewest_outputs_then_the_longest_prompt() -> None:
    def grown(pid: int, prompt: int, outputs: int, full: bool = False) -> FakeTask:
        task = stream(pid, 10, full=full)
        task.entity.prompt_tokens = prompt
        task.length = prompt + outputs
        task.space.computed = task.length - 1
        task.space.mapped = -(-task.length // 16) - full
        return task

    ready = [grown(1, 81, 80, True), grown(2, 100, 20), grown(3, 110, 20), grown(4, 50, 90)]
    made = plan(scheduler("retract", ready=ready))
    assert [p.pid for p in made.pause] == [3]


def test_retract_ratio_decays_and_rises_after_a_retraction() -> None:
    sched = scheduler("retract", ready=[stream(1), stream(2)])
    start = sched.controllers.ratio(sched.tunables)
    for step in range(700):
        sched.note_step(step * 0.01, step * 0.01 + 0.01, 0, 2)
    assert sched.controllers.new_token_ratio == pytest.approx(sched.tunables.retract_ratio_floor)
    sched.note_paused(sched.ready[next(iter(sched.ready))], NOW)
    assert 0.1 <= sched.controllers.new_token_ratio < start
