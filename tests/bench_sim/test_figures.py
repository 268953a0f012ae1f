"""What counts as attained, stalled and good, on streams made by hand."""

from dataclasses import replace

import pytest

from tokenix.bench.metrics import percentile
from tokenix.bench.simulate import Outcome, Prompts, lateness_s, run
from tokenix.bench.traces import Request
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

REQUEST = Request(arrival_s=100.0, prompt_tokens=10, output_tokens=5)


@pytest.mark.parametrize(
    ("times_s", "rate", "late_s"),
    [
        ([], 10.0, 0.0),
        ([5.0], 10.0, 0.0),
        ([5.0, 5.1, 5.2], 10.0, 0.0),
        ([5.0, 5.0, 5.0, 5.3], 10.0, 0.0),
        ([5.0, 5.4], 10.0, 0.3),
        # the late token at 5.4 moves the later deadlines: 5.6 is 0.1 late, not 0.4
        ([5.0, 5.4, 5.6], 10.0, 0.3),
        ([5.0, 5.4, 6.1], 10.0, 0.6),
        # a burst ahead of the reader is a lead that a pause may use up
        ([0.0] * 11 + [1.9], 10.0, 0.8),
    ],
)
def test_lateness(times_s: list[float], rate: float, late_s: float) -> None:
    assert lateness_s(times_s, rate) == pytest.approx(late_s)


@pytest.mark.parametrize(
    ("outcome", "attained", "good"),
    [
        (Outcome(REQUEST, 101.0, 102.0, 5, 0.5, finished=True), True, True),
        (Outcome(REQUEST, 101.001, 102.0, 5, 0.0, finished=True), False, False),
        (Outcome(REQUEST, 100.5, 102.0, 5, 0.51, finished=True), True, False),
        (Outcome(REQUEST, 100.5, 102.0, 4, 0.0), True, False),
        (Outcome(REQUEST, refused=True), False, False),
        (Outcome(REQUEST), False, False),
    ],
)
def test_good_is_in_time_whole_and_smooth(outcome: Outcome, attained: bool, good: bool) -> None:
    assert (outcome.attained, outcome.good) == (attained, good)


def test_times_of_an_outcome() -> None:
    outcome = Outcome(REQUEST, 100.25, 101.25, 5)
    assert (outcome.ttft_s, outcome.tpot_s) == (0.25, 0.25)
    assert Outcome(REQUEST, 100.25, 100.25, 1).tpot_s is None


def test_prompts_differ_in_their_first_page() -> None:
    prompts = Prompts(512)
    heads = {prompts.tokens(i, Request(0.0, 40, 1))[:16] for i in range(10_000)}
    assert len(heads) == 10_000
    assert all(len(prompts.tokens(9, Request(0.0, n, 1))) == n for n in (1, 2, 3, 600, 9000))


def test_a_template_is_common_to_all() -> None:
    prompts = Prompts(512, template_tokens=16)
    one, two = (prompts.tokens(i, Request(0.0, 40, 1)) for i in (1, 2))
    assert one[:16] == two[:16] and one[16:32] != two[16:32]


def test_equal_hash_ids_are_equal_tokens() -> None:
    prompts = Prompts(512)
    first = prompts.tokens(0, Request(0.0, 1500, 1, blocks=(3, 4, 5)))
    other = prompts.tokens(1, Request(0.0, 1400, 1, blocks=(3, 4, 9)))
    longer = prompts.tokens(2, Request(0.0, 1600, 1, blocks=(3, 4, 5)))
    assert first[:1024] == other[:1024] and first[1024:1040] != other[1024:1040]
    assert longer[:1500] == first and len(longer) == 1600


def test_the_visible_first_token_is_behind_the_reasoning() -> None:
    trace = make_trace(12, gap_s=20.0)
    requests = tuple(replace(r, hidden_tokens=r.output_tokens // 2) for r in trace.requests)
    thinking = replace(trace, requests=requests)
    plain, told = (run(thinking, replace(make_setup(), hidden=on)) for on in (False, True))
    assert plain.digest == told.digest, "the kernel does not know"
    assert plain.ttft_p50_s == told.ttft_p50_s
    assert told.visible_p95_s == percentile([o.visible_ttft_s for o in told.outcomes], 95)
    for one in told.outcomes:
        half = one.request.output_tokens // 2
        assert one.visible_ttft_s == pytest.approx(one.ttft_s + half * one.tpot_s, rel=0.02)


def test_readers_who_begin_later_see_no_stall_before() -> None:
    """A gap of 9 s within the reasoning is late for a reader of all, early for one of the rest."""
    times_s = [0.1 * i for i in range(5)] + [9.0 + 0.1 * i for i in range(5)]
    assert lateness_s(times_s, 10.0) > 8 and lateness_s(times_s[5:], 10.0) < 1e-9


def test_a_warm_up_fills_the_machine_and_is_not_counted() -> None:
    trace, setup = make_trace(40), make_setup()
    every, late = (run(trace, replace(setup, warmup_s=at_s)) for at_s in (0.0, 1.0))
    assert every.requests == 40 and late.requests == 20
    assert late.outcomes == every.outcomes[20:]
    assert late.rejected == sum(o.refused for o in late.outcomes)


def test_useful_work_is_what_is_delivered_while_requests_arrive() -> None:
    requests = (Request(0.0, 100, 4), Request(8.0, 100, 50))
    result = run(replace(make_trace(2), requests=requests), make_setup("fcfs"))
    assert result.useful_tokens_per_s == pytest.approx((100 + 4) / 2.0), "four times its speed"
