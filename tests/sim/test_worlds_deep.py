"""Random worlds that live in all three tiers, and restore by every way there is."""

import pytest

from tokenix.tests.sim.draws import KINDS
from tokenix.tests.sim.world import World

CHUNKS = 8
CHUNK = 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_deep_worlds_end_well(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        World(seed, draw=KINDS["deep"]).run()
