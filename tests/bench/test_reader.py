"""The reader seen from outside: hand-made delivery times."""

import pytest

from tokenix.bench.reader import count_stalls, lateness


def paced(count: int, gap_s: float, start_s: float = 0.0) -> list[float]:
    return [start_s + gap_s * i for i in range(count)]


@pytest.mark.parametrize(
    ("times_s", "stalls"),
    [
        ([], 0),
        ([5.0], 0),
        (paced(20, 0.1), 0),  # as fast as it is read
        (paced(20, 0.01), 0),  # far ahead
        (paced(5, 0.1) + paced(5, 0.1, 1.0), 1),  # 0.5 s after the last: due at 0.5, comes at 1.0+
        (paced(5, 0.1) + paced(5, 0.1, 0.95), 0),  # 0.45 s late: within the tolerance
        (paced(40, 0.01) + paced(5, 0.1, 3.0), 0),  # a pause of 2.6 s inside a lead of 3.6 s
        (paced(40, 0.01) + paced(5, 0.1, 5.0), 1),  # and one that outlasts it, counted once
        (paced(4, 1.0), 3),  # too slow throughout: every token
    ],
)
def test_count_stalls(times_s: list[float], stalls: int) -> None:
    tolerance_s = 0.499999  # 1.0 - 0.5 is not exactly 0.5
    assert count_stalls(times_s, 10.0, tolerance_s) == stalls


def test_a_late_token_shifts_the_later_deadlines() -> None:
    assert lateness([0.0, 2.0, 2.1, 2.2], 10.0) == pytest.approx([1.9, 0.0, 0.0])


def test_being_ahead_is_negative_lateness() -> None:
    assert lateness([0.0, 0.0, 0.0], 1.0) == pytest.approx([-1.0, -2.0])
