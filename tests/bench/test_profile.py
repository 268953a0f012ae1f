"""`bench profile` in small, on the real driver."""

import pytest

pytest.importorskip("numba")

from tokenix.bench.profile import measure
from tokenix.syscalls.anatomy import PARTS


def test_the_parts_of_a_step_make_up_the_whole() -> None:
    lines = measure(batches=(1, 3), context=40, steps=24)
    assert [(line.batch, line.read) for line in lines] == [
        (1, False), (1, True), (3, False), (3, True),
    ]  # fmt: skip
    for line in lines:
        assert line.parts_ms.keys() == set(PARTS)
        assert 0 < line.parts_ms["model"] < line.whole_ms
        assert all(part >= 0 for part in line.parts_ms.values())
        assert 0 < line.around_share < 1
        assert line.as_json()["batch"] == line.batch
