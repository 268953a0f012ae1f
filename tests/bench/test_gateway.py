"""What a streamed token costs over HTTP is measured on real processes."""

from tokenix.bench.gateway import measure


def test_a_small_run() -> None:
    report = measure(streams=2, tokens=20, step_s=0.005, rounds=1)
    assert report.tokens == 40
    assert report.gateway_us > 0 and report.echo_us > 0
    assert report.ratio == report.gateway_us / report.echo_us
