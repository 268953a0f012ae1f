"""Weights of a model on the device, in one dtype, whatever the file holds.

Matrices stay [out, in]; q, k and v of a layer are one matrix, as are gate and up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.dense import Dense, DenseKind, dtype_of
from tokenix.drivers.cuda.ranks.shard import WHOLE, Shard
from tokenix.models.config import ModelConfig
from tokenix.models.rope import inv_freq
from tokenix.models.weights import Weights

if TYPE_CHECKING:
    import torch

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layer:
    """Tensors of a layer; None where the model has no such thing."""

    attn_norm: "torch.Tensor"
    qkv: "torch.Tensor"
    """[(heads + 2 * kv_heads) * head_dim, hidden]"""
    bias: "torch.Tensor | None"
    """float32, of qkv"""
    q_norm: "torch.Tensor | None"
    """float32 [head_dim], like k_norm"""
    k_norm: "torch.Tensor | None"
    o: "torch.Tensor"
    ffn_norm: "torch.Tensor"
    gate_up: "torch.Tensor"
    """[2 * ffn, hidden]"""
    down: "torch.Tensor"


class DeviceWeights:
    """All tensors of a model, or of a shard of it (config and weights are the shard's).
    progress(stage, fraction) is called while loading."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dense: Dense,
        kind: DenseKind,
        positions: int,
        progress: Callable[[str, float], None] | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        import torch

        self._device = dense.device
        self._dtype = dtype_of(kind)
        self.layers: list[Layer] = []
        for i in range(config.layers):
            self.layers.append(self._layer(config, weights, f"layers.{i}."))
            if progress is not None:
                progress("loading weights", (i + 1) / config.layers)
        self.embed = self._put(weights.float32("embed"))
        self.norm = self._put(weights.float32("norm"))
        if config.tied_embeddings:
            self.head = shard.head(self.embed)
        else:
            self.head = self._put(weights.float32("head"))
        frequencies, factor = inv_freq(config.rope)
        angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
        self.cos = self._put((np.cos(angles) * factor).astype(np.float32), torch.float32)
        """float32 [positions, half of the rotated dims], like sin"""
        self.sin = self._put((np.sin(angles) * factor).astype(np.float32), torch.float32)

    def _layer(self, config: ModelConfig, weights: Weights, name: str) -> Layer:
        import torch

        def stacked(*tensors: str) -> Float32:
            return np.concatenate([weights.float32(name + each) for each in tensors])

        single = torch.float32
        return Layer(
            attn_norm=self._put(weights.float32(name + "attn_norm")),
            qkv=self._put(stacked("q", "k", "v")),
            bias=self._put(stacked("q_bias", "k_bias", "v_bias"), single)
            if config.qkv_bias
            else None,
            q_norm=self._put(weights.float32(name + "q_norm"), single) if config.qk_norm else None,
            k_norm=self._put(weights.float32(name + "k_norm"), single) if config.qk_norm else None,
            o=self._put(weights.float32(name + "o")),
            ffn_norm=self._put(weights.float32(name + "ffn_norm")),
            gate_up=self._put(stacked("gate", "up")),
            down=self._put(weights.float32(name + "down")),
        )

    def _put(self, array: Float32, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
        import torch

        host = torch.from_numpy(np.ascontiguousarray(array)).to(dtype or self._dtype)
        return host.to(self._device)
