"""The best token of a row, as a pass finds it."""

import numpy as np
import pytest

from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.best import NOT_FINITE, find_best
from tokenix.drivers.cpu.jit import kernel
from tokenix.drivers.cpu.numbers import address


@kernel
def best_of(row, count):
    return find_best(address(row), count)


def row_of(numbers):
    """Behind them in memory are numbers that are larger than all, and not-a-number."""
    row = aligned_empty((len(numbers) + 32,), np.dtype(np.float32))
    row[:] = np.nan
    row[len(numbers) : len(numbers) + 8] = np.inf
    row[: len(numbers)] = numbers
    return row


def test_it_is_the_first_of_the_largest(seed):
    rng = np.random.default_rng(seed)
    for count in (1, 2, 15, 16, 17, 203, 512, 1000):
        for numbers in (
            rng.standard_normal(count),
            rng.integers(-3, 3, count),
            np.full(count, -7.0),
            -np.abs(rng.standard_normal(count)) * 1e38,
        ):
            row = row_of(numbers.astype(np.float32))
            assert best_of(row, count) == row[:count].argmax(), (count, numbers)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 40, 44])
def test_a_row_that_is_not_finite_has_none(strange, at):
    row = row_of(np.arange(45, dtype=np.float32))
    assert best_of(row, 45) == 44
    row[at] = strange
    assert best_of(row, 45) == NOT_FINITE
