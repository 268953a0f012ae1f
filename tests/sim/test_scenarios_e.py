"""Group E: output is the same whatever happens to a process on its way."""

import dataclasses

import pytest

from tokenix.drivers.sampling import SamplingParams
from tokenix.drivers.sim import expected_tokens
from tokenix.kernel.calls import Fork, Kill, ShmOpen, ShmUnlink, Signal, Write
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.plan import Pause, PauseMode
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(30, 47))

SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=0.9, top_p=0.9, seed=5),
    "penalised": SamplingParams(
        temperature=0.7, seed=9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2
    ),
    "logprobs": SamplingParams(logprobs=3),
    "biased": SamplingParams(logit_bias=((7, -100.0), (9, -100.0))),
}


def pause_every(machine: SimMachine, every: int, mode: PauseMode) -> None:
    """Pause each ready process whenever its length is a multiple of `every`."""
    scheduler = machine.kernel.scheduler
    decide = scheduler.plan
    paused: set[tuple[Pid, int]] = set()

    def plan(memory, now_s):  # type: ignore[no-untyped-def]
        made = decide(memory, now_s)
        extra = []
        for pid, task in scheduler.ready.items():
            at = (pid, task.length)
            if task.length % every == 0 and at not in paused and pid not in made.resume:
                paused.add(at)
                extra.append(Pause(pid, mode, "test"))
        gone = {pause.pid for pause in (*made.pause, *extra)}
        pauses = made.pause + tuple(p for p in extra if p.pid not in {q.pid for q in made.pause})
        return dataclasses.replace(
            made,
            pause=pauses,
            decodes=tuple(pid for pid in made.decodes if pid not in gone),
            chunks=tuple(run for run in made.chunks if run.pid not in gone),
            wake_s=now_s if extra else made.wake_s,
        )

    scheduler.plan = plan


def boot(cache: bool, frames: int = 24, slots: int = 48, **options: object) -> SimMachine:
    return SimMachine(frames, slots, "progress", Params(poison=True, prefix_cache=cache), **options)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("mode", PauseMode)
@pytest.mark.parametrize("every", [1, 3, 7])
def test_e1_e5_e7_outputs_survive_pauses(
    cache: bool, sampling: SamplingParams, mode: PauseMode, every: int
) -> None:
    """E1, E5, E7: sampler, seed and penalties travel with the process; nothing is cut off."""
    machine = boot(cache)
    pause_every(machine, every, mode)
    for start in (0, 100):
        machine.spawn(tuple(token + start for token in PROMPT), 25, sampling=sampling)
    machine.finish()
    assert machine.kernel.counters.preemptions >= 2 * (24 // every)


def test_e2_no_stale_output_after_a_pause(cache: bool) -> None:
    """E2: the token of the pass in flight is delivered before the pause, and only once."""
    machine = boot(cache)
    pid = machine.spawn(PROMPT, 20)
    while pid in machine.kernel.processes:
        machine.call(Kill(pid, Signal.STOP))
        machine.run(until_s=machine.now_s + 0.5)
        if pid in machine.kernel.processes:
            machine.call(Kill(pid, Signal.CONT))
        machine.advance()
    machine.finish()


def test_e4_resume_computes_all_tokens(cache: bool) -> None:
    """E4: after recompute the whole sequence is there, outputs included."""
    machine = boot(cache, slots=0)
    pid = machine.spawn(PROMPT, 20)
    machine.run(until_s=0.05)
    assert machine.output[pid]
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=1.0)
    machine.call(Kill(pid, Signal.CONT))
    machine.finish()
    if not cache:
        assert machine.kernel.counters.recomputed_tokens >= len(PROMPT)


def test_e6_a_batch_changes_nothing(cache: bool) -> None:
    """Alone or among others that come and go: the same output (checked against the oracle)."""
    machine = boot(cache, frames=40)
    for number in range(8):
        machine.spawn(PROMPT[: 3 + number], 5 + 3 * number, sampling=SAMPLINGS["seeded"])
        machine.run(until_s=machine.now_s + 0.005)
    machine.finish()


def test_e8_pause_meets_prefix_hit_meets_fork(cache: bool) -> None:
    """E8: shared pages, a named segment, forks and pauses at once."""
    machine = boot(cache)
    pause_every(machine, 5, PauseMode.SWAP)
    if cache:
        machine.start(ShmOpen("system", PROMPT))
        machine.run()
    first = machine.spawn((*PROMPT, 1, 2), 25)
    second = machine.spawn((*PROMPT, 3), 25)
    machine.run(until_s=machine.now_s + 0.05)
    (child,) = machine.call(Fork(first))
    machine.follow(child)
    machine.call(Kill(second, Signal.STOP))
    machine.run(until_s=machine.now_s + 0.2)
    machine.call(Kill(second, Signal.CONT))
    machine.run()
    if cache:
        assert machine.process(first).usage.cached_tokens
        machine.call(ShmUnlink("system"))
    machine.finish()
    whole = machine.output[first]
    assert machine.output[child] == whole[len(whole) - len(machine.output[child]) :]


@pytest.mark.parametrize("mode", PauseMode)
def test_turns_survive_pauses(cache: bool, mode: PauseMode) -> None:
    """Multi-turn: each turn continues the whole conversation, whatever was paused in between."""
    machine = boot(cache)
    pause_every(machine, 4, mode)
    pid = machine.spawn(PROMPT, 6, keep_open=True)
    sequence = list(PROMPT)
    heard = 0
    for said in ((1, 2, 3), (4,), (5, 6, 7, 8, 9)):
        machine.run(until_s=machine.now_s + 3.0)
        expected = expected_tokens(sequence, 6)
        assert machine.output[pid][heard:] == expected
        heard += 6
        sequence += [*expected, *said]
        machine.call(Write(pid, said))
    machine.call(Write(pid, eof=True))
    machine.run()
    assert machine.output[pid][heard:] == expected_tokens(sequence, 6)


def test_eos_and_min_tokens_survive_pauses(cache: bool) -> None:
    """Where a stream stops does not depend on its pauses."""
    machine = boot(cache, eos_token=0)
    pause_every(machine, 2, PauseMode.RECOMPUTE)
    for number in range(6):
        machine.spawn(tuple(range(number + 1, number + 8)), 60, min_tokens=3 * number)
    machine.finish()
