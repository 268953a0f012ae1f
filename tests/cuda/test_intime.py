"""Swap in time: a story of the whole kernel in virtual time, with all the data of a real device.

A stream says some and is paused while its reader has a second to read. A job takes its frames, and
gives them back in time; another stream runs throughout.

    compute    job, other | job, other | other ...................... | stream, other
    link out        job's full pages   | job's last page              | full pages
    link in                            | pages of the stream          |
    reader     ...... reads what there is ..................................... | next token
                                                                      <- reserve ->
"""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from tokenix.drivers.cuda import rates
from tokenix.drivers.ops import CopyIn, CopyOut, Forward
from tokenix.kernel.calls import Signal, Spawn, Sysctl, Write
from tokenix.kernel.params import Params
from tokenix.sched.entity import Qos, Reader
from tokenix.sched.tunables import Tunables
from tokenix.tests.cuda import fake as fakes
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.timed import Pace, TimedDevice
from tokenix.tests.device.machine import words
from tokenix.tests.sim.deep import signal, speak, stop, take_all
from tokenix.tests.sim.machine import SimMachine

PACE = Pace(pass_s=0.021, in_page_s=0.1, out_page_s=0.02)
STEP_S = PACE.pass_s
ENGINES = (Forward, CopyIn, CopyOut)


@dataclass(eq=False)
class Sent:
    time_s: float
    kind: type
    awaited: bool
    busy: set[type]
    dirty: int


def boot(frames, pace=PACE):
    """A stall is a stall however short; nothing but a load brings pages back."""
    machine = SimMachine(
        frames, 64, "progress", Params(poison=True, prefix_cache=False),
        Tunables(margin_s=3 * STEP_S, stall_tolerance_s=0.0),
        make_device=TimedDevice, pace=pace,
    )  # fmt: skip
    machine.call(Sysctl("swap.restore", "swap-in"))
    return machine


def spawn(machine, prompt, tokens, **options):
    prompt = tuple(words(prompt, rig.TINY.vocab_tokens, prompt))
    return machine.spawn(prompt, tokens, ignore_eos=True, **options)


def streams(machine, leave):
    """The three; the first goes through `leave` when it has said some."""
    stream = spawn(machine, 70, 30, reader=Reader(tokens_per_s=8.0))
    speak(machine, stream, 14)
    leave(machine, stream)
    another = spawn(machine, 20, 90, reader=Reader(tokens_per_s=8.0))
    job = spawn(machine, 76, 70, qos=Qos.BATCH)
    speak(machine, job, 2)
    return stream, another, job


def pause(machine, pid):
    """Nothing of it is left on the device."""
    stop(machine, pid, 0.0)
    take_all(machine)


def watched(machine):
    """Commands from now on: when, of what kind, whether somebody waits for it, which engines are
    at work, and how many full pages are to be cleaned."""
    sent, device, memory = [], machine.device, machine.kernel.memory

    def watch(command, now_s):
        if (kind := type(command)) in ENGINES:
            awaited = kind is not Forward and bool(memory.copies.waiting_for(command.ticket))
            busy = {engine for engine in ENGINES if device.busy(engine)}
            sent.append(Sent(now_s, kind, awaited, busy, len(memory.dirty)))

    device.watch = watch
    return sent


@pytest.fixture(scope="module")
def story():
    fakes.load().reset()
    machine = boot(14)
    stream, another, job = streams(machine, pause)
    sent = watched(machine)
    signal(machine, stream, Signal.CONT)
    machine.run()
    machine.device.close()
    events = {e.kind: e for e in machine.kernel.trace.since(0, 1 << 30) if e.pid == stream}
    resumed_s, back = events["resume"].time_s, events["pause-end"]
    return SimpleNamespace(
        machine=machine, sent=sent, stream=stream, another=another, job=job,
        resumed_s=resumed_s, back_s=back.time_s, lead_s=dict(back.detail)["lead_s"],
        meanwhile=[one for one in sent if resumed_s < one.time_s < back.time_s],
    )  # fmt: skip


