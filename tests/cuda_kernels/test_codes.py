"""Codes and scales in NumPy: what the CPU's kernels make of the same numbers, and torch's e4m3."""

from typing import Any

import numpy as np
import pytest

from tokenix.drivers.cpu import kvformat
from tokenix.drivers.cuda.kernels import codes
from tokenix.drivers.cuda.kernels.pages import DIMS, Page

KINDS = {"int8": kvformat.INT8, "fp8": kvformat.FP8, "int4": kvformat.INT4}


def draw(seed: int, rows: int, dim: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    sizes = 10.0 ** random.uniform(-3, 3, (rows, 1))
    return (random.standard_normal((rows, dim)) * sizes).astype(np.float32)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_those_of_the_cpu(kind: Any, dim: int, seed: int) -> None:
    """But for fp8's scale, which is there 2**8 times as large."""
    page, x = Page(kind, dim), draw(seed, 20, dim)
    x[0] = 0.0
    found, scales, lows = codes.encode(page, x)
    group = dim // page.groups
    for row in range(len(x)):
        for g in range(page.groups):
            mine = slice(g * group, (g + 1) * group)
            wanted = np.zeros(group, np.uint8)
            scale, low = kvformat.encode(KINDS[kind], x[row, mine], wanted)
            factor = 256 if kind == "fp8" else 1
            assert codes.bf16_values(scales[row])[g] * factor == scale
            assert codes.bf16_values(lows[row])[g] == low
            assert found[row, mine].tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_codes_survive_packing(kind: Any, seed: int) -> None:
    page = Page(kind, 96)
    found, scales, lows = codes.encode(page, x := draw(seed, 9, 96))
    words = codes.pack(page, found)
    assert words.shape == (9, page.token_words)
    assert (codes.unpack(page, words) == found).all()
    numbers = codes.decode(page, found, scales, lows)
    step = {"int8": 1 / 127, "fp8": 1 / 16, "int4": 2 / 15}[kind]
    assert (np.abs(numbers - x) <= step * np.abs(x).max(axis=1, keepdims=True)).all()


def test_fp8_is_e4m3() -> None:
    torch = pytest.importorskip("torch")
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    number = ~np.isnan(every)
    assert (codes._FP8_VALUES[number] == every[number]).all() and (~number).sum() == 2
    x = np.random.default_rng(3).uniform(-448, 448, 4000).astype(np.float32) ** 3 / 448**2
    wanted = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    found = codes._fp8_codes(x)
    assert (codes._FP8_VALUES[found] == codes._FP8_VALUES[wanted]).all()


def test_what_is_not_finite_is_not_hidden() -> None:
    page = Page("int8", 64)
    x = np.ones((2, 64), np.float32)
    x[0, 5], x[1, 7] = np.inf, np.nan
    assert np.isnan(codes.decode(page, *codes.encode(page, x))).all()


@pytest.mark.parametrize("dim", DIMS)
def test_turned_keys_and_queries_have_the_same_products(dim: int, seed: int) -> None:
    page = Page("int4", dim)
    q, k = draw(seed, 2, dim).astype(np.float64)
    turned = codes.turn(page, q) / (dim // page.groups) @ codes.turn(page, k)
    assert turned == pytest.approx(q @ k, rel=1e-9, abs=1e-6)
