"""Weights of a model into the form that the kernels read, once at boot."""

from collections.abc import Callable

import numpy as np

from tokenix.drivers.cpu import dense
from tokenix.drivers.cpu.dense import DenseKind
from tokenix.drivers.cpu.jit import Float32
from tokenix.drivers.cpu.layers import LayerWeights
from tokenix.drivers.cpu.tile import LANES
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


def pack_layers(
    config: ModelConfig,
    weights: Weights,
    kind: DenseKind,
    progress: Callable[[str, float], None] | None = None,
) -> LayerWeights:
    """Stack and pack the weights of all layers."""
    count, hidden = config.layers, config.hidden
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    bias = queries + 2 * keys if config.qkv_bias else 0
    head_norm = config.head_dim if config.qk_norm else 0
    packed = LayerWeights(
        attn_norm=np.empty((count, hidden), np.float32),
        qkv=dense.empty_packed(count, queries + 2 * keys, hidden, kind),
        bias=np.empty((count, bias), np.float32),
        q_norm=np.empty((count, head_norm), np.float32),
        k_norm=np.empty((count, head_norm), np.float32),
        o=dense.empty_packed(count, hidden, queries, kind),
        ffn_norm=np.empty((count, hidden), np.float32),
        gate_up=dense.empty_packed(count, 2 * config.ffn, hidden, kind),
        down=dense.empty_packed(count, hidden, config.ffn, kind),
    )
    for i in range(count):
        _pack_layer(packed, i, weights, kind)
        if progress is not None:
            progress("packing weights", (i + 1) / count)
    return packed


def _pack_layer(packed: LayerWeights, i: int, weights: Weights, kind: DenseKind) -> None:
    def tensor(name: str) -> Float32:
        return weights.float32(f"layers.{i}.{name}")

    packed.attn_norm[i] = tensor("attn_norm")
    packed.ffn_norm[i] = tensor("ffn_norm")
    if packed.bias.shape[1]:
        packed.bias[i] = np.concatenate([tensor("q_bias"), tensor("k_bias"), tensor("v_bias")])
    if packed.q_norm.shape[1]:
        packed.q_norm[i], packed.k_norm[i] = tensor("q_norm"), tensor("k_norm")
    dense.pack_matrix([tensor("q"), tensor("k"), tensor("v")], kind, packed.qkv[i])
    dense.pack_matrix([tensor("o")], kind, packed.o[i])
    dense.pack_matrix([tensor("gate"), tensor("up")], kind, packed.gate_up[i])
    dense.pack_matrix([tensor("down")], kind, packed.down[i])


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin, float32 [positions, rotated / 2]."""
    frequencies, factor = inv_freq(config.rope)
    angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    return cos.astype(np.float32), sin.astype(np.float32)
