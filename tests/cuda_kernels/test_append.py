"""Bias, norm, rotation and the write to pages, simulated, against float64."""

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.append import THREADS, WARPS, Vector, make_append
from tokenix.drivers.cuda.kernels.oracles import narrow, widen
from tokenix.drivers.cuda.kernels.pages import Page, layer_words
from tokenix.tests.cuda_kernels.simt import launch
from tokenix.tests.cuda_kernels.world import distance, frozen

ROUNDING = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}
"""Of a stored number; a sum that falls between two of them may go to either."""

CASES = [
    pytest.param(Vector("bf16", "bf16", 64, bias=False, norm=False), 32, id="llama"),
    pytest.param(Vector("f16", "f16", 128, bias=True, norm=False), 64, id="qwen2"),
    pytest.param(Vector("bf16", "f16", 128, bias=False, norm=True), 64, id="qwen3"),
    pytest.param(Vector("f32", "f32", 80, bias=True, norm=True), 16, id="partial-rotation"),
    pytest.param(Vector("f32", "bf16", 256, bias=False, norm=False), 128, id="dim-256"),
]


@pytest.mark.parametrize(("vector", "half"), CASES)
def test_append(vector: Vector, half: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    heads, kv_heads, dim, max_pages = 3, 2, vector.dim, 3
    positions = frozen(np.array([31, -1, 0, 16], np.int32))
    slots = frozen(np.array([2, 0, 0, 1], np.int32))
    tables = frozen(random.permutation(9).astype(np.int32))
    rows, every = len(positions), heads + 2 * kv_heads

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    qkv = frozen(narrow(vector.x, draw(rows, every * dim)).reshape(-1))
    bias = frozen(draw(every * dim if vector.bias else 0))
    q_norm, k_norm = (frozen(draw(dim if vector.norm else 0)) for _ in range(2))
    angles = draw(32 * half)
    cos, sin = frozen(np.cos(angles)), frozen(np.sin(angles))
    page = Page(vector.kv, dim)
    layer_at = layer_words(vector.kv, dim, kv_heads)
    q = np.full(rows * heads * dim, np.nan, np.float32)
    arena = np.full(9 * 2 * layer_at, 0x7FC07FC0, np.uint32)
    scalars = (layer_at, 2 * layer_at, rows, heads, kv_heads, half, max_pages, np.float32(1e-5))
    given = (qkv, bias, q_norm, k_norm, cos, sin, positions, slots, tables)
    wanted_q, wanted_arena = q.copy(), arena.copy()
    oracles.append(vector.x, page, *given, wanted_q, wanted_arena, *scalars)
    grid = (-(-rows * every // WARPS),)
    launch(make_append(vector), grid, THREADS, *given, q, arena, *scalars, seed=seed)
    written = wanted_arena != 0x7FC07FC0
    assert written.sum() >= 3 * 2 * kv_heads * page.token_words * 0.99
    assert (arena[~written] == 0x7FC07FC0).all()
    numbers, wanted = (widen(vector.kv, each[written]) for each in (arena, wanted_arena))
    assert distance(numbers, wanted) < ROUNDING[vector.kv]
    unpadded = np.arange(rows) != 1
    q, wanted_q = q.reshape(rows, -1), wanted_q.reshape(rows, -1)
    assert distance(q[unpadded], wanted_q[unpadded]) < 5e-6 and np.isnan(q[1]).all()
