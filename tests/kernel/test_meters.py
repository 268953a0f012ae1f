"""Meters: what they say is what callers met with, per class and tenant."""

from bisect import bisect_left
from itertools import pairwise

import pytest

from tokenix.drivers.sim import CostModel
from tokenix.kernel.answers import ExitReason, MeterSeries, Rusage
from tokenix.kernel.calls import (
    Fork,
    KernelError,
    Kill,
    Metrics,
    Principal,
    Ps,
    Read,
    Resume,
    ShmOpen,
    Signal,
    Spawn,
    Stat,
    Suspend,
    Vmstat,
    Wait,
    Write,
)
from tokenix.kernel.meters import BOUNDS, COUNTS, OTHERS, Histogram
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.tunables import Tunables
from tokenix.tests.images import lab as images
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(40, 53))
ONE = Principal("one")
TWO = Principal("two")


def series(machine: SimMachine, tenant: str = "default", qos: str = "stream") -> MeterSeries:
    report = machine.call(Metrics())
    (found,) = [s for s in report.series if (s.tenant, s.qos) == (tenant, qos)]
    return found


def gaps(machine: SimMachine, pids: list[Pid]) -> list[float]:
    """Seconds between tokens, by the times in the pipes."""
    found: list[float] = []
    for pid in pids:
        outputs = machine.call(Read(pid)).outputs
        found += [after.time_s - before.time_s for before, after in pairwise(outputs)]
    return found


def ended(machine: SimMachine, pids: list[Pid]) -> list[Rusage]:
    machine.run()
    return [machine.call(Wait(pid)).rusage for pid in pids]


# ---- histograms ----


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    histogram.add(9.0, 3)
    assert histogram.counts == [2, 2, 4] and histogram.sum == 34.0


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_ascend(name: str) -> None:
    assert all(low < high for low, high in pairwise(BOUNDS[name]))


# ---- latencies ----


@pytest.mark.parametrize("read", [False, True])
def test_gaps_between_tokens_are_those_of_the_pipes(read: bool) -> None:
    """Whether they decode as a band or a reader waits for each token; while others come, go and
    are left out of passes."""
    machine = SimMachine(64, 64)
    pids = []
    for number in range(6):
        prompt = tuple(range(number, number + 9))
        pids.append(machine.call(Spawn(prompt, max_tokens=8 + 5 * number)))
        machine.run(until_s=machine.now_s + 0.013)
        if read and number == 3:
            machine.start(Read(pids[3], 1))
    machine.call(Kill(pids[5], Signal.STOP))
    machine.run(until_s=machine.now_s + 0.5)
    machine.call(Kill(pids[5], Signal.CONT))
    machine.run()
    meters = series(machine)
    expected = gaps(machine, pids)
    lost = 1 if read else 0  # between what the blocked read took and what comes after it
    itl, bounds = meters.spans["itl_s"], BOUNDS["itl_s"]
    assert sum(itl.counts) == len(expected) + lost == meters.counts["output_tokens"] - len(pids)
    if not read:
        assert itl.sum == pytest.approx(sum(expected))
        counted = [0] * (len(bounds) + 1)
        for gap in expected:
            counted[bisect_left(bounds, gap)] += 1
        assert list(itl.counts) == counted
    assert sum(meters.spans["ttft_s"].counts) == len(pids)


