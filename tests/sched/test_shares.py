"""Guaranteed shares of the classes, and virtual token counters of the tenants."""

import random

from tokenix.sched.entity import Qos, SchedEntity
from tokenix.sched.rates import Rates
from tokenix.sched.room import may_pause
from tokenix.sched.shares import KEPT_TENANTS, LOOK_FORWARDS, Shares
from tokenix.sched.tunables import Tunables
from tokenix.sched.world import World
from tokenix.tests.sched.fakes import (
    PAGE,
    entity,
    memory,
    newcomer,
    scheduler,
    stream,
)
from tokenix.tests.sched.quick import Quick, QuickTask, quick_task

T, RATES = Tunables(), Rates(0.01, 1000.0)
QUANTUM = 500
NOW = 100.0


def served(shares: Shares, who: SchedEntity, tokens: int) -> None:
    who.delivered_tokens += tokens
    shares.charge(who)


# ---- tenants --------------------------------------------------------------------------------


def test_service_is_the_prompt_once_and_two_for_each_output() -> None:
    shares, one = Shares(), entity(1, tenant="a", prompt_tokens=64)
    shares.note_present(one)
    served(shares, one, 10)
    served(shares, one, 5)
    shares.charge(one)
    assert shares.counters == {(Qos.STREAM, "a"): 64 + 2 * 15}


def test_weights_divide() -> None:
    shares, one = Shares({"a": 4.0}), entity(1, tenant="a", prompt_tokens=64)
    shares.note_present(one)
    served(shares, one, 8)
    assert shares.counters == {(Qos.STREAM, "a"): 20.0}


def test_weights_can_be_changed_and_1_is_not_kept() -> None:
    shares = Shares()
    shares.weigh("a", 4.0)
    assert shares.weights == {"a": 4.0}
    shares.weigh("a", 1.0)
    assert shares.weights == {}


def test_a_tenant_that_comes_back_starts_at_the_least_of_those_present() -> None:
    shares = Shares()
    one, two, late = (entity(i, tenant=name) for i, name in enumerate("abc"))
    for who, tokens in ((one, 100), (two, 500)):
        shares.note_present(who)
        served(shares, who, tokens)
    shares.note_present(late)
    assert shares.counters[Qos.STREAM, "c"] == shares.counters[Qos.STREAM, "a"], "no credit saved"
    had = shares.counters[Qos.STREAM, "b"]
    shares.note_gone(two)
    shares.note_present(two)
    assert shares.counters[Qos.STREAM, "b"] == had, "and no debt forgiven"


def test_counters_of_tenants_that_left_are_bounded() -> None:
    shares = Shares()
    for i in range(2 * KEPT_TENANTS):
        who = entity(i, tenant=str(i))
        shares.note_present(who)
        shares.note_gone(who)
    assert len(shares.counters) <= KEPT_TENANTS + 1


def test_lag_is_in_quanta_of_service_ahead_of_the_least_served() -> None:
    shares = Shares()
    one, two = entity(1, tenant="a", prompt_tokens=0), entity(2, tenant="b", prompt_tokens=0)
    for who, tokens in ((one, 100), (two, 100 + QUANTUM)):
        shares.note_present(who)
        served(shares, who, tokens)
    assert shares.look(0.0, T, RATES)
    assert shares.lags == {(Qos.STREAM, "b"): 2}
    assert not shares.look(0.0, T, RATES), "nothing new"


def test_the_quiet_tenant_goes_before_shorter_prompts_of_the_noisy_one() -> None:
    """B14, B15: what counts is service, not requests."""
    quiet, noisy = newcomer(1, 800, tenant="quiet"), newcomer(2, 64, tenant="noisy")
    for served_tokens, order in ((0, (2, 1)), (5000, (1, 2))):
        running = stream(9, tenant="noisy")
        sched = scheduler(ready=[running], waiting=[quiet, noisy])
        running.entity.delivered_tokens += served_tokens
        for step in range(LOOK_FORWARDS):
            sched.note_step(NOW - 1.0 + step * 0.01, NOW - 0.99 + step * 0.01, 0, 1)
        assert sched.plan(memory(1000, 1000), NOW).admit == order


def test_one_tenant_alone_is_not_held_back() -> None:
    shares, one = Shares(), entity(1)
    shares.note_present(one)
    served(shares, one, 10**6)
    shares.look(0.0, T, RATES)
    assert shares.lags == {}


def gap_between_tenants(quantum_s: float) -> tuple[float, float]:
    """Greatest difference of service while both are backlogged, and the bound of VTC for it."""
    rng = random.Random(5)
    tasks = []
    for pid in range(1, 401):
        prompt, outputs = (rng.randint(600, 1200), 100) if pid % 2 else (rng.randint(20, 90), 60)
        name = "long" if pid % 2 else "short"
        tasks.append(quick_task(pid, prompt, outputs, tenant=name, qos=Qos.BATCH))
    machine = Quick("progress", tasks, 400, 0, tunables=Tunables(share_quantum_s=quantum_s))
    gaps = [0.0]
    advance = machine.advance

    def watched(task: QuickTask, tokens: int) -> None:
        advance(task, tokens)
        waiting = {t.entity.tenant: 0 for t in machine.sched.waiting.values()}
        if len(waiting) == 2:
            gaps.append(abs(machine.had.get("long", 0.0) - machine.had.get("short", 0.0)))

    machine.advance = watched  # type: ignore[method-assign]
    machine.run()
    return max(gaps), 2 * max(1200, 2 * machine.frames * PAGE)


