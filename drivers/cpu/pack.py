"""Weights of a model into the form that the kernels read, once at boot."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenix.drivers.cpu import dense
from tokenix.drivers.cpu.dense import FloatKind
from tokenix.drivers.cpu.floattile import tile_function
from tokenix.drivers.cpu.jit import Array, Float32
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import LayerWeights
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


def pack_model(
    config: ModelConfig,
    weights: Weights,
    kind: FloatKind,
    progress: Callable[[str, float], None] | None = None,
) -> LayerWeights:
    """All weights of a model, those of layers stacked."""
    count, hidden = config.layers, config.hidden
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    vectors = read_vectors(config, weights)
    embed = head = _pack_vocabulary(config, weights, "embed", kind)
    if not config.tied_embeddings:
        head = _pack_vocabulary(config, weights, "head", kind)
    packed = LayerWeights(
        tile=tile_function(dense.STORED[kind]),
        attn_norm=vectors.attn_norm,
        qkv=dense.empty_packed(count, queries + 2 * keys, hidden, kind),
        bias=vectors.bias,
        q_norm=vectors.q_norm,
        k_norm=vectors.k_norm,
        o=dense.empty_packed(count, hidden, queries, kind),
        ffn_norm=vectors.ffn_norm,
        gate_up=dense.empty_packed(count, 2 * config.ffn, hidden, kind),
        down=dense.empty_packed(count, hidden, config.ffn, kind),
        norm=weights.float32("norm"),
        embed=embed,
        head=head,
    )
    for i in range(count):
        _pack_layer(packed, i, weights, kind)
        if progress is not None:
            progress("packing weights", (i + 1) / count)
    return packed


def _pack_layer(packed: LayerWeights, i: int, weights: Weights, kind: FloatKind) -> None:
    def pack(names: tuple[str, ...], into: Array) -> None:
        read = [dense.read_matrix(weights, f"layers.{i}.{name}", kind) for name in names]
        dense.pack_matrix(read, into)

    pack(("q", "k", "v"), packed.qkv[i])
    pack(("o",), packed.o[i])
    pack(("gate", "up"), packed.gate_up[i])
    pack(("down",), packed.down[i])


def _pack_vocabulary(config: ModelConfig, weights: Weights, name: str, kind: FloatKind) -> Array:
    """The embedding or the head."""
    packed: Array = dense.empty_packed(1, config.vocab_tokens, config.hidden, kind)[0]
    dense.pack_matrix([dense.read_matrix(weights, name, kind)], packed)
    return packed


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin, float32 [positions, rotated / 2]."""
    frequencies, factor = inv_freq(config.rope)
    angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    return cos.astype(np.float32), sin.astype(np.float32)