def test_pages_are_back_two_steps_before_the_reader_needs_the_next_token(story):
    """And no earlier, for they hold frames."""
    machine = story.machine
    assert 2 <= story.lead_s / STEP_S <= 4
    assert [machine.process(pid).entity.stalls for pid in (story.stream, story.another)] == [0, 0]
    assert machine.process(story.stream).usage.recomputed_tokens == 0
    assert story.back_s - story.resumed_s == pytest.approx(6 * PACE.in_page_s), "all were loaded"


def test_no_pass_waits_for_pages_on_their_way(story):
    passes = [one.time_s for one in story.meanwhile if one.kind is Forward]
    steps = (story.back_s - story.resumed_s) / STEP_S
    assert steps - 3 < len(passes) <= steps + 1


def test_the_next_pass_is_there_before_the_one_before_has_ended(story):
    """Most are: a plan that pauses or resumes somebody waits for what is under way."""
    passes = [one for one in story.sent if one.kind is Forward]
    assert sum(Forward in one.busy for one in passes) > 0.9 * len(passes)


def test_pages_leave_while_others_come(story):
    """Who makes room is on its way out at the same time."""
    assert [one for one in story.sent if one.kind is CopyIn and CopyOut in one.busy]


def test_pages_are_cleaned_beside_passes_and_never_beside_copies(story):
    """So that who makes room has only its last page to copy."""
    cleaned = [one for one in story.sent if one.kind is CopyOut and not one.awaited]
    assert {CopyIn, CopyOut}.isdisjoint(set().union(*(one.busy for one in cleaned)))
    assert [one for one in cleaned if Forward in one.busy]
    assert not [one for one in cleaned if one in story.meanwhile]
    assert max(one.dirty for one in story.meanwhile) > 0, "there was something to clean"
    left = [one for one in story.sent if one.kind is CopyOut and one.awaited]
    assert [one.time_s for one in left if one.time_s <= story.back_s] == [story.resumed_s]


def test_all_say_what_they_would_have_said(story):
    machine = boot(40)
    pids = streams(machine, lambda machine, pid: None)
    machine.run()
    machine.device.close()
    for alone, pid in zip(pids, (story.stream, story.another, story.job), strict=True):
        assert machine.output[alone] == story.machine.output[pid]


@pytest.mark.parametrize("pace", [PACE, Pace(pass_s=1e-4, in_page_s=2e-5, out_page_s=3e-5)])
def test_the_planner_has_the_rates_measured_at_boot(fake, pace):
    machine = boot(14, pace)
    found = machine.call(Sysctl())
    machine.device.close()
    prefill_tokens_per_s = rates.PREFILL_TOKENS / pace.pass_s
    assert found["rates.step_s"] == pytest.approx(pace.pass_s)
    assert found["rates.prefill_tokens_per_s"] == pytest.approx(prefill_tokens_per_s)
    assert found["rates.in_s_per_page"] == pytest.approx(pace.in_page_s)
    assert found["rates.out_s_per_page"] == pytest.approx(pace.out_page_s)


def second_turn(leaves):
    """All that was said, how long the second turn's first token took, and pages to load for it."""
    machine = boot(24, Pace(pass_s=0.021, in_page_s=0.01, out_page_s=0.01))
    pid = machine.call(Spawn(tuple(words(70, rig.TINY.vocab_tokens)), max_tokens=4, keep_open=True))
    machine.follow(pid)
    speak(machine, pid, 4)
    if leaves:
        pause(machine, pid)
    process, began_s = machine.process(pid), machine.now_s
    pages = process.space.missing
    machine.call(Write(pid, tuple(words(60, rig.TINY.vocab_tokens, 1)), eof=True))
    if leaves:
        signal(machine, pid, Signal.CONT)
    speak(machine, pid, 5)
    took_s = machine.now_s - began_s
    machine.run()
    machine.device.close()
    return machine.output[pid], took_s, pages


def test_a_turn_is_computed_while_those_before_it_are_loaded(fake):
    """The shorter of the two takes no time, but for the load of the first layers."""
    said, took_s, pages = second_turn(leaves=True)
    expected, alone_s, nothing = second_turn(leaves=False)
    assert (pages, nothing) == (5, 0)
    assert said == expected
    assert took_s == pytest.approx(alone_s + pages * 0.01 / 8, abs=1e-3)
