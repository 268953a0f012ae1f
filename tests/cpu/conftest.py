"""Tiny random models of every supported family, and ways to run them."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

from dataclasses import replace

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from tokenix.drivers.cpu.arena import FrameArena, PageShape
from tokenix.drivers.cpu.best import NOT_FINITE
from tokenix.drivers.cpu.chunks import Chunk
from tokenix.drivers.cpu.kvformat import FORMATS, PLAIN
from tokenix.drivers.cpu.step import ModelStep
from tokenix.drivers.cpu.team import set_threads
from tokenix.drivers.kvkind import KV_KINDS
from tokenix.models.config import ModelConfig, RopeConfig
from tokenix.models.ggml_types import BY_NAME, dequantize
from tokenix.models.tensor_names import expected_shapes

TINY = ModelConfig(
    name="tiny",
    architecture="llama",
    layers=2,
    hidden=96,
    heads=6,
    kv_heads=2,
    head_dim=16,
    ffn=96,
    vocab_tokens=203,
    max_context_tokens=256,
    rms_eps=1e-5,
    rope=RopeConfig(theta=10000.0, dim=16),
)
WIDE_ROPE = RopeConfig(theta=1e6, dim=32)
FAMILIES = {
    "llama": TINY,
    "tied": replace(TINY, tied_embeddings=True),
    "mistral": replace(TINY, architecture="mistral", heads=4, kv_heads=1),
    "one kv head": replace(TINY, architecture="mistral", hidden=80, heads=20, kv_heads=1),
    "qwen2": replace(TINY, architecture="qwen2", qkv_bias=True, heads=4),
    "qwen3": replace(
        TINY, architecture="qwen3", qk_norm=True, head_dim=32, rms_eps=1e-6, rope=WIDE_ROPE
    ),
}
SUPER = replace(TINY, hidden=256, heads=8, head_dim=32, ffn=256, rope=WIDE_ROPE)
"""Wide enough for blocks of 256."""
CODED = [kind for kind in KV_KINDS if FORMATS[kind].kind != PLAIN]
"""Formats of keys and values that are made of codes and scales."""


class RandomWeights:
    """Keeps `models.weights.Weights` for what the driver asks of it."""

    def __init__(self, config, seed=0):
        rng = np.random.default_rng(seed)
        self.tensors = {}
        for name, shape in expected_shapes(config).items():
            if name.endswith("norm"):
                value = rng.uniform(0.5, 1.5, shape)
            else:
                value = rng.standard_normal(shape) * (1.5 / shape[-1] ** 0.5)
            if name == "embed":
                value *= 8
            self.tensors[name] = value.astype(np.float32)

    def names(self):
        return list(self.tensors)

    def kind(self, name):
        return self.quantized(name)[0]

    def float32(self, name):
        return self.tensors[name].copy()

    def quantized(self, name):
        tensor = self.tensors[name]
        return "F32", tensor.reshape(len(tensor) if tensor.ndim == 2 else 1, -1).view(np.uint8)


def super_blocks(kind, shape, deviation, rng):
    """A matrix of blocks of 256, which `gguf` only reads: any bytes are some, but for the float16
    that they begin or end with, by which the numbers have this deviation."""
    rows, blocks = shape[0], shape[1] // 256
    raw = rng.integers(0, 256, (rows, blocks, BY_NAME[kind].block_bytes), np.uint8)
    lows = {"Q4_K": 7.5, "Q5_K": 15.5}.get(kind)
    factors = raw[..., -2:] if lows is None else raw[..., :4]

    def scale_by(scales):
        both = scales if lows is None else np.concatenate([scales, lows * scales], axis=-1)
        factors[:] = np.ascontiguousarray(both, "<f2").view(np.uint8)
        return raw.reshape(rows, -1)

    ones = np.ones((rows, blocks, 1))
    size = dequantize(scale_by(ones), kind).std()
    return scale_by(ones * rng.uniform(0.5, 1.5, ones.shape) * deviation / size)


class QuantizedWeights(RandomWeights):
    """Matrices as a file of mixed types has them, by turns."""

    KINDS = ("Q4_1", "Q8_0", "Q5_0", "Q4_0", "F32", "Q5_1")
    SUPER_KINDS = ("Q6_K", "Q5_K", "Q4_K", "Q3_K")
    """Of matrices that are wide enough."""

    def __init__(self, config, seed=0):
        super().__init__(config, seed)
        self.raw = {}
        rng = np.random.default_rng(seed)
        for i, (name, tensor) in enumerate(self.tensors.items()):
            if tensor.ndim != 2 or tensor.shape[1] % 32:
                continue
            kinds = self.KINDS if tensor.shape[1] % 256 else (*self.SUPER_KINDS, *self.KINDS)
            kind = kinds[i % len(kinds)]
            if kind in self.SUPER_KINDS:
                self.raw[name] = kind, super_blocks(kind, tensor.shape, tensor.std(), rng)
            elif kind != "F32":
                self.raw[name] = kind, quantize(tensor, GGMLQuantizationType[kind])

    def float32(self, name):
        if name not in self.raw:
            return super().float32(name)
        kind, blocks = self.raw[name]
        return dequantize(blocks, kind)

    def quantized(self, name):
        return self.raw.get(name) or super().quantized(name)


class Model:
    """A step with its own arena, and sequences in scattered frames."""

    def __init__(
        self, config, weights=None, kv="f16", dense="f16", frames=96, page_tokens=16, keep=None
    ):
        set_threads(2)
        self.config = config
        shape = PageShape.of(config, page_tokens, kv)
        self.arena = FrameArena(shape, frames)
        self.weights, self.dense = weights or RandomWeights(config), dense
        self.step = ModelStep(config, self.weights, self.arena, dense, keep=keep)
        pages = np.random.default_rng(7).permutation(frames).astype(np.int32)
        self.tables = np.ascontiguousarray(pages[: frames // 6 * 6].reshape(6, -1))

    def run(self, *chunks):
        """Logits of the wanted rows, a copy."""
        logits = self.step.forward(self.tables, list(chunks))
        whole = np.isfinite(logits.rows).all(axis=1)
        assert (logits.best == np.where(whole, logits.rows.argmax(axis=1), NOT_FINITE)).all()
        return logits.rows.copy()

    def all_logits(self, table, tokens, size=None):
        """Logits of every position of a sequence, run in chunks of `size`."""
        size = size or len(tokens)
        parts = [
            self.run(Chunk(table, at, tuple(tokens[at : at + size]), True))
            for at in range(0, len(tokens), size)
        ]
        return np.concatenate(parts)

    def page(self, table, vpn):
        return self.arena.page_bytes(self.tables[table, vpn]).copy()


WEIGHTS = {"f16": RandomWeights, "bf16": RandomWeights, "native": QuantizedWeights}


TINIES = {**{kind: (TINY, kind) for kind in WEIGHTS}, "super-blocks": (SUPER, "native")}


@pytest.fixture(scope="session", params=TINIES)
def tiny(request):
    """A model of each way to keep weights."""
    config, dense = TINIES[request.param]
    return Model(config, WEIGHTS[dense](config), dense=dense)


@pytest.fixture
def tokens(seed):
    return [int(t) for t in np.random.default_rng(seed).integers(0, TINY.vocab_tokens, 120)]


def here_and_with_avx2(program: str) -> list[list[str]]:
    """The words that a program prints on this processor, and on it as one with AVX2 alone."""
    avx2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    found = []
    for chosen in ({}, avx2):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **chosen}
        run = subprocess.run(
            [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
        )
        found.append(run.stdout.split())
    return found
