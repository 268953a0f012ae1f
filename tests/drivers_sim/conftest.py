"""Machines over simulated devices."""

import pytest

from tokenix.tests.drivers_sim.lab import Lab


@pytest.fixture
def lab() -> Lab:
    """A device of 32 frames of 4 tokens and 16 host slots, without faults."""
    return Lab()
