"""The tensors of a model by normalized names, whatever file they come from.

    embed                       [vocab, hidden]
    layers.{i}.attn_norm        [hidden]
    layers.{i}.q / k / v        [heads * head_dim or kv_heads * head_dim, hidden]
    layers.{i}.q_bias / k_bias / v_bias      (config.qkv_bias)
    layers.{i}.q_norm / k_norm  [head_dim]   (config.qk_norm)
    layers.{i}.o                [hidden, heads * head_dim]
    layers.{i}.ffn_norm         [hidden]
    layers.{i}.gate / up        [ffn, hidden]
    layers.{i}.down             [hidden, ffn]
    norm                        [hidden]
    head                        [vocab, hidden]   (absent when config.tied_embeddings)

Matrices are [out, in]: y = x @ w.T. Rows of q and k are in half-split RoPE order.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


class CodedMatrix(NamedTuple):
    """A matrix of e4m3 [out, in]: number = code * scale of its row."""

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    """[out]"""


class Weights(Protocol):
    def names(self) -> list[str]:
        """All normalized names present, in a fixed order."""
        ...

    def kind(self, name: str) -> str:
        """How the tensor is stored: its ggml type, such as "Q4_1", or "F32" | "F16" | "BF16" |
        "F8_E4M3". KeyError if there is none."""
        ...

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor dequantized to float32, a new array. KeyError if there is none."""
        ...

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """(ggml type name such as "Q4_1", rows of raw blocks [out, bytes per row]); float formats
        give ("F32" | "F16" | "BF16", raw bytes)."""
        ...


@runtime_checkable
class RowWeights(Protocol):
    """Weights that give some rows of a matrix without reading or making the others."""

    def rows(self, name: str, first: int, last: int) -> tuple[str, npt.NDArray[np.uint8]]:
        """Rows first..last-1 of `Weights.quantized`, fewer at the end. KeyError if there is
        none."""
        ...


@runtime_checkable
class Fp8Weights(Protocol):
    """Weights that may lie in their file in 8 bits."""

    def fp8(self, name: str) -> CodedMatrix | None:
        """A matrix as it is in the file, if it is of this kind there. KeyError if there is none."""
        ...
