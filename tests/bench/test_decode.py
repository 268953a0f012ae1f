"""`bench decode` in small, on the real driver."""

import pytest

pytest.importorskip("numba")

from tokenix.bench import decode
from tokenix.cli.main import main
from tokenix.syscalls.passes import Limits, Work


def test_a_step_is_compared_with_what_bounds_it() -> None:
    limits = Limits(read_bytes_per_s=1e9, dot_macs_per_s=1e10, fma_macs_per_s=1e9)
    work = Work(bytes=8_000_000, weight_macs=10_000_000, attention_macs=1_000_000)
    assert decode._floor("native", work, limits) == (8.0, "memory")
    assert decode._floor("exact", work, limits) == (11.0, "arithmetic")


def test_the_decode_bench_measures_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    report = decode.measure(batches=(1, 2), rounds=1)
    assert [(step.weights, step.batch) for step in report.steps] == [
        ("native", 1), ("exact", 1), ("native", 2), ("exact", 2),
    ]  # fmt: skip
    native, exact = report.steps[:2]
    assert 0 < native.floor_ms < exact.floor_ms, "a third of the bytes"
    assert all(step.ms >= step.best_ms > 0 for step in report.steps)
    for step in report.steps:
        assert {"qkv", "attend", "down", "head"} <= step.phases_ms.keys()
        assert min(step.phases_ms.values()) > 0
        assert sum(step.phases_ms.values()) < 20 * step.ms, "medians of parts of one step"
    assert report.dot_gmacs_per_s > report.fma_gmacs_per_s > 0 and report.read_gb_per_s > 0
    assert set(report.prefill_tokens_per_s) == {"native", "exact"}
    assert main(["bench", "decode", "--rounds", "0"]) != 0
    assert "rounds" in capsys.readouterr().err
