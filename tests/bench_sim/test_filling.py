"""The streams under way when a window begins."""

from dataclasses import replace

import pytest

from tokenix.bench.capacity import sustained_rate, token_s
from tokenix.bench.filling import filling
from tokenix.bench.simulate import run
from tokenix.bench.traces import Request, Trace, Window
from tokenix.syscalls.simulation import SimOptions, roofline_of
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

ROOFLINE = roofline_of(SimOptions())
TRACE = replace(make_trace(400, gap_s=0.05, prompt=100, output=600), name="made")
WINDOW = Window(start_s=10.0, duration_s=5.0)
INSIDE = TRACE.requests[200:300]


def fill(pages: int = 20_000, warmup_s: float = 2.0, trace: Trace = TRACE) -> list[Request]:
    return filling(trace, WINDOW, ROOFLINE, pages, warmup_s)


def test_those_who_would_still_run_are_there_with_what_they_have_produced() -> None:
    pace_s = token_s(INSIDE, ROOFLINE, 20_000, 20.0)
    found = fill(warmup_s=60.0)
    alive = [r for r in TRACE.requests[:200] if (10.0 - r.arrival_s) / pace_s < r.output_tokens]
    assert 0.6 * len(alive) <= len(found) <= len(alive), "less those who end before they come"
    youngest = TRACE.requests[199]
    done = int((10.0 - youngest.arrival_s) / pace_s)
    assert found[0].prompt_tokens == youngest.prompt_tokens + done
    assert all(r.output_tokens > 0 for r in found)
    assert sum(found[0].prompt_tokens + r.output_tokens for r in found[:1]) == youngest.tokens


def test_they_come_in_the_warm_up_as_fast_as_half_the_prefill_rate() -> None:
    found = fill()
    times_s = [request.arrival_s for request in found]
    assert times_s == sorted(times_s) and times_s[-1] < 0.8 * 2.0
    before = sum(request.prompt_tokens for request in found[:-1])
    assert times_s[-1] == pytest.approx(before / (0.5 * ROOFLINE.prefill_tokens_per_s()))


def test_they_fit_into_the_pool_and_the_warm_up() -> None:
    def held(found: list[Request]) -> int:
        return sum(request.prompt_tokens for request in found)

    assert 0 < held(fill(pages=100)) <= 0.9 * 1600
    assert held(fill(warmup_s=0.2)) <= 0.16 * 0.5 * ROOFLINE.prefill_tokens_per_s()
    assert fill(warmup_s=0.0) == []


def test_a_window_at_the_start_is_preceded_by_the_end() -> None:
    found = filling(TRACE, Window(duration_s=5.0), ROOFLINE, 20_000, 2.0)
    last = TRACE.requests[-1]
    assert [found[0].prompt_tokens, found[0].output_tokens] == [
        last.prompt_tokens, last.output_tokens
    ]  # fmt: skip


def test_a_filled_machine_is_as_busy_at_first_as_later() -> None:
    """A window that is as long as a stream lives: an empty pool would hardly fill up in it."""
    trace = replace(make_trace(300, gap_s=0.5, prompt=100, output=1500), name="made")
    rate = 1.3 * sustained_rate(trace.requests, ROOFLINE, 600)
    window = Window(rate_scale=rate * 0.5, start_s=40 / rate, duration_s=12 / rate)
    base = replace(make_setup("fcfs", kv_pages=600), window=window, warmup_s=3 / rate)
    empty, filled = (run(trace, replace(base, fill=on)) for on in (False, True))
    assert [o.request for o in empty.outcomes] == [o.request for o in filled.outcomes]
    assert (filled.ttft_p95_s or 0.0) > 3 * (empty.ttft_p95_s or 0.0)


def test_tokens_come_slower_the_more_requests_come() -> None:
    paces = [token_s(INSIDE, ROOFLINE, 20_000, rate) for rate in (0.1, 5.0, 20.0, 1e6)]
    assert paces == sorted(paces)
    assert paces[0] == pytest.approx(ROOFLINE.forward_s(0, 1, 300, 300), rel=0.1)
