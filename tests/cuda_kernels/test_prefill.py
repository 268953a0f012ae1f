"""Chunked prefill attention over pages, its C++ run on this machine, against float64."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.abi import PREFILL
from tokenix.drivers.cuda.kernels.pages import DIMS
from tokenix.drivers.cuda.kernels.prefill import ROWS, make_tiles, shared_bytes
from tokenix.drivers.cuda.kernels.sources import defines, read_source
from tokenix.tests.cuda_kernels.cpp import launch
from tokenix.tests.cuda_kernels.world import World, distance, frozen, make_world

THREADS = 128
ROUNDING = {"f16": 1e-3, "bf16": 4e-3, "int8": 8e-3, "fp8": 8e-3, "int4": 8e-3}
"""Of queries and weights, which tensor cores take as 16 bits; and of keys and values with codes."""

CASES = [
    pytest.param("bf16", 64, 3, 1, [(0, 70), (50, 30)], id="bf16-two-chunks"),
    pytest.param("f16", 128, 1, 2, [(63, 2)], id="f16-key-tile-edge"),
    pytest.param("bf16", 80, 2, 1, [(127, 1)], id="dim-80-one-row"),
    pytest.param("f16", 256, 1, 1, [(55, 20)], id="dim-256"),
    pytest.param("int8", 64, 2, 2, [(63, 3)], id="int8"),
    pytest.param("fp8", 128, 1, 1, [(0, 40)], id="fp8"),
    pytest.param("int4", 80, 1, 1, [(20, 50)], id="int4-dim-80"),
    pytest.param("int4", 96, 1, 2, [(7, 20)], id="int4-dim-96"),
]


def make_chunks(
    kind: str, dim: int, group: int, kv_heads: int, chunks: list[tuple[int, int]], seed: int
) -> tuple[World, list[tuple[int, int]]]:
    """Chunks of (first position, rows), each of a slot of its own; the world of their last rows,
    then with a row for each position."""
    world = make_world(kind, dim, group, kv_heads, [at + rows - 1 for at, rows in chunks], seed)
    positions = np.concatenate([np.arange(at, at + rows) for at, rows in chunks])
    counts = [rows for _, rows in chunks]
    random = np.random.default_rng(seed + 1)
    q = random.standard_normal(len(positions) * world.heads * dim).astype(np.float32)
    if kind != "f16":
        q = oracles.widen("bf16", oracles.narrow("bf16", q)).astype(np.float32)
    spread = replace(
        world,
        positions=frozen(positions.astype(np.int32)),
        slots=frozen(np.repeat(world.slots, counts)),
        q=frozen(q),
    )
    return spread, list(zip(np.cumsum([0, *counts[:-1]]).tolist(), counts, strict=True))


def run_prefill(world: World, chunks: list[tuple[int, int]], folder: Path, seed: int) -> np.ndarray:
    kind, dim = world.page.kind, world.page.dim
    tiles = frozen(make_tiles(chunks))
    out = np.full(len(world.q), np.nan, np.float32)
    launch(
        PREFILL, read_source("prefill"), defines(kind, "f32", world.group, dim),
        (len(tiles) // 2, world.heads), THREADS, shared_bytes(dim), *world.attention, tiles, out,
        *world.strides, world.scale, seed=seed, folder=folder,
    )  # fmt: skip
    return out.astype(np.float64)


@pytest.mark.parametrize(("kind", "dim", "group", "kv_heads", "chunks"), CASES)
def test_prefill(
    kind: str, dim: int, group: int, kv_heads: int, chunks: list[tuple[int, int]], folder: Path,
    seed: int,
) -> None:  # fmt: skip
    world, runs = make_chunks(kind, dim, group, kv_heads, chunks, seed)
    out = run_prefill(world, runs, folder, seed)
    wanted = oracles.attend(world.page, *world.attention, *world.strides, float(world.scale))
    assert distance(out, wanted.ravel()) < ROUNDING[kind]


@pytest.mark.slow
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", ["f16", "bf16", "int8", "fp8", "int4"])
def test_prefill_of_the_whole_matrix(kind: str, dim: int, folder: Path) -> None:
    test_prefill(kind, dim, 2, 1, [(60, 7)], folder, 1)


def test_a_row_does_not_depend_on_its_chunk(folder: Path, seed: int) -> None:
    """The last rows of a prompt, all of it at once and in two chunks, are the same bits."""
    world, runs = make_chunks("bf16", 64, 1, 1, [(0, 70)], seed)
    whole = run_prefill(world, runs, folder, seed).reshape(70, -1)
    split = run_prefill(world, [(0, 41), (41, 29)], folder, seed + 1).reshape(70, -1)
    assert whole.tobytes() == split.tobytes()


def test_tiles_cover_chunks() -> None:
    tiles = make_tiles([(0, ROWS), (ROWS, 1), (ROWS + 1, 2 * ROWS + 3)]).reshape(-1, 2)
    assert tiles.tolist() == [
        [0, 64], [64, 1], [65, 64], [129, 64], [193, 3],
    ]  # fmt: skip
