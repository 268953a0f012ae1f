"""What each limit may be: both ends of its range, nothing beyond, and the message names them."""

import math
import threading
from dataclasses import fields, replace
from typing import Any

import pytest

from tokenix.kernel.params import RANGES, YEAR_S, Params

PLAIN = Params(image_idle_s=1.0)
NUMBERS = [each.name for each in fields(Params) if type(getattr(PLAIN, each.name)) in (int, float)]
PAIRS = {
    "max_processes": "max_zombies", "max_zombies": "max_processes",
    "reclaim_low_share": "reclaim_high_share", "reclaim_high_share": "reclaim_low_share",
    "sink_low_share": "sink_high_share", "sink_high_share": "sink_low_share",
}  # fmt: skip
"""Limits that are held against another one, which then is the same here."""


def with_limit(name: str, value: Any) -> Params:
    changes: dict[str, Any] = {name: value}
    if name in PAIRS:
        changes[PAIRS[name]] = value
    return replace(PLAIN, **changes)


def test_every_number_has_a_range() -> None:
    assert set(RANGES) == set(NUMBERS)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_limit_within_its_range_only(name: str) -> None:
    low, high = RANGES[name]
    for good in (low, high):
        assert getattr(with_limit(name, good), name) == good
    whole = isinstance(getattr(PLAIN, name), int)
    beyond = (low - 1, high + 1) if whole else (
        math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.inf, -math.inf,
        math.nan, 10**400,
    )  # fmt: skip
    for bad in beyond:
        with pytest.raises(AssertionError) as why:
            with_limit(name, bad)
        said = str(why.value)
        assert f"{name} must be" in said or f"{PAIRS.get(name)} must be" in said
        assert f"between {low:,} and {high:,}" in said
    for odd in ("7", None, True, [1], *((0.5, math.nan) if whole else ())):
        if odd is None and name == "image_idle_s":
            continue
        with pytest.raises(AssertionError, match=r"must be a( whole)? number, not "):
            with_limit(name, odd)


@pytest.mark.parametrize("name", ["prefix_cache", "poison"])
def test_a_switch_is_one(name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name} must be true or false, not 1"):
        with_limit(name, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_processes": 5, "max_zombies": 6},
        {"reclaim_low_share": 0.3, "reclaim_high_share": 0.2},
        {"sink_low_share": 0.3, "sink_high_share": 0.2},
        {"prefix_policy": "none"},
    ],
)
def test_limits_that_relate(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=next(iter(changes)).replace("processes", "zombies")):
        Params(**changes)


def test_no_wait_of_the_operating_system_is_longer_than_it_takes() -> None:
    seconds = [name for name in RANGES if name.endswith("_s") and "bytes_per" not in name]
    assert max(RANGES[name][1] for name in seconds) == YEAR_S < threading.TIMEOUT_MAX / 100
