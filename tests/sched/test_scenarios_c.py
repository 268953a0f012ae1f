"""Group C: long prefills against streams. Each test is named after how it failed elsewhere."""

import pytest

from tokenix.sched.plan import Plan
from tokenix.sched.scheduler import Scheduler
from tokenix.tests.sched.fakes import memory, prefilling, scheduler, stream
from tokenix.tests.sched.quick import Quick, quick_task

NOW = 100.0


def plan(sched: Scheduler, free: int = 500, total: int = 1000) -> Plan:
    return sched.plan(memory(total, free), NOW)


def test_c1_short_requests_do_not_wait_for_a_prompt_of_128k() -> None:
    tasks = [quick_task(1, 128_000, 10)]
    tasks += [quick_task(i, 300, 40, arrival_s=0.05 * i) for i in range(2, 60)]
    done = Quick("progress", tasks, 12_000, 12_000).run()
    short = [t.first_s - t.entity.arrival_s for t in tasks[1:] if t.first_s is not None]
    assert len(short) == 58 and max(short) < 0.5
    assert tasks[0].first_s is not None and tasks[0].first_s < 2 * 128_000 / 20_000, "patience"
    assert done.stalled() == 0


def test_c3_a_short_request_behind_one_of_600k_waits_a_step() -> None:
    tasks = [quick_task(1, 600_000, 4), quick_task(2, 101, 30, arrival_s=5.0)]
    Quick("progress", tasks, 40_000, 0).run()
    assert tasks[1].first_s is not None and tasks[1].first_s - 5.0 < 0.5


def test_c4_decodes_go_on_while_a_prefill_runs() -> None:
    tasks = [quick_task(i, 100, 400) for i in range(1, 9)]
    tasks.append(quick_task(9, 60_000, 4, arrival_s=1.0))
    machine = Quick("progress", tasks, 8000, 0)
    machine.run(until_s=1.0)
    before = sum(task.outputs for task in tasks[:8])
    machine.run(until_s=3.0)
    rate = (sum(task.outputs for task in tasks[:8]) - before) / 2.0 / 8
    assert rate >= 8.0, "each reader takes 10 a second and has some lead"


@pytest.mark.parametrize(("prefill_per_s", "lead"), [(2400.0, 0.2), (2400.0, 2.0), (20_000.0, 0.2)])
def test_c6_the_tightest_lead_sizes_the_chunk(prefill_per_s: float, lead: float) -> None:
    """A chunk of 8,192 at 2,400 tokens/s would give one token per 3.5 s to every stream."""
    sched = scheduler(ready=[stream(1, lead_s=lead), prefilling(2, 16_000)])
    sched.rates.prefill_tokens_per_s = prefill_per_s
    chunk = next(run.tokens for run in plan(sched).run if run.pid == 2)
    assert chunk / prefill_per_s <= max(0.1, min(lead, 0.5))


def test_c6_no_stream_stalls_on_a_slow_device() -> None:
    tasks = [quick_task(i, 50, 150) for i in range(1, 5)]
    tasks += [quick_task(i, 4000, 10, arrival_s=1.0 + i) for i in range(5, 9)]
    done = Quick("progress", tasks, 4000, 0, prefill_per_s=2400.0).run()
    assert done.stalled() == 0


def test_c7_prefill_first_starves_decodes_and_progress_does_not() -> None:
    def stalled(policy: str) -> float:
        tasks = [quick_task(i, 100, 200) for i in range(1, 11)]
        tasks += [quick_task(i, 3800, 4, arrival_s=0.5 + 0.2 * i) for i in range(11, 60)]
        return Quick(policy, tasks, 20_000, 0).run().stalled()

    assert stalled("progress") == 0
    assert stalled("retract") > 0.1


def test_c8_two_saturating_prefills_do_not_delay_the_first() -> None:
    def first_s(count: int) -> float:
        tasks = [quick_task(i, 20_000, 4, arrival_s=0.01 * i) for i in range(1, 1 + count)]
        Quick("progress", tasks, 8000, 0).run()
        return min(task.first_s for task in tasks if task.first_s is not None)

    assert first_s(2) < 1.1 * first_s(1)
