"""Random worlds whose processes go to images and come back, on disks that are slow or fail."""

import pytest

from tokenix.tests.sim.draws import KINDS
from tokenix.tests.sim.world import World

CHUNKS = 8
CHUNK = 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_sleepy_worlds_end_well(chunk: int) -> None:
    woken = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        world = World(seed, draw=KINDS["sleepy"])
        world.run()
        woken += world.callers.sleepers.woken
    assert woken > CHUNK // 4, "that is what these worlds are for"