def test_backlogged_tenants_get_the_same_within_twice_the_bound_of_vtc() -> None:
    gap, bound = gap_between_tenants(0.1)
    assert gap <= 2 * bound
    without, _ = gap_between_tenants(1e9)
    assert without > 1.3 * gap, "shortest first alone serves one of them only"


# ---- classes --------------------------------------------------------------------------------


def test_a_class_earns_only_while_it_waits() -> None:
    shares = Shares()
    chat = entity(1, qos=Qos.INTERACTIVE, prompt_tokens=0)
    shares.note_present(chat)
    served(shares, chat, 10_000)
    shares.look(0.0, T, RATES)
    assert not shares.behind[Qos.BATCH] and shares.deficits[Qos.BATCH] == 0
    shares.note_waiting(Qos.BATCH, 1)
    served(shares, chat, 10_000)
    assert shares.look(0.0, T, RATES)
    assert shares.behind[Qos.BATCH] and shares.deficits[Qos.BATCH] == 0.05 * 20_000
    shares.note_waiting(Qos.BATCH, -1)
    shares.look(0.0, T, RATES)
    assert not shares.behind[Qos.BATCH]


def test_a_class_whose_newcomers_are_refused_earns_as_if_they_waited() -> None:
    shares = Shares()
    chat = entity(1, qos=Qos.INTERACTIVE, prompt_tokens=0)
    shares.note_present(chat)
    shares.note_refused(Qos.STREAM, 100.0, T)
    served(shares, chat, 1_000)
    assert shares.look(100.0 + 4.9 * T.target_stream_s, T, RATES)
    assert shares.behind[Qos.STREAM] and shares.deficits[Qos.STREAM] == 0.3 * 2_000
    shares.look(100.0 + 5.1 * T.target_stream_s, T, RATES)
    assert not shares.behind[Qos.STREAM]


def test_what_a_class_had_beyond_its_share_is_forgotten_but_for_its_share_of_a_quantum() -> None:
    """Batch that ran while nobody else was there is not made to wait for minutes afterwards."""
    shares = Shares()
    batch = entity(1, qos=Qos.BATCH, prompt_tokens=0)
    shares.note_present(batch)
    served(shares, batch, 10**6)
    shares.look(0.0, T, RATES)
    assert shares.deficits[Qos.BATCH] == -0.05 * QUANTUM


def test_a_class_that_is_behind_goes_first_and_keeps_its_frames() -> None:
    """B1, B12, B18."""
    waiting = [newcomer(1, 64, qos=Qos.BATCH), newcomer(2, 32, qos=Qos.INTERACTIVE)]
    runs = stream(9, 50, 9.0, dirty=0, qos=Qos.BATCH)
    sched = scheduler(waiting=waiting, ready=[runs])
    view = memory(1000, 1000)
    assert sched.plan(view, NOW).admit == (2, 1)
    sched.queues.shares.behind[Qos.BATCH] = True
    for task in waiting:
        sched.queues.shares.mark(task.entity)
    assert sched.plan(view, NOW).admit == (1, 2)
    world = World(sched.queues, view, NOW, T, RATES, 1.0, 0.7)
    assert not may_pause(runs, 0, world)
    sched.queues.shares.behind[Qos.BATCH] = False
    assert may_pause(runs, 0, world)


def shares_in_overload(**shares: float) -> tuple[dict[str, float], float]:
    """Shares of the classes over 30 s in which all have more than they get; stalled streams."""
    rng = random.Random(1)
    tasks = []
    for pid in range(1, 1501):
        qos = (Qos.INTERACTIVE, Qos.INTERACTIVE, Qos.INTERACTIVE, Qos.STREAM, Qos.BATCH)[pid % 5]
        at_s = 0.0 if qos is Qos.BATCH else rng.uniform(0, 32)
        size = (rng.randint(100, 900), rng.randint(50, 250))
        tasks.append(quick_task(pid, *size, qos=qos, arrival_s=at_s))
    machine = Quick("progress", tasks, 1000, 4000, tunables=Tunables(**shares))
    machine.run(until_s=2.0)
    before = dict(machine.had)
    done = machine.run(until_s=32.0)
    had = {qos.name: machine.had.get(qos.name, 0.0) - before.get(qos.name, 0.0) for qos in Qos}
    return {name: tokens / sum(had.values()) for name, tokens in had.items()}, done.stalled()


def test_every_class_gets_its_share_in_overload() -> None:
    """B1, B12, B18: within 5 % of all service over 30 s, and no reader notices."""
    got, stalled = shares_in_overload()
    assert got["STREAM"] >= 0.3 - 0.05 and got["INTERACTIVE"] >= 0.4 - 0.05, got
    assert got["BATCH"] >= 0.05 - 0.05 / 2, got
    assert stalled == 0
    strict, _ = shares_in_overload(share_stream=0.0, share_batch=0.0)
    assert strict["STREAM"] < got["STREAM"] - 0.05, (strict, got)
