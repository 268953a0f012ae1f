"""Service, backlog and gaps on outcomes made by hand; then small runs on the machine."""

from dataclasses import replace

import pytest

from tokenix.bench import fairness
from tokenix.bench.simulate import Outcome, Result, run
from tokenix.bench.traces import Request, Trace, Window
from tokenix.syscalls.simulation import SimOptions
from tokenix.tests.bench_sim.worlds import make_setup, make_trace


def outcome(tenant: str, arrival_s: float, *times_s: float, qos: str = "stream") -> Outcome:
    request = Request(arrival_s, 10, len(times_s), tenant)
    first, last = (times_s[0], times_s[-1]) if times_s else (None, None)
    return Outcome(request, first, last, len(times_s), times_s=times_s, qos=qos)


def test_service_is_the_prompt_with_the_first_token_and_two_for_each() -> None:
    assert fairness.service([outcome("a", 0.0, 1.0, 3.0), outcome("b", 0.0, 2.0)]) == [
        (1.0, 12.0), (2.0, 12.0), (3.0, 2.0)
    ]  # fmt: skip


def test_backlog_is_waiting_for_a_first_token() -> None:
    waits = [outcome("a", 0.0, 2.0), outcome("a", 1.0, 3.0), outcome("a", 5.0, 6.0)]
    never = [outcome("a", 8.0), replace(outcome("a", 7.0), refused=True)]
    assert fairness.backlog(waits + never, 9.0) == [(0.0, 3.0), (5.0, 6.0), (8.0, 9.0)]
    assert fairness.both([(0.0, 3.0), (5.0, 6.0)], [(2.0, 5.5)]) == [(2.0, 3.0), (5.0, 5.5)]


def test_the_gap_is_over_any_stretch_in_which_both_wait() -> None:
    """`a` is served 12 at 1 s and `b` 12 twice after it: b gains 24 in the stretch from 1 s on."""
    outcomes = [outcome("a", 0.0, 1.0), outcome("a", 0.0, 9.0)]
    outcomes += [outcome("b", 0.0, at_s) for at_s in (2.0, 3.0, 10.0)]
    assert fairness.service_gap(outcomes, "a", "b") == 24.0
    assert fairness.service_gap(outcomes, "a", "b", {"b": 2.0}) == 12.0
    assert fairness.service_gap(outcomes[:1] + outcomes[2:3], "a", "b") == 12.0


def test_shares_of_classes_in_a_stretch() -> None:
    outcomes = [outcome("a", 0.0, 1.0, qos="batch"), outcome("a", 0.0, 2.0, 2.5, 9.0)]
    shares = fairness.class_shares(outcomes, 0.0, 5.0)
    assert shares == {"batch": 12 / 26, "stream": 14 / 26}


def tenants_in_backlog(quantum_s: float, weights: dict[str, float]) -> Result:
    """One tenant with many short prompts, one with long ones, both more than the machine does."""
    long, short = make_trace(40, prompt=900, output=90), make_trace(160, prompt=60, output=20)
    requests = [replace(r, arrival_s=0.01 * i, tenant="a") for i, r in enumerate(long.requests)]
    requests += [replace(r, arrival_s=0.002 * i, tenant="b") for i, r in enumerate(short.requests)]
    trace = Trace("two", "shared", tuple(sorted(requests, key=lambda r: r.arrival_s)))
    machine = SimOptions(kv_pages=200, tunables={"share_quantum_s": quantum_s}, weights=weights)
    return run(
        trace,
        replace(
            make_setup(), machine=machine, window=Window(), tenants=True, classes=("batch",),
            keep_times=True,
        ),
    )  # fmt: skip


def test_tenants_of_equal_weight_stay_within_twice_the_bound_of_vtc() -> None:
    fair, blind = (tenants_in_backlog(quantum, {}) for quantum in (0.02, 1e9))
    bound = fairness.vtc_bound(fair.outcomes, 200 * 16)
    gap = fairness.service_gap(fair.outcomes, "a", "b")
    assert 0 < gap <= 2 * bound
    assert fairness.service_gap(blind.outcomes, "a", "b") > 1.3 * gap


def test_a_heavier_tenant_gets_more() -> None:
    def share(weights: dict[str, float]) -> float:
        outcomes = tenants_in_backlog(0.02, weights).outcomes
        end_s = min(
            fairness.backlog(fairness.of_tenant(outcomes, name), 1e9)[0][1] for name in "ab"
        )
        had = [
            sum(
                n
                for at_s, n in fairness.service(fairness.of_tenant(outcomes, name))
                if at_s < end_s
            )
            for name in "ab"
        ]
        return had[0] / sum(had)

    assert share({"a": 3.0}) > share({}) + 0.1


def test_every_class_gets_its_share_of_an_overloaded_machine() -> None:
    trace = make_trace(1080, gap_s=0.1, prompt=400, output=120)
    classes = ("interactive", "stream", "interactive", "batch", "interactive")
    setup = replace(
        make_setup(kv_pages=600, device="rtx4090"),
        window=Window(rate_scale=3.0),
        classes=classes,
        keep_times=True,
    )
    result = run(trace, replace(setup, drain_s=0.0))
    shares = fairness.class_shares(result.outcomes, 5.0, 35.0)
    assert shares["interactive"] >= 0.35 and shares["stream"] >= 0.25, shares
    assert shares["batch"] >= 0.025, shares
    assert result.visible_stall_rate < 0.01, "nobody reads batch"
    unfair = replace(setup, machine=replace(setup.machine, policy="fcfs"), drain_s=0.0)
    assert fairness.class_shares(run(trace, unfair).outcomes, 5.0, 35.0)["stream"] < 0.25


@pytest.mark.parametrize("tokens", [10, 10_000])
def test_the_bound_of_vtc(tokens: int) -> None:
    assert fairness.vtc_bound([outcome("a", 0.0, 1.0)], tokens) == 4 * tokens