def test_sums_are_those_of_the_usages() -> None:
    """Streams that preempt each other, and one that is killed."""
    machine = SimMachine(16, 64)
    pids = [
        machine.spawn(tuple(range(n, n + 12)), 40, reader=Reader(tokens_per_s=1.0))
        for n in range(5)
    ]
    machine.run(until_s=0.2)
    machine.call(Kill(pids[4], Signal.KILL))
    usages = ended(machine, pids)
    meters = series(machine)
    assert sum(u.preemptions for u in usages) > 0 and sum(u.paused_s for u in usages) > 0
    for name, span in (("prefill_s", "prefill_s"), ("decode_s", "decode_s"),
                       ("paused_s", "paused_s"), ("total_s", "e2e_s")):  # fmt: skip
        total = sum(getattr(usage, name) for usage in usages)
        assert meters.spans[span].sum == pytest.approx(total), span
        assert sum(meters.spans[span].counts) == len(pids)
    assert meters.spans["queue_s"].sum == pytest.approx(sum(u.queue_s for u in usages))
    first = [usage.ttft_s for usage in usages if usage.ttft_s is not None]
    assert sum(meters.spans["ttft_s"].counts) == len(first)
    assert meters.spans["ttft_s"].sum == pytest.approx(sum(first))
    for name in ("output_tokens", "recomputed_tokens", "preemptions", "stalls"):
        assert meters.counts[name] == sum(getattr(usage, name) for usage in usages), name
    assert meters.ends == {"length": 4, "killed": 1}
    pauses = meters.spans["pause_s"]
    assert sum(pauses.counts) == meters.counts["preemptions"]


def test_a_preempted_prefill_counts_into_the_first_token_a_decode_between_tokens() -> None:
    tunables = Tunables(step_tokens=8, step_min_prefill_tokens=4, max_running=8)
    machine = SimMachine(16, 64, cost=CostModel(prefill_token_s=0.02), tunables=tunables)
    pid = machine.spawn((*PROMPT, *PROMPT), 6)
    while not machine.process(pid).space.computed:
        machine.advance()
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=5.0)
    machine.call(Kill(pid, Signal.CONT))
    while not machine.output[pid]:
        machine.advance()
    machine.run(until_s=machine.now_s + 0.01)
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=20.0)
    machine.call(Kill(pid, Signal.CONT))
    machine.run()
    spans = series(machine).spans
    assert spans["ttft_s"].sum > 4.5 and sum(spans["ttft_s"].counts) == 1
    assert spans["itl_s"].sum > 14.0 and sum(spans["itl_s"].counts) == 5


def test_each_turn_of_a_conversation_counts_by_itself() -> None:
    """The time in which nothing is asked of it is nobody's latency."""
    machine = SimMachine(32, 64)
    pid = machine.spawn(PROMPT, 4, keep_open=True)
    machine.run(until_s=100.0)
    machine.call(Write(pid, (1, 2)))
    machine.run(until_s=200.0)
    machine.call(Write(pid, eof=True))
    machine.run()
    meters = series(machine)
    assert meters.ends == {"length": 2}
    assert meters.counts["prompt_tokens"] == len(PROMPT) + 2
    for name in ("ttft_s", "e2e_s", "prefill_s", "decode_s"):
        assert sum(meters.spans[name].counts) == 2
        assert 0 < meters.spans[name].sum < 1.0, name


def test_a_fork_waits_from_its_birth() -> None:
    machine = SimMachine(32, 64)
    pid = machine.spawn(PROMPT, 20)
    machine.run(until_s=0.05)
    (child,) = machine.call(Fork(pid))
    born_s = machine.now_s
    machine.follow(child)
    machine.run()
    meters = series(machine)
    assert sum(meters.spans["ttft_s"].counts) == 1, "its parent has had the first token"
    total_s = machine.process(pid).usage.total_s + machine.process(child).usage.total_s
    assert meters.spans["e2e_s"].sum == pytest.approx(total_s) and total_s > machine.now_s - born_s
    assert meters.counts["prompt_tokens"] == len(PROMPT), "the parent's"


def test_what_was_suspended_goes_on_counting() -> None:
    machine = images.boot()
    reader = Reader(ReaderKind.PACED, 200.0)
    pid = machine.spawn(PROMPT, 30, reader=reader)
    machine.run(until_s=0.03)
    machine.start(Kill(pid, Signal.STOP))
    machine.run(until_s=3.0)
    machine.call(Kill(pid, Signal.CONT))
    machine.run(until_s=3.05)
    stalls = machine.process(pid).entity.stalls
    images.ask(machine, Suspend(pid, "image"))
    back = images.ask(machine, Resume("image"))
    machine.follow(back)
    machine.run()
    meters = series(machine)
    assert meters.ends == {"suspended": 1, "length": 1}
    assert stalls and machine.process(back).usage.stalls == meters.counts["stalls"] >= stalls
    assert meters.counts["output_tokens"] == 30
    assert sum(meters.spans["ttft_s"].counts) == 1


