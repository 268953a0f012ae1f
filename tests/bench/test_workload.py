"""The demo's arrivals: the same for the same seed, and more than the pool holds."""

import pytest

from tokenix.bench.workload import FULL, QUICK, Shape, fit, make_workload, pool_pages

SHAPES = [pytest.param(FULL, id="full"), pytest.param(QUICK, id="quick")]
PACES = [5.0, 10.0, 28.0, 100.0]


@pytest.mark.parametrize("shape", SHAPES)
def test_same_seed_same_workload(shape: Shape, seed: int) -> None:
    assert make_workload(seed, 30.0, shape) == make_workload(seed, 30.0, shape)
    assert make_workload(seed, 30.0, shape) != make_workload(seed + 1, 30.0, shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps_per_s", PACES)
def test_long_streams_exceed_the_pool(shape: Shape, steps_per_s: float) -> None:
    workload = make_workload(1, steps_per_s, fit(shape, steps_per_s))
    output_pages = sum(arrival.output_tokens for arrival in workload.longs) // 16
    assert output_pages > 1.2 * workload.pool_pages, "outputs alone do not fit"
    biggest = max(arrival.output_tokens for arrival in workload.longs) // 16 + 6
    assert biggest < workload.pool_pages, "each of them fits"


@pytest.mark.parametrize("steps_per_s", PACES)
def test_short_requests_come_when_the_pool_is_full(steps_per_s: float) -> None:
    shape = fit(FULL, steps_per_s)
    workload = make_workload(1, steps_per_s, shape)
    generated = (workload.shorts[0].at_s - workload.longs[-1].at_s) * steps_per_s
    assert shape.long_streams * generated >= 0.8 * 16 * pool_pages(shape) - 48 * len(workload.longs)
    assert generated < shape.long_tokens, "and before the streams end"
    assert workload.shorts[-1].at_s - workload.longs[-1].at_s <= 1.5 * (
        shape.long_tokens / steps_per_s
    )


def test_full_load_is_what_the_demo_promises() -> None:
    workload = make_workload(1, 30.0)
    assert len(workload.longs) >= 6 and len(workload.shorts) >= 24
    assert all(arrival.output_tokens >= 400 for arrival in workload.longs)
    assert len({arrival.prompt for arrival in workload.arrivals}) == len(workload.arrivals)
    assert len({arrival.name for arrival in workload.arrivals}) == len(workload.arrivals)
    assert all(16 <= arrival.output_tokens <= 32 for arrival in workload.shorts)


def test_a_slow_device_is_asked_less() -> None:
    slow, fast = fit(FULL, 7.0), fit(FULL, 70.0)
    assert fast == FULL
    assert slow.long_tokens < FULL.long_tokens and slow.tokens_per_s < FULL.tokens_per_s
    assert 1 <= slow.burst < FULL.burst and slow.shorts >= 24
    readers = slow.long_streams * slow.tokens_per_s
    assert readers < 0.5 * slow.long_streams * 7.0, "readers are well within what it decodes"


def test_a_fast_device_gets_everything_sooner() -> None:
    """Streams of a GPU overlap as those of a processor do, and their readers lag as far behind."""
    pace = 600.0
    shape, plain = fit(FULL, pace), make_workload(1, 28.0, FULL)
    workload = make_workload(1, pace, shape)
    assert workload.pool_pages == plain.pool_pages
    assert shape.long_streams * shape.tokens_per_s < 0.5 * shape.long_streams * pace
    for ours, theirs in zip(workload.longs, plain.longs, strict=True):
        assert ours.at_s * pace == pytest.approx(theirs.at_s * 28.0)
        assert ours.tokens_per_s / pace == pytest.approx(theirs.tokens_per_s / 28.0)
