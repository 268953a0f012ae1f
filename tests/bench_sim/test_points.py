"""Points made into runs: loads, pools and windows are what they are called."""

from dataclasses import replace

import pytest

from tokenix.bench.capacity import needed_pages, sustained_rate
from tokenix.bench.points import Placement, Point, Size
from tokenix.bench.traces import cut
from tokenix.syscalls.simulation import SimOptions, roofline_of
from tokenix.tests.bench_sim.worlds import make_trace

POINT = Point("made", "h100", 0.7, 0.1, 10.0, 25.0, seed=5)


def make_placement(count: int = 900, size: Size | None = None) -> Placement:
    return Placement({"made": make_trace(count)}, size or Size())


def test_a_point_has_the_load_that_it_names() -> None:
    placed = make_placement()
    pages, window = placed.place(POINT)
    requests = cut(placed.traces["made"], window)
    assert Size().few <= len(requests) <= Size().many and window.duration_s is not None
    sustained = sustained_rate(requests, roofline_of(SimOptions()), pages)
    assert len(requests) / window.duration_s == pytest.approx(0.7 * sustained, rel=0.01)
    _, busier = placed.place(replace(POINT, load=1.4))
    assert busier.rate_scale > 1.5 * window.rate_scale


def test_a_pool_is_a_share_of_what_is_needed_but_of_the_device_at_most() -> None:
    placed = make_placement()
    need = needed_pages(placed.traces["made"].requests, 16)
    assert placed.pages(POINT) == int(0.1 * need)
    small = replace(POINT, device="rtx4090", model="qwen2.5-7b", pool=1.0)
    assert placed.pages(small) == min(need, placed.pages(small))


def test_sizes_bound_requests_and_tokens() -> None:
    def count(**bounds: float) -> int:
        placed = make_placement(size=replace(Size(), **bounds))  # type: ignore[arg-type]
        return len(cut(placed.traces["made"], placed.place(POINT)[1]))

    assert count(many=200, few=10) == 200
    assert count(arrivals_s=1e-3, few=30) == 30
    assert count(output_tokens=1000, few=50) == 25


def test_the_same_requests_for_every_reader_and_link() -> None:
    placed = make_placement()
    one, two = (placed.job(replace(POINT, link=link, host=1.0), "fcfs") for link in (3.0, 50.0))
    assert one.setup.window == two.setup.window
    assert one.setup.machine.link_gb_per_s != two.setup.machine.link_gb_per_s
    assert one.setup.warmup_s == pytest.approx(0.25 * (one.setup.window.duration_s or 0.0))


def test_a_pool_that_holds_no_request_is_said() -> None:
    with pytest.raises(ValueError, match="no request of made fits"):
        make_placement(50).place(replace(POINT, pool=1e-6))
