"""Paged decode and the sum of its splits, simulated, against float64."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.abi import DECODE
from tokenix.drivers.cuda.kernels.decode import THREADS, WARPS, Tiling, make_combine, make_decode
from tokenix.drivers.cuda.kernels.pages import DIMS
from tokenix.drivers.cuda.kernels.registry import Shape, find_recipes
from tokenix.drivers.cuda.kernels.sources import read_source
from tokenix.tests.cuda_kernels import cpp
from tokenix.tests.cuda_kernels.simt import launch
from tokenix.tests.cuda_kernels.world import World, distance, frozen, make_world

SPLIT = 32
"""Keys of a split here, so that short rows have several."""

ROUNDING = {"f16": 1e-3, "bf16": 5e-3}
"""Of weights, on tensor cores."""

CASES = [
    pytest.param("bf16", 64, 3, 1, [32, 6], id="bf16-two-splits"),
    pytest.param("f16", 128, 4, 1, [16], id="f16-page-edge"),
    pytest.param("f32", 64, 1, 2, [0, 15], id="f32-one-key"),
    pytest.param("bf16", 80, 1, 1, [33], id="dim-80-idle-lanes"),
    pytest.param("bf16", 96, 2, 1, [17], id="dim-96"),
    pytest.param("f32", 256, 1, 1, [9], id="f32-dim-256-two-chunks"),
    pytest.param("bf16", 64, 9, 1, [20], id="group-9-two-tiles"),
    pytest.param("f16", 256, 16, 1, [9], id="f16-dim-256-group-16"),
]


def run_decode(world: World, splits: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows, dim = len(world.positions), world.page.dim
    tiling = Tiling(world.page.kind, world.group, dim)
    parts = np.full(rows * world.heads * splits * dim, np.nan, np.float32)
    stats = np.full(rows * world.heads * splits * 2, np.nan, np.float32)
    grid = (rows, world.kv_heads * tiling.tiles, splits)
    launch(
        make_decode(tiling), grid, THREADS, *world.attention, parts, stats, *world.strides, SPLIT,
        splits, world.scale, seed=seed,
    )  # fmt: skip
    return parts, stats


def run_combine(world: World, parts: np.ndarray, stats: np.ndarray, seed: int) -> np.ndarray:
    items, dim = len(world.positions) * world.heads, world.page.dim
    splits = len(stats) // 2 // items
    out = np.full(items * dim, 0xFFFFFFFF, np.uint32)
    for each in (parts, stats):
        each.flags.writeable = False
    launch(
        make_combine("f32", dim), (-(-items // WARPS),), THREADS, parts, stats, world.positions,
        out, items, world.heads, SPLIT, splits, seed=seed,
    )  # fmt: skip
    return out.view(np.float32).astype(np.float64)


SOURCES = {"cpp": "decode", "mma": "decode_mma"}

CPP_CASES = [
    *CASES,
    pytest.param("int8", 64, 3, 2, [32, 6], id="int8"),
    pytest.param("fp8", 128, 4, 1, [16], id="fp8"),
    pytest.param("int4", 64, 5, 1, [40, 0], id="int4"),
    pytest.param("int4", 80, 1, 1, [33], id="int4-dim-80"),
    pytest.param("fp8", 256, 2, 1, [3], id="fp8-dim-256"),
]


def run_cpp(
    world: World, splits: int, folder: Path, seed: int, technique: str = "cpp"
) -> tuple[np.ndarray, np.ndarray]:
    """As `run_decode`, of decode.cu or decode_mma.cu."""
    rows, page = len(world.positions), world.page
    parts = np.full(rows * world.heads * splits * page.dim, np.nan, np.float32)
    stats = np.full(rows * world.heads * splits * 2, np.nan, np.float32)
    shape = Shape(page.kind, "f32", world.heads, world.kv_heads, page.dim)
    recipe = next(r for r in find_recipes(shape)["decode"] if r.technique == technique)
    source, macros = read_source(SOURCES[technique]), recipe.variant.split()
    cpp.launch(
        DECODE, source, macros, recipe.grid(rows, splits), THREADS, recipe.shared_bytes,
        *world.attention, parts, stats, *world.strides, SPLIT, splits, world.scale, seed=seed,
        folder=folder,
    )  # fmt: skip
    return parts, stats


@pytest.mark.parametrize(("kind", "dim", "group", "kv_heads", "positions"), CPP_CASES)
def test_decode_in_cpp(
    kind: str, dim: int, group: int, kv_heads: int, positions: list[int], folder: Path, seed: int
) -> None:
    world = make_world(kind, dim, group, kv_heads, positions, seed)
    splits = max(positions) // SPLIT + 1
    out = run_combine(world, *run_cpp(world, splits, folder, seed), seed)
    wanted = oracles.attend(world.page, *world.attention, *world.strides, float(world.scale))
    assert distance(out, wanted.ravel()) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 5, 6, 16])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_decode_of_the_whole_matrix(kind: str, dim: int, group: int, folder: Path) -> None:
    test_decode_in_cpp(kind, dim, group, 1, [17], folder, 1)


@pytest.mark.parametrize(("kind", "dim", "group", "kv_heads", "positions"), CASES)
def test_decode_and_combine(
    kind: str, dim: int, group: int, kv_heads: int, positions: list[int], seed: int
) -> None:
    world = make_world(kind, dim, group, kv_heads, positions, seed)
    splits = max(positions) // SPLIT + 1
    out = run_combine(world, *run_decode(world, splits, seed), seed)
    wanted = oracles.attend(world.page, *world.attention, *world.strides, float(world.scale))
    assert distance(out, wanted.ravel()) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 5, 6, 16])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_simulated_decode_of_the_whole_matrix(kind: str, dim: int, group: int) -> None:
    test_decode_and_combine(kind, dim, group, 1, [33], 1)


def test_a_row_does_not_depend_on_its_batch(seed: int) -> None:
    world = make_world("bf16", 64, 1, 1, [33, 3, 14], seed)
    parts, stats = run_decode(world, 2, seed)
    together = run_combine(world, parts, stats, seed).reshape(3, -1)
    for row in range(3):
        alone = replace(
            world,
            positions=world.positions[row : row + 1],
            slots=world.slots[row : row + 1],
            q=world.q.reshape(3, -1)[row],
        )
        splits = int(world.positions[row]) // SPLIT + 1
        out = run_combine(alone, *run_decode(alone, splits, seed + 1), seed)
        assert out.tobytes() == together[row].tobytes()


def test_padding_is_zeros_and_reads_nothing(seed: int) -> None:
    world = make_world("bf16", 64, 2, 1, [5], seed)
    padded = replace(
        world,
        positions=np.array([5, -1], np.int32),
        slots=np.array([world.slots[0], 99], np.int32),
        q=np.concatenate([world.q, np.full_like(world.q, np.nan)]),
    )
    out = run_combine(padded, *run_decode(padded, 1, seed), seed).reshape(2, -1)
    assert np.isfinite(out[0]).all() and (out[1] == 0).all()


@pytest.mark.parametrize("group", range(1, 17))
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_tiling_covers_every_head_and_number_once(kind: str, dim: int, group: int) -> None:
    t = Tiling(kind, group, dim)
    assert (t.tiles - 1) * t.heads < group <= t.tiles * t.heads <= group + t.tiles - 1
    assert t.lanes & (t.lanes - 1) == 0 and 32 % t.lanes == 0
    chunks = {part + c * t.lanes for part in range(t.lanes) for c in range(t.chunks)}
    assert chunks >= set(range(t.last_chunk + 1)) and (t.last_chunk + 1) * t.numbers == dim


MMA_CASES = [
    pytest.param("bf16", 64, 3, 2, [70, 6], id="bf16"),
    pytest.param("f16", 128, 16, 1, [31], id="f16-group-16"),
    pytest.param("bf16", 80, 9, 1, [40], id="dim-80-idle-lanes"),
    pytest.param("f16", 96, 1, 1, [0], id="dim-96-one-key"),
]


@pytest.mark.parametrize(("kind", "dim", "group", "kv_heads", "positions"), MMA_CASES)
def test_decode_on_tensor_cores(
    kind: str, dim: int, group: int, kv_heads: int, positions: list[int], folder: Path, seed: int
) -> None:
    """Queries are what fits into 16 bits; weights are rounded."""
    world = make_world(kind, dim, group, kv_heads, positions, seed)
    q = oracles.widen(kind, oracles.narrow(kind, world.q)).astype(np.float32)
    world = replace(world, q=frozen(q))
    splits = max(positions) // SPLIT + 1
    out = run_combine(world, *run_cpp(world, splits, folder, seed, "mma"), seed)
    wanted = oracles.attend(world.page, *world.attention, *world.strides, float(world.scale))
    assert distance(out, wanted.ravel()) < ROUNDING[kind]


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 5, 6, 16])
@pytest.mark.parametrize("dim", DIMS[:-1])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_tensor_cores_of_the_whole_matrix(kind: str, dim: int, group: int, folder: Path) -> None:
    test_decode_on_tensor_cores(kind, dim, group, 1, [33], folder, 1)
