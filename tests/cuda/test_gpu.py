"""What `make gpu-check` asks of the whole machine, with the kernel on the fake GPU."""

import json
from dataclasses import replace

import pytest

from tokenix.bench.drive import Outcome, Run
from tokenix.bench.gpu import Load, describe, main, measure
from tokenix.bench.workload import Arrival
from tokenix.syscalls.gpuclock import Clock
from tokenix.syscalls.types import ExitReason, Rusage, TraceEvent
from tokenix.tests.cuda import rig

pytestmark = pytest.mark.timeout(400)

LOAD = Load(
    batches=(1, 2), steps=24, frames=12, longs=3, long_prompt=40, long_tokens=100,
    tokens_per_s=2.0, stagger_s=0.05,
)  # fmt: skip


def open_fake(frames, slots):
    return rig.device(frames=frames, host_slots=slots)


def test_a_machine_is_measured(fake):
    found = {figure["name"]: figure for figure in measure(LOAD, open_fake)}
    for batch in LOAD.batches:
        idle = found[f"decode, batch {batch}: GPU idle, of the step"]
        assert 0 <= idle["value"] < 0.5 and idle["most"] == 0.05
    assert found["40 tokens: returns with pages to load"]["value"] >= 1
    assert found["40 tokens: returns, times the link's"]["value"] > 0
    assert found["40 tokens: visible stalls"]["most"] == 0
    assert (fake.used_bytes, fake.handles, rig.failures()) == (0, 0, [])


def test_its_program_prints_them_or_says_why_not(fake, capsys):
    def refuse(frames, slots):
        raise OSError(19, "no GPU here")

    assert main(refuse, LOAD) == 1
    assert capsys.readouterr() == ("", "[Errno 19] no GPU here\n")
    assert main(open_fake, replace(LOAD, batches=(1,))) == 0
    assert {"name", "value"} <= set(json.loads(capsys.readouterr().out)[0])


class Ticking:
    """A driver whose events are numbers: the times at which they were done."""

    def __init__(self, times):
        self.times = iter(times)
        self.live = 0

    def enter(self):
        pass

    def event(self, timed):
        self.live += 1
        return next(self.times)

    def record(self, event, stream):
        pass

    def elapsed_s(self, first, last):
        return last - first

    def destroy_event(self, event):
        self.live -= 1


class Idle:
    """As much of a device as a clock needs."""

    _stream = 0

    def __init__(self, times):
        self._driver, self._step = Ticking(times), self
        self._replay, self._mixed = (lambda bucket, splits: None), (lambda rows, before: None)


def test_gaps_are_between_steps_that_follow_one_another():
    device = Idle([0, 3, 4, 7, 8, 9, 50, 53, 55, 58, 59, 62])
    clock = Clock(device)
    for bucket in (2, 2, 1, None, 2, 2, 2):
        if bucket is None:
            device._step._mixed((), {})
        else:
            device._step._replay(bucket, 1)
    gaps = clock.gaps(2, skip=0)
    assert (gaps.steps, gaps.step_s, gaps.idle_share) == (3, 13 / 3, 4 / 13)
    assert device._driver.live == 0 and clock.gaps(2) is None


def test_returns_are_compared_with_the_link():
    load = replace(LOAD, tokens_per_s=10.0)
    arrival = Arrival("long 0", 0.0, [1], 3, "stream", 10.0)
    outcome = Outcome(arrival, 1, reason=ExitReason.LENGTH, times_s=(0.1, 0.2, 0.95))
    outcome.rusage = Rusage(swapped_in_bytes=1000)
    events = tuple(
        TraceEvent(seq, time_s, 1, kind, detail)
        for seq, (time_s, kind, detail) in enumerate([
            (0.5, "resume", ()), (0.5, "state", (("new", "swapping-in"),)),
            (0.8, "state", (("new", "ready"),)),
        ])
    )  # fmt: skip
    found = {
        figure["name"].partition(": ")[2]: figure["value"]
        for figure in describe(Run("progress", (outcome,), {}, events, 0.0), load, 2e-4)
    }
    assert found["returns with pages to load"] == 1 and found["visible stalls"] == 1
    assert found["latest token behind its reader"] == pytest.approx(0.65)
    assert found["returns, times the link's"] == pytest.approx(0.3 / 0.2)
