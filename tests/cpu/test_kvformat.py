"""Formats of keys and values: what is written, what is read of it, and how much a page takes."""

from dataclasses import replace

import numpy as np
import pytest

from tokenix.drivers.cpu.arena import PageShape
from tokenix.drivers.cpu.chunks import Chunk
from tokenix.drivers.cpu.hadamard import turn
from tokenix.drivers.cpu.kvformat import FORMATS, FP8, INT4, INT8, encode
from tokenix.drivers.kvkind import KV_KINDS
from tokenix.tests.cpu.conftest import CODED, FAMILIES, TINY, Model

WIDE = FAMILIES["qwen3"]
"""Heads of 32 dims: one whole group of int4, two parts of 16."""


def coded(kind, numbers):
    numbers = np.asarray(numbers, np.float32)
    codes = np.zeros(len(numbers), np.uint8)
    scale, low = encode(kind, numbers, codes)
    return codes, np.float64(scale), np.float64(low)


def e4m3(codes):
    """What `tile` reads: 2**-8 of the standard's numbers."""
    torch = pytest.importorskip("torch")
    standard = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float64)
    return standard.numpy() / 256


def halves(packed):
    return packed & 15, packed >> 4


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def decoded(shape, page):
    """A reading of one page of one head pair by the layout's description: K and V [tokens, dim] of
    every layer and kv head, in float64."""
    layout, dim = shape.pages, shape.pages.scales_at * 8 // shape.pages.bits // 16
    blocks = page[: shape.layers * shape.layer_bytes].reshape(
        shape.layers, 2, shape.kv_heads, shape.page_tokens // 16, layout.block_bytes
    )
    codes, rest = blocks[..., : layout.scales_at], blocks[..., layout.scales_at :]
    steps = (np.ascontiguousarray(rest).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    steps = steps.reshape(*blocks.shape[:-1], -1, layout.groups, 16).astype(np.float64)
    keys, values = codes[:, 0], codes[:, 1]
    outer = keys.shape[:-1]
    if layout.kind == INT4:
        keys = np.stack(halves(keys.reshape(*outer, dim // 2, 16)), axis=-2)
        keys = keys.reshape(*outer, dim, 16)
        values = np.concatenate(halves(values.reshape(*outer, dim // 16, 16, 8)), axis=-1)
    else:
        keys, values = keys.reshape(*outer, dim, 16), values.reshape(*outer, dim // 16, 16, 16)
    keys = np.swapaxes(keys, -1, -2)
    values = np.swapaxes(values, -2, -3).reshape(*outer, 16, dim)
    numbers = np.stack([keys, values], axis=1)
    read = {INT8: lambda c: c.view(np.int8), FP8: e4m3, INT4: lambda c: c}[layout.kind]
    numbers = read(np.ascontiguousarray(numbers)).astype(np.float64)
    grouped = numbers.reshape(*numbers.shape[:-1], layout.groups, -1)
    scale = np.swapaxes(steps[..., 0, :, :], -1, -2)[..., None]
    low = np.swapaxes(steps[..., 1, :, :], -1, -2)[..., None] if layout.kind == INT4 else 0.0
    grouped = grouped * scale + low
    if layout.kind == INT4:
        size = grouped.shape[-1]
        grouped[:, 0] = grouped[:, 0] @ hadamard(size) / size
    return grouped.reshape(shape.layers, 2, shape.kv_heads, shape.page_tokens, dim)


def plain_page(numbers):
    """The bytes of a page of float16, out of what `decoded` gives."""
    layers, _, heads, tokens, dim = numbers.shape
    split = numbers.astype(np.float16).reshape(layers, 2, heads, tokens // 16, 16, dim)
    keys = np.swapaxes(split[:, 0], -1, -2).reshape(layers, heads, -1)
    values = split[:, 1].reshape(layers, heads, tokens // 16, 16, dim // 16, 16)
    values = np.swapaxes(values, -2, -3).reshape(layers, heads, -1)
    return np.ascontiguousarray(np.stack([keys, values], axis=1)).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("size", [16, 32, 128])
def test_a_group_is_turned_by_the_matrix(size, seed):
    x = np.random.default_rng(seed).integers(-1000, 1000, size).astype(np.float32)
    turned = x.copy()
    turn(turned, 0.25)
    assert (turned == hadamard(size) @ x / 4).all(), "whole numbers, so no sum is rounded"
    turn(turned, 4 / size)
    assert (turned == x).all()


@pytest.mark.parametrize("kv", CODED)
@pytest.mark.parametrize("config", [TINY, WIDE, replace(WIDE, head_dim=48)], ids=[16, 32, 48])
def test_what_is_written_is_read_as_the_layout_says(kv, config, tokens):
    """A pass over a page of codes is one over a float16 page of the numbers they stand for."""
    model, plain = Model(config, kv=kv), Model(config)
    model.run(Chunk(0, 0, tuple(tokens[:43]), None))
    for vpn in range(3):
        numbers = decoded(model.arena.shape, model.page(0, vpn))
        valid = min(16, 43 - 16 * vpn)
        numbers[..., valid:, :] = np.nan
        plain.arena.page_bytes(plain.tables[0, vpn])[:] = plain_page(numbers)
    chunk = Chunk(0, 43, tuple(tokens[43:44]), True)
    found, expected = model.run(chunk), plain.run(chunk)
    assert np.isfinite(found).all()
    # The one token of the chunk itself is rounded in one of them.
    bound = {"int8": 0.02, "fp8": 0.05, "int4": 0.2}[kv]
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()


@pytest.mark.parametrize("kv", CODED)
def test_numbers_come_back_within_half_a_step(kv, seed):
    kind = FORMATS[kv].kind
    rng = np.random.default_rng(seed)
    for size in (1e-20, 1.0, 300.0):
        numbers = (rng.standard_normal(32) * size).astype(np.float32)
        codes, scale, low = coded(kind, numbers)
        if kind == INT8:
            error, bound = codes.view(np.int8) * scale - numbers, scale / 2
        elif kind == FP8:
            error = e4m3(codes) * scale - numbers
            bound = np.maximum(np.abs(numbers) / 16, scale * 2.0**-18)
        else:
            error, bound = codes * scale + low - numbers, scale / 2 + np.abs(low) / 256
        assert (np.abs(error) <= bound * 1.0001).all()


def test_fp8_rounds_as_torch_does():
    torch = pytest.importorskip("torch")
    numbers = np.linspace(-448, 448, 20001, dtype=np.float32)
    numbers = np.concatenate([numbers, numbers / 1e3, numbers / 1e5, [448.0]]).astype(np.float32)
    codes, scale, _ = coded(FP8, numbers)
    assert scale == 256
    expected = torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    zero = np.isin(expected, (0, 128))
    assert (codes[~zero] == expected[~zero]).all()
    assert np.isin(codes[zero], (0, 128)).all()


@pytest.mark.parametrize("kind", [INT8, FP8, INT4])
def test_the_edges(kind):
    codes, scale, low = coded(kind, [0.0] * 16)
    assert scale == 0 and low == 0 and not codes.any()
    codes, scale, low = coded(kind, [-3.0] * 16)
    value = {INT8: lambda: codes.view(np.int8), FP8: lambda: e4m3(codes), INT4: lambda: codes}
    assert np.allclose(value[kind]() * scale + low, -3.0, rtol=1 / 200)
    for strange in (np.nan, np.inf, -np.inf):
        for at in (0, 7):
            numbers = np.ones(16)
            numbers[at] = strange
            assert np.isnan(coded(kind, numbers)[1]), "what is not finite is not hidden"


def test_a_frame_is_whole_lines_and_smaller_with_fewer_bits():
    sizes = {}
    for kind in KV_KINDS:
        for config in (TINY, WIDE, replace(TINY, head_dim=80, kv_heads=3, layers=1)):
            for page_tokens in (16, 48):
                assert PageShape.of(config, page_tokens, kind).frame_bytes % 64 == 0
        sizes[kind] = PageShape.of(replace(TINY, head_dim=64), 16, kind).frame_bytes
    values = 2 * TINY.layers * TINY.kv_heads * 16
    assert sizes["f32"] == 4 * 64 * values
    assert sizes["f16"] == sizes["bf16"] == 2 * 64 * values
    assert sizes["int8"] == sizes["fp8"] == (64 + 2) * values
    assert sizes["int4"] == (32 + 2 * 4) * values
