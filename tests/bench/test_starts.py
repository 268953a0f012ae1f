"""`bench startup MODEL` in small, on the real driver and processes of their own."""

from pathlib import Path

import pytest

pytest.importorskip("numba")

from tokenix.bench import starts
from tokenix.cli.benchstartup import _table_of_starts


def test_a_start_keeps_packed_weights_and_the_next_one_has_them(tmp_path: Path) -> None:
    runs = {way: [starts.start("smollm2", "native", way, tmp_path)] for way in starts.WAYS[1:]}
    (path,) = tmp_path.glob("tokenix/weights/*")
    first, again = (starts._summary(way, found) for way, found in runs.items())
    mib = path.stat().st_size / 2**20
    assert 0 < again.least_s == again.first_token_s
    assert again.own_mib < first.own_mib - mib / 2
    assert again.peak_mib >= max(again.own_mib, mib)
    text = _table_of_starts(starts.Report("smollm2", (first, again)))
    assert [line.split()[0] for line in text.splitlines()] == ["smollm2", "first", "again"]


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a start of /nope failed: no model or file"):
        starts.start("/nope", "auto", "first", tmp_path)
