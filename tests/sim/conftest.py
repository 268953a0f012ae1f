"""Tiny machines in all the ways a machine can be set up."""

from collections.abc import Callable
from typing import Any

import pytest

from tokenix.kernel.params import Params
from tokenix.sched.policies import POLICIES
from tokenix.tests.sim.machine import SimMachine

Boot = Callable[..., SimMachine]


@pytest.fixture(params=[True, False], ids=["cache", "no-cache"])
def cache(request: pytest.FixtureRequest) -> bool:
    """Whether the prefix cache is on."""
    return bool(request.param)


@pytest.fixture(params=list(POLICIES))
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def boot(cache: bool, policy: str) -> Boot:
    """Boot a tiny machine, under each policy, with and without the prefix cache."""

    def make(frames: int, host_slots: int = 64, **options: Any) -> SimMachine:
        params = options.pop("params", {})
        return SimMachine(
            frames, host_slots, policy, Params(poison=True, prefix_cache=cache, **params), **options
        )

    return make
