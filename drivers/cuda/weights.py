"""Weights of a model on the device: in one dtype, whatever the file holds, but for matrices of
layers that are in 8 bits (`matrix.py`).

Matrices stay [out, in]; q, k and v of a layer are one matrix, as are gate and up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.dense import Dense, DenseKind, dtype_of
from tokenix.drivers.cuda.matrix import (
    Fp8Matrix,
    Fp8Use,
    Matrix,
    is_aligned,
    join_stored,
    quantize,
)
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
    qkv: Matrix
    """[(heads + 2 * kv_heads) * head_dim, hidden]"""
    bias: "torch.Tensor | None"
    """float32, of qkv"""
    q_norm: "torch.Tensor | None"
    """float32 [head_dim], like k_norm"""
    k_norm: "torch.Tensor | None"
    o: Matrix
    ffn_norm: "torch.Tensor"
    gate_up: Matrix
    """[2 * ffn, hidden]"""
    down: Matrix


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
        fp8: Fp8Use = "stored",
    ) -> None:
        import torch

        self._fp8 = fp8
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

        def matrix(*tensors: str) -> Matrix:
            return self._matrix(weights, [name + each for each in tensors])

        single = torch.float32
        return Layer(
            attn_norm=self._put(weights.float32(name + "attn_norm")),
            qkv=matrix("q", "k", "v"),
            bias=self._put(_stack(weights, [f"{name}{each}_bias" for each in "qkv"]), single)
            if config.qkv_bias
            else None,
            q_norm=self._put(weights.float32(name + "q_norm"), single) if config.qk_norm else None,
            k_norm=self._put(weights.float32(name + "k_norm"), single) if config.qk_norm else None,
            o=matrix("o"),
            ffn_norm=self._put(weights.float32(name + "ffn_norm")),
            gate_up=matrix("gate", "up"),
            down=matrix("down"),
        )

    def _matrix(self, weights: Weights, names: Sequence[str]) -> Matrix:
        """Of tensors below each other."""
        import torch

        stored = None if self._fp8 == "never" else join_stored(weights, names)
        if stored is not None and is_aligned(stored.codes.shape):
            codes = torch.from_numpy(stored.codes).view(torch.float8_e4m3fn)
            scales = torch.from_numpy(stored.scales).reshape(1, -1)
            return Fp8Matrix(codes.to(self._device), scales.to(self._device))
        rows = _stack(weights, names)
        if self._fp8 == "all" and is_aligned(rows.shape):
            return quantize(rows, self._device)
        return self._put(rows)

    def _put(self, array: Float32, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
        import torch

        host = torch.from_numpy(np.ascontiguousarray(array)).to(dtype or self._dtype)
        return host.to(self._device)


def _stack(weights: Weights, names: Sequence[str]) -> Float32:
    return np.concatenate([weights.float32(name) for name in names])
