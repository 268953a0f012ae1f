"""Random worlds whose device takes two passes at a time: every token as if it took one."""

import pytest

from tokenix.tests.sim.draws import KINDS
from tokenix.tests.sim.world import World

CHUNK = 60


@pytest.mark.parametrize("kind", KINDS)
def test_worlds_end_well_with_a_pass_ahead(kind: str) -> None:
    ahead = 0
    for seed in range(CHUNK):
        world = World(seed, draw=KINDS[kind], depth=2)
        world.run()
        ahead += world.ahead
    assert ahead > 4 * CHUNK, "it was ahead"
