"""Random worlds whose device fails now and then, and where anybody may be paused at any moment."""

import pytest

from tokenix.tests.sim.world import World

CHUNKS = 24
CHUNK = 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_harsh_worlds_end_well(chunk: int) -> None:
    for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        World(2 * number + 1).run()
