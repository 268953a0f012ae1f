"""`bench swap` in small, on the real driver."""

from pathlib import Path

import pytest

pytest.importorskip("numba")

from tokenix.bench.swap import measure


def test_the_swap_bench_measures_what_it_says(tmp_path: Path) -> None:
    report = measure(str(tmp_path), longest=256, length=256, turns=1)
    assert 0 <= report.preempt_ms_p50 <= report.preempt_ms_p95
    assert report.clean_share > 0.5, "full pages are cleaned in idle link time"
    assert report.resume_rate_of_memcpy > 0 and report.resume_rate_of_disk > 0
    (row,) = report.planner
    assert row.tokens == 256 and row.chosen in ("swap-in", "recompute", "split")
    assert row.recompute_s > row.swap_in_s > 0, "16 pages load faster than 256 tokens compute"
    fields = report.as_json()
    for name in (
        "preempt_ms_p50", "preempt_ms_p95", "decode_step_ms_p50", "resume_rate_of_memcpy",
        "resume_rate_of_disk", "clean_share", "planner",
    ):  # fmt: skip
        assert name in fields