# ---- who is told what ----


def test_classes_and_tenants_have_their_own() -> None:
    machine = SimMachine(32, 64)
    machine.call(Spawn(PROMPT, max_tokens=3, qos=Qos.INTERACTIVE), ONE)
    machine.call(Spawn(PROMPT, max_tokens=4, qos=Qos.BATCH), ONE)
    machine.call(Spawn(PROMPT, max_tokens=5), TWO)
    machine.run()
    whole = machine.call(Metrics())
    assert [(s.tenant, s.qos) for s in whole.series] == [
        ("one", "interactive"), ("one", "batch"), ("two", "stream"),
    ]  # fmt: skip
    assert [s.counts["output_tokens"] for s in whole.series] == [3, 4, 5]
    assert {s.tenant for s in machine.call(Metrics(), ONE).series} == {"one"}
    assert machine.call(Metrics(), Principal("three")).series == ()
    assert all(set(s.counts) == set(COUNTS) and set(s.spans) == set(BOUNDS) for s in whole.series)


def test_hostile_tenants_do_not_grow_the_table() -> None:
    machine = SimMachine(32, 64, params=Params(poison=True, max_metered_tenants=2))
    for number in range(20):
        machine.call(Spawn(PROMPT, max_tokens=1), Principal(f"tenant-{number}"))
    machine.call(Spawn(PROMPT, max_tokens=1), Principal(OTHERS))
    machine.run()
    report = machine.call(Metrics())
    assert [s.tenant for s in report.series] == [OTHERS, "tenant-0", "tenant-1"]
    assert report.series[0].counts["output_tokens"] == 19
    for name in (OTHERS, "tenant-7"):
        assert machine.call(Metrics(), Principal(name)).series == (), "not of the others together"


def test_segments_are_nobody_s_requests() -> None:
    machine = SimMachine(64, 64)
    machine.start(ShmOpen("prefix", PROMPT))
    machine.run()
    assert machine.call(Metrics()).series == ()
    pid = machine.spawn((*PROMPT, 1, 2), 3)
    machine.run()
    counts = series(machine).counts
    assert counts["cached_tokens"] == machine.process(pid).usage.cached_tokens > 0
    assert counts["prompt_tokens"] == len(PROMPT) + 2


def test_refusals_are_counted_where_they_belong() -> None:
    """At the door, and in the queue; who was refused has no latency."""
    tunables = Tunables(target_interactive_s=0.05, queue_limit=4)
    machine = SimMachine(8, 8, tunables=tunables, cost=CostModel(prefill_token_s=0.01))
    refused = 0
    for _ in range(12):
        try:
            machine.call(Spawn(PROMPT, max_tokens=2, qos=Qos.INTERACTIVE), ONE)
        except KernelError:
            refused += 1
    machine.run()
    meters = series(machine, "one", "interactive")
    late = meters.ends.get(ExitReason.REFUSED.value, 0)
    assert refused and meters.counts["refused"] == refused + late
    assert machine.kernel.counters.refused == refused + late
    assert sum(meters.spans["e2e_s"].counts) == sum(meters.ends.values()) - late


def test_meters_only_grow() -> None:
    machine = SimMachine(16, 64)
    for number in range(6):
        prompt = tuple(range(number, number + 12))
        machine.spawn(prompt, 25, reader=Reader(tokens_per_s=2.0))
    before = None
    while machine.kernel.processes:
        machine.advance()
        now = machine.call(Metrics())
        if before is not None:
            for old, new in zip(before.series, now.series, strict=True):
                assert all(new.counts[name] >= count for name, count in old.counts.items())
                assert all(new.ends[name] >= count for name, count in old.ends.items())
                for name, span in old.spans.items():
                    grown = new.spans[name]
                    assert grown.sum >= span.sum
                    assert all(a >= b for a, b in zip(grown.counts, span.counts, strict=True))
        before = now


# ---- gauges ----


