"""`bench decode` in small, on the real driver."""

import pytest

pytest.importorskip("numba")

from tokenix.bench import decode
from tokenix.cli.main import main
from tokenix.syscalls.passes import Limits, Work


def test_a_step_is_compared_with_what_bounds_it() -> None:
    limits = Limits(
        read_bytes_per_s=1e9, dot_macs_per_s=1e10, pair_macs_per_s=1e9, fma_macs_per_s=5e8
    )
    work = Work(bytes=8_000_000, weight_macs=10_000_000, attention_macs=1_000_000)
    assert decode._floor("native", work, limits) == (8.0, "memory")
    assert decode._floor("bf16", work, limits) == (12.0, "arithmetic")
    assert decode._floor("exact", work, limits) == (22.0, "arithmetic")


def test_the_decode_bench_measures_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    report = decode.measure(batches=(1, 2), rounds=1)
    assert [(step.weights, step.batch) for step in report.steps] == [
        (kind, batch) for batch in (1, 2) for kind in ("native", "bf16", "exact")
    ]
    native, bf16, exact = report.steps[:3]
    assert 0 < native.floor_ms < bf16.floor_ms <= exact.floor_ms, "a third of the bytes"
    assert all(step.ms >= step.best_ms > 0 for step in report.steps)
    for step in report.steps:
        assert {"qkv", "attend", "down", "head"} <= step.phases_ms.keys()
        assert min(step.phases_ms.values()) > 0
        assert sum(step.phases_ms.values()) < 20 * step.ms, "medians of parts of one step"
    assert report.dot_gmacs_per_s > report.fma_gmacs_per_s > 0 < report.pair_gmacs_per_s
    assert report.read_gb_per_s > 0
    assert set(report.prefill_tokens_per_s) == {"native", "bf16", "exact"}
    assert main(["bench", "decode", "--rounds", "0"]) != 0
    assert "rounds" in capsys.readouterr().err
