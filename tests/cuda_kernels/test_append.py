"""Bias, norm, rotation and the write to pages, simulated, against float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.abi import APPEND
from tokenix.drivers.cuda.kernels.append import THREADS, WARPS, Vector, make_append
from tokenix.drivers.cuda.kernels.oracles import narrow, read_head
from tokenix.drivers.cuda.kernels.pages import DIMS, Page, layer_words
from tokenix.drivers.cuda.kernels.registry import Shape, find_recipes
from tokenix.drivers.cuda.kernels.sources import read_source
from tokenix.tests.cuda_kernels import cpp
from tokenix.tests.cuda_kernels.simt import launch
from tokenix.tests.cuda_kernels.world import distance, frozen

ROUNDING = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3, "int8": 8e-3, "fp8": 7e-2, "int4": 7e-2}
"""Of a stored number; a sum that falls between two of them may go to either."""

CASES = [
    pytest.param(Vector("bf16", "bf16", 64, bias=False, norm=False), 32, id="llama"),
    pytest.param(Vector("f16", "f16", 128, bias=True, norm=False), 64, id="qwen2"),
    pytest.param(Vector("bf16", "f16", 128, bias=False, norm=True), 64, id="qwen3"),
    pytest.param(Vector("f32", "f32", 80, bias=True, norm=True), 16, id="partial-rotation"),
    pytest.param(Vector("f32", "bf16", 256, bias=False, norm=False), 128, id="dim-256"),
]


CPP_CASES = [
    *CASES,
    pytest.param(Vector("bf16", "int8", 64, bias=False, norm=False), 32, id="int8"),
    pytest.param(Vector("f32", "fp8", 128, bias=True, norm=True), 64, id="fp8"),
    pytest.param(Vector("f32", "int4", 64, bias=False, norm=False), 32, id="int4"),
    pytest.param(Vector("f16", "int4", 80, bias=False, norm=True), 16, id="int4-dim-80"),
]

HEADS, KV_HEADS, MAX_PAGES, FRAMES = 3, 2, 3, 9
POISON = 0x7FC07FC0


class Rows:
    """Four rows, the second of them padding, and memory before and after."""

    def __init__(self, vector: Vector, half: int, seed: int) -> None:
        random = np.random.default_rng(seed)

        def draw(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        dim, self.every = vector.dim, HEADS + 2 * KV_HEADS
        self.page: Page = Page(vector.kv, dim)
        self.positions = frozen(np.array([31, -1, 0, 16], np.int32))
        self.slots = frozen(np.array([2, 0, 0, 1], np.int32))
        self.tables = frozen(random.permutation(FRAMES).astype(np.int32))
        bias, norm = self.every * dim * vector.bias, dim * vector.norm
        angles = draw(32 * half)
        self.layer_at = layer_words(vector.kv, dim, KV_HEADS)
        self.given = (
            frozen(narrow(vector.x, draw(4, self.every * dim)).reshape(-1)),
            *(frozen(draw(n)) for n in (bias, norm, norm)),
            frozen(np.cos(angles)),
            frozen(np.sin(angles)),
            self.positions,
            self.slots,
            self.tables,
        )
        self.scalars = (
            self.layer_at, 2 * self.layer_at, 4, HEADS, KV_HEADS, half, MAX_PAGES, np.float32(1e-5),
        )  # fmt: skip
        self.q, self.wanted_q = np.full((2, 4 * HEADS * dim), np.nan, np.float32)
        self.arena, self.wanted = np.full((2, FRAMES * 2 * self.layer_at), POISON, np.uint32)
        oracles.append(vector.x, self.page, *self.given, self.wanted_q, self.wanted, *self.scalars)

    def read(self, arena: np.ndarray) -> np.ndarray:
        """K and V of the rows that are no padding, [rows * 2 * KV_HEADS, dim]."""
        places = [self.layer_at + h * self.page.words for h in range(2 * KV_HEADS)]
        heads = [
            read_head(
                self.page, arena, self.tables, int(self.slots[row]), self.positions[row : row + 1],
                at, 2 * self.layer_at, MAX_PAGES,
            )
            for row in (0, 2, 3)
            for at in places
        ]  # fmt: skip
        return np.concatenate(heads)

    def check(self, tolerance: float) -> None:
        """Numbers are near the oracle's; what it leaves is left."""
        halves, wanted = self.arena.view(np.uint16), self.wanted.view(np.uint16)
        changed = self.wanted != POISON
        assert changed.sum() >= 3 * 2 * KV_HEADS * self.page.token_words * 0.99
        left = np.repeat(~changed, 2)
        assert (halves[left] == wanted[left]).all()
        assert distance(self.read(self.arena), self.read(self.wanted)) < tolerance
        q, wanted_q = self.q.reshape(4, -1), self.wanted_q.reshape(4, -1)
        assert distance(q[[0, 2, 3]], wanted_q[[0, 2, 3]]) < 5e-6 and np.isnan(q[1]).all()


@pytest.mark.parametrize(("vector", "half"), CASES)
def test_append(vector: Vector, half: int, seed: int) -> None:
    rows = Rows(vector, half, seed)
    grid = (-(-4 * rows.every // WARPS),)
    launch(
        make_append(vector), grid, THREADS, *rows.given, rows.q, rows.arena, *rows.scalars,
        seed=seed,
    )  # fmt: skip
    rows.check(ROUNDING[vector.kv])


@pytest.mark.slow
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kv", ["f32", "f16", "bf16"])
def test_simulated_append_of_the_whole_matrix(kv: Any, dim: int) -> None:
    test_append(Vector(kv, kv, dim, bias=True, norm=True), dim // 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kv", ["int8", "fp8", "int4"])
def test_append_of_the_whole_matrix(kv: Any, dim: int, folder: Path) -> None:
    test_append_in_cpp(Vector("bf16", kv, dim, bias=True, norm=True), dim // 2, folder, 1)


@pytest.mark.parametrize(("vector", "half"), CPP_CASES)
def test_append_in_cpp(vector: Vector, half: int, folder: Path, seed: int) -> None:
    rows = Rows(vector, half, seed)
    shape = Shape(
        vector.kv, vector.x, HEADS * KV_HEADS, KV_HEADS, vector.dim, vector.bias, vector.norm
    )
    recipe = next(r for r in find_recipes(shape)["append"] if r.technique == "cpp")
    cpp.launch(
        APPEND, read_source("append"), recipe.variant.split(), (-(-4 * rows.every // WARPS),),
        THREADS, recipe.shared_bytes, *rows.given, rows.q, rows.arena, *rows.scalars, seed=seed,
        folder=folder,
    )  # fmt: skip
    rows.check(ROUNDING[vector.kv])
