"""Weights of a model into the form that the kernels read, once at boot."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from tokenix.drivers.cpu import dense
from tokenix.drivers.cpu.dense import FloatKind
from tokenix.drivers.cpu.floattile import tile_function
from tokenix.drivers.cpu.jit import Array, Float32
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import LayerWeights
from tokenix.drivers.cpu.packcache import PackCache, take_packed
from tokenix.drivers.cpu.pieces import Piece, cut, pack_all
from tokenix.models.config import ModelConfig
from tokenix.models.rope import inv_freq
from tokenix.models.weights import Weights


def check_shapes(config: ModelConfig) -> None:
    """ValueError for shapes that the kernels do not cover."""
    for name, size in (
        ("hidden", config.hidden),
        ("head_dim", config.head_dim),
        ("ffn", config.ffn),
    ):
        if size % LANES:
            raise ValueError(f"model {config.name}: {name}={size} is not a multiple of {LANES}")
    if config.heads % config.kv_heads:
        raise ValueError(
            f"model {config.name}: {config.heads} heads do not share {config.kv_heads} kv heads"
        )


@dataclass(frozen=True, slots=True)
class Vectors:
    """Norms and biases of all layers, [layers, width]; width 0 where a model has none."""

    attn_norm: Float32
    ffn_norm: Float32
    bias: Float32
    """Of q, k and v."""
    q_norm: Float32
    k_norm: Float32


def read_vectors(config: ModelConfig, weights: Weights) -> Vectors:
    def stack(*names: str) -> Float32:
        return np.stack(
            [
                np.concatenate([weights.float32(f"layers.{i}.{name}") for name in names])
                for i in range(config.layers)
            ]
        )

    none = np.empty((config.layers, 0), np.float32)
    return Vectors(
        attn_norm=stack("attn_norm"),
        ffn_norm=stack("ffn_norm"),
        bias=stack("q_bias", "k_bias", "v_bias") if config.qkv_bias else none,
        q_norm=stack("q_norm") if config.qk_norm else none,
        k_norm=stack("k_norm") if config.qk_norm else none,
    )


class _Stack(NamedTuple):
    """Matrices of one shape, packed one behind the other."""

    names: tuple[tuple[str, ...], ...]
    """Of each the tensors whose rows are stacked; each but the last one fills its groups."""
    outputs: int
    inputs: int


def _stacks(config: ModelConfig) -> dict[str, _Stack]:
    """By their names in `LayerWeights`, in the order in which they lie."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def layers(outputs: int, inputs: int, *parts: str) -> _Stack:
        each = (tuple(f"layers.{i}.{part}" for part in parts) for i in range(config.layers))
        return _Stack(tuple(each), outputs, inputs)

    stacks = {
        "qkv": layers(queries + 2 * keys, config.hidden, "q", "k", "v"),
        "o": layers(config.hidden, queries, "o"),
        "gate_up": layers(2 * config.ffn, config.hidden, "gate", "up"),
        "down": layers(config.hidden, config.ffn, "down"),
        "embed": _Stack((("embed",),), config.vocab_tokens, config.hidden),
    }
    if not config.tied_embeddings:
        stacks["head"] = _Stack((("head",),), config.vocab_tokens, config.hidden)
    return stacks


def pack_model(
    config: ModelConfig,
    weights: Weights,
    kind: FloatKind,
    progress: Callable[[str, float], None] | None = None,
    keep: PackCache | None = None,
) -> LayerWeights:
    """All weights of a model, those of layers stacked. ValueError as `dense.read_piece`."""
    vectors, stacks = read_vectors(config, weights), _stacks(config)
    shapes = {
        name: (len(stack.names), *dense.packed_shape(stack.outputs, stack.inputs))
        for name, stack in stacks.items()
    }
    stored = dense.STORED[kind]
    ends = list(accumulate(math.prod(shape) for shape in shapes.values()))

    def divide(run: Array) -> dict[str, Array]:
        parts = np.split(run.view(stored), ends[:-1])
        return {
            name: part.reshape(shape)
            for part, (name, shape) in zip(parts, shapes.items(), strict=True)
        }

    def fill(run: Array) -> None:
        pack_all(_jobs(stacks, weights, divide(run), kind, progress))

    packed = divide(take_packed(keep, kind, config, ends[-1] * stored.itemsize, fill))
    return LayerWeights(
        tile=tile_function(stored),
        attn_norm=vectors.attn_norm,
        qkv=packed["qkv"],
        bias=vectors.bias,
        q_norm=vectors.q_norm,
        k_norm=vectors.k_norm,
        o=packed["o"],
        ffn_norm=vectors.ffn_norm,
        gate_up=packed["gate_up"],
        down=packed["down"],
        norm=weights.float32("norm"),
        embed=packed["embed"][0],
        head=packed["embed" if config.tied_embeddings else "head"][0],
    )


def _jobs(
    stacks: Mapping[str, _Stack],
    weights: Weights,
    packed: Mapping[str, Array],
    kind: FloatKind,
    progress: Callable[[str, float], None] | None,
) -> Iterator[Callable[[], None]]:
    """One for each piece of each matrix."""
    total, done = sum(len(stack.names) for stack in stacks.values()), 0
    for name, stack in stacks.items():
        for names, into in zip(stack.names, packed[name], strict=True):
            start = 0
            for tensor in names:
                for piece in cut(weights, tensor, stack.inputs):
                    end = start + piece.groups
                    yield partial(_pack_piece, piece, kind, into[start:end])
                    start = end
            done += 1
            if progress is not None:
                progress("packing weights", done / total)


def _pack_piece(piece: Piece, kind: FloatKind, into: Array) -> None:
    dense.pack_rows(dense.read_piece(piece, kind), into)


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin, float32 [positions, rotated / 2]."""
    frequencies, factor = inv_freq(config.rope)
    angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    return cos.astype(np.float32), sin.astype(np.float32)
