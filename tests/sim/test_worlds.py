"""Random worlds on a sound device, and the proof that a seed is all there is to a world."""

import os
import subprocess
import sys

import pytest

from tokenix.tests.sim.world import World
from tokenix.tests.tidy.tree import ROOT

CHUNKS = 24
CHUNK = 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_calm_worlds_end_well(chunk: int) -> None:
    for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        World(2 * number).run()


@pytest.mark.parametrize("seed", [1_000_903, 1_001_554, 3_000_179])
def test_worlds_that_failed_once(seed: int) -> None:
    """Stores that fail were tried for ever; a resume whose pages had sunk was forgotten; cached
    pages took each other's block of a full file, in turn."""
    World(seed).run()


def test_same_seed_same_story() -> None:
    assert World(4).run() == World(4).run() != World(6).run()


def test_no_story_hangs_on_the_hash_seed() -> None:
    program = (
        "from tokenix.tests.sim.world import World\n"
        "print([World(seed).run() for seed in range(40)])\n"
    )
    told = []
    for hash_seed in ("0", "4711"):
        env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib"), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        told.append(done.stdout)
    assert told[0] == told[1]


def test_a_failing_world_says_how_to_replay_it() -> None:
    world = World(6)
    world.machine.kernel.memory.settle_in = None  # type: ignore[assignment]
    with pytest.raises(AssertionError, match=r"replay: python -m tokenix\.tests\.sim\.world 6"):
        world.run()


def test_a_story_can_be_told() -> None:
    lines: list[str] = []
    silent, told = World(6).run(), World(6, tell=lines.append).run()
    assert told == silent
    assert any("call Spawn" in line for line in lines) and any("forward" in line for line in lines)
