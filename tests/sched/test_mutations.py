"""What each rule of `progress` is worth: without it, a small workload goes wrong beyond a bound.

A rule that does nothing fails its test, and so does one that is taken out of the policy.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tokenix.sched import rules
from tokenix.sched.entity import Reader
from tokenix.sched.policies.fcfs import arrival_key
from tokenix.sched.policies.progress import PROGRESS
from tokenix.sched.policy import Policy, Rule
from tokenix.sched.tunables import Tunables
from tokenix.tests.sched.quick import Outcome, Quick, QuickTask, chat, quick_task


def drawn(seed: int, count: int, per_s: float, size: Callable[..., tuple[int, int]]) -> list:
    """Poisson arrivals; `size(rng)` gives prompt and output tokens."""
    rng = random.Random(seed)
    at_s, tasks = 0.0, []
    for pid in range(1, count + 1):
        at_s += rng.expovariate(per_s)
        tasks.append(quick_task(pid, *size(rng), arrival_s=at_s))
    return tasks


def code(rng: random.Random) -> tuple[int, int]:
    return min(7000, int(rng.lognormvariate(7.4, 0.8)) + 8), rng.randint(4, 40)


def reasoning(rng: random.Random) -> tuple[int, int]:
    prompt = min(3000, int(rng.lognormvariate(5.5, 0.8)) + 8)
    return prompt, min(5000, int(rng.lognormvariate(7.0, 0.7)) + 10)


def long_context(rng: random.Random) -> tuple[int, int]:
    return rng.randint(1000, 3000), rng.randint(600, 1500)


def run(policy: Policy, tasks: list[QuickTask], frames: int, host: int, **fields: float) -> Outcome:
    return Quick(policy, tasks, frames, host, **fields).run()


def without(*taken: Rule) -> Policy:
    return replace(PROGRESS, rules=tuple(rule for rule in PROGRESS.rules if rule not in taken))


def test_without_deadlines_readers_wait_for_the_way_back() -> None:
    """Resumed when its deadline has passed, not when the way back uses up its lead."""
    late = replace(PROGRESS, due_lead_s=lambda world: -0.5)

    def go(policy: Policy) -> Outcome:
        return run(policy, drawn(3, 60, 3.0, long_context), 2000, 20_000, page_s=1e-3)

    assert go(PROGRESS).stalled() == 0
    assert go(late).stalled() > 0.2


def test_without_the_working_set_bound_memory_thrashes() -> None:
    def go(policy: Policy) -> Outcome:
        tasks = drawn(5, 140, 4.0, reasoning)
        return Quick(policy, tasks, 600, 6000, page_s=2e-4).run(until_s=100.0)

    bounded, unbounded = go(PROGRESS), go(without(rules.within_working_set))
    assert bounded.stalled() == 0
    assert unbounded.stalled() > 0.2 and unbounded.good() < bounded.good() - 0.1
    assert unbounded.pauses > 5 * bounded.pauses


def test_without_rejection_everybody_is_late_in_overload() -> None:
    trusting = replace(
        PROGRESS,
        arrival_checks=(),
        patience=False,
        phases=tuple(phase for phase in PROGRESS.phases if phase != "refuse_late"),
    )

    def go(policy: Policy) -> Outcome:
        return run(policy, chat(1, 500, 15.0), 1500, 6000)

    assert go(PROGRESS).good() > 0.85
    assert go(trusting).good() < 0.6


def test_without_just_in_time_frames_prompts_finish_just_too_late() -> None:
    def go(policy: Policy) -> Outcome:
        return run(policy, drawn(4, 300, 12.0, code), 6000, 6000)

    ours, early = go(PROGRESS), go(without(rules.just_in_time))
    assert early.good() < ours.good() - 0.02
    assert early.ttft_s(0.95) > 1.5 * ours.ttft_s(0.95)


def test_without_shortest_first_the_short_wait_for_the_long() -> None:
    in_order = replace(PROGRESS, newcomer_key=arrival_key, prefill_key=arrival_key)

    def go(policy: Policy) -> Outcome:
        return run(policy, drawn(4, 300, 12.0, code), 6000, 6000)

    ours, fifo = go(PROGRESS), go(in_order)
    assert fifo.good() < ours.good() - 0.02
    assert fifo.ttft_s(0.5) > 2 * ours.ttft_s(0.5)


@pytest.mark.parametrize("pools", [0.1, 0.5, 1.0])
def test_without_computing_again_a_small_host_tier_refuses_most(pools: float) -> None:
    """Long streams would fill it and block the short ones."""

    def go(share: float) -> Outcome:
        tunables = Tunables(recompute_share=share)
        tasks = drawn(5, 80, 4.0, reasoning)
        return run(PROGRESS, tasks, 1200, int(1200 * pools), page_s=2e-4, tunables=tunables)

    ours, only_copies = go(Tunables().recompute_share), go(0.0)
    assert ours.stalled() == only_copies.stalled() == 0
    assert ours.good() > 0.85 and ours.good() > only_copies.good() + 0.2


def test_without_setting_giants_aside_newcomers_are_refused_for_their_sake() -> None:
    """Readers nearly as fast as the device; one stream in ten grows to half of the pool."""

    def size(rng: random.Random) -> tuple[int, int]:
        return rng.randint(50, 200), 8000 if rng.random() < 0.1 else rng.randint(50, 400)

    def go(policy: Policy) -> Outcome:
        tasks = drawn(7, 80, 0.5, size)
        for task in tasks:
            task.true_rate = 50.0
            task.entity.reader = Reader(tokens_per_s=task.true_rate)
        return run(policy, tasks, 1000, 4000)

    ours, patient = go(PROGRESS), go(replace(PROGRESS, sets_aside=False))
    assert ours.good() > patient.good() + 0.1
    assert len(ours.refused) < len(patient.refused) / 2
