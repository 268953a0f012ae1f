"""The fluid model of what a device sustains, against the simulated machine."""

import pytest

from tokenix.bench.capacity import needed_pages, stream_tokens, sustained_rate
from tokenix.bench.simulate import run
from tokenix.bench.traces import Request, Trace
from tokenix.syscalls.simulation import SimOptions, roofline_of
from tokenix.tests.bench_sim.worlds import make_setup, make_trace


def test_long_streams_are_seen_more_often() -> None:
    short, long = Request(0.0, 100, 10), Request(0.0, 100, 190)
    assert stream_tokens([short]) == 105
    assert stream_tokens([short, long]) == (10 * 105 + 190 * 195) / 200
    assert needed_pages([short], 16) == 256 * 105 // 16


def test_more_memory_sustains_more_until_the_device_is_the_limit() -> None:
    requests = make_trace().requests
    roofline = roofline_of(SimOptions())
    rates = [sustained_rate(requests, roofline, pages) for pages in (50, 200, 800, 10**6, 10**7)]
    assert rates == sorted(rates) and rates[0] < 0.5 * rates[2]
    assert rates[3] == rates[4]


@pytest.mark.parametrize(("pages", "output"), [(150, 60), (600, 60), (600, 400)])
def test_a_saturated_machine_does_what_the_model_says(pages: int, output: int) -> None:
    trace = make_trace(240, gap_s=1e-4, output=output)
    setup = make_setup("fcfs", kv_pages=pages)
    result = run(Trace("full", "shared", trace.requests), setup)
    ends = sorted(o.last_s or 0.0 for o in result.outcomes)
    low, high = len(ends) // 5, 4 * len(ends) // 5
    simulated = (high - low) / (ends[high] - ends[low])
    modelled = sustained_rate(trace.requests, roofline_of(setup.machine), pages)
    assert modelled == pytest.approx(simulated, rel=0.2)