def test_the_queue_position_is_the_order_of_admission() -> None:
    machine = SimMachine(8, 8, "fcfs", cost=CostModel(prefill_token_s=0.01))
    first = machine.spawn(tuple(range(100, 124)), 3)
    assert machine.call(Stat(first)).queue_position is None, "it is in its first pass"
    waiting = [machine.spawn(tuple(range(n, n + 20)), 3) for n in range(5)]
    held = machine.spawn(PROMPT, 3)
    machine.call(Kill(held, Signal.STOP))
    admitted: list[Pid] = []
    while len(admitted) < len(waiting):
        machine.advance()
        stats = {stat.pid: stat.queue_position for stat in machine.call(Ps()).processes}
        assert stats.get(held) is None, "it is held"
        left = [pid for pid in waiting if stats.get(pid) is not None]
        admitted += [pid for pid in waiting if pid not in (*left, *admitted)]
        if machine.kernel.in_flight is not None:
            assert [stats[pid] for pid in left] == list(range(len(left)))
    assert admitted == waiting
    machine.call(Kill(held, Signal.CONT))
    machine.finish()


def test_an_urgent_newcomer_has_few_before_it() -> None:
    machine = SimMachine(8, 8, cost=CostModel(prefill_token_s=0.01))
    patient = Tunables(
        target_stream_s=1e3, target_interactive_s=1e3, target_batch_s=1e4, target_idle_s=1e4
    )
    machine.kernel.scheduler.tunables = patient
    machine.spawn(tuple(range(100, 120)), 8)
    machine.run(until_s=0.02)
    idle = [machine.spawn(tuple(range(n, n + 20)), 3, qos=Qos.IDLE) for n in range(3)]
    urgent = machine.spawn(tuple(range(60, 80)), 3, qos=Qos.INTERACTIVE)
    machine.advance()
    positions = [machine.call(Stat(pid)).queue_position for pid in (urgent, *idle)]
    assert positions[0] == 0 and sorted(positions) == [0, 1, 2, 3]
    figures = machine.call(Vmstat())
    assert figures["waiting.idle"] == 3 and figures["waiting.interactive"] == 1
    assert figures["waiting.idle_oldest_s"] > 0 and figures["queues.waiting"] == 4


def test_vmstat_has_the_leads_and_the_controllers() -> None:
    machine = SimMachine(32, 64)
    assert not [name for name in machine.call(Vmstat()) if name.startswith("lead.")]
    slow = [machine.spawn(PROMPT[:8], 20, reader=Reader(tokens_per_s=1.0)) for _ in range(2)]
    machine.run(until_s=0.05)
    figures = machine.call(Vmstat())
    leads = sorted(machine.call(Stat(pid)).lead_s for pid in slow)
    assert figures["lead.running_min_s"] == leads[0] > 0
    assert figures["lead.running_mean_s"] == pytest.approx(sum(leads) / 2)
    assert figures["lead.running_p90_s"] == leads[1]
    assert {"controller.eta", "controller.pressure", "controller.working_set_pages"} <= set(figures)
    assert figures["queues.ready"] == 2 and figures["processes.running"] == 2


def test_a_pause_is_on_record_with_its_length() -> None:
    machine = SimMachine(16, 64)
    pid = machine.spawn(PROMPT, 40, reader=Reader(tokens_per_s=1.0))
    machine.run(until_s=0.05)
    paused_s = machine.now_s
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=1.0)
    machine.call(Kill(pid, Signal.CONT))
    machine.run(until_s=1.2)
    events = {
        event.kind: dict(event.detail) for event in machine.kernel.trace.since(0, 1 << 30, pid)
    }
    pause, back = events["pause"], events["pause-end"]
    assert pause["mode"] == "swap" and pause["tier"] == "host" and pause["reason"] == "stopped"
    assert pause["kept"] == pause["clean"] + pause["dirty"] <= pause["pages"]
    assert pause["lead_s"] > back["lead_s"] > 0
    assert back["way"] == "swap-in" and back["paused_s"] == pytest.approx(1.0 - paused_s, abs=0.05)
