"""Which part of a model a GPU has, where several compute it together.

    q k v, gate up   rows: some heads, some of the feed-forward   each computes its own
    o, down          the columns that go with them                partial sums, added over all
    head             rows: some of the vocabulary                 logits, gathered on rank 0
    embed, norms     all of it

The embedding is whole everywhere: a pass reads a few of its rows, and a sum over all GPUs would
cost more time than the memory is worth.
"""

import errno
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenix.models.config import ModelConfig
from tokenix.models.ggml_types import BY_NAME, dequantize
from tokenix.models.weights import CodedMatrix, Fp8Weights, Weights

if TYPE_CHECKING:
    import torch

_ROWS = ("q", "k", "v", "gate", "up")
_COLUMNS = ("o", "down", "q_bias", "k_bias", "v_bias")
"""A vector is one row."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count`."""

    index: int = 0
    count: int = 1

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model as this part computes it. The vocabulary is that of the whole."""
        return replace(
            config,
            heads=config.heads // self.count,
            kv_heads=config.kv_heads // self.count,
            ffn=config.ffn // self.count,
        )

    def head_rows(self, vocab: int) -> tuple[slice, int]:
        """Which rows of the head, and how many of zeros behind them: all parts have as many."""
        size = -(-vocab // self.count)
        rows = range(vocab)[self.index * size :][:size]
        return slice(rows.start, rows.stop), size - len(rows)

    def head(self, whole: "torch.Tensor") -> "torch.Tensor":
        """Its rows of [vocab, hidden]; a view of them where none are added."""
        from torch.nn import functional

        rows, zeros = self.head_rows(len(whole))
        return functional.pad(whole[rows], (0, 0, 0, zeros)) if zeros else whole[rows]


WHOLE = Shard()


def list_counts(config: ModelConfig) -> list[int]:
    """Into how many parts a model can be divided."""
    divided = config.heads, config.kv_heads, config.ffn
    counts = range(1, config.kv_heads + 1)
    return [count for count in counts if not any(size % count for size in divided)]


def check_shards(config: ModelConfig, count: int) -> None:
    """OSError EINVAL for a number of parts that a model has not, with those that it has."""
    counts = list_counts(config)
    if count not in counts:
        *some, last = map(str, counts)
        could = f"{', '.join(some)} or {last} would" if some else f"only {last} would"
        raise OSError(
            errno.EINVAL,
            f"tensor_parallel={count} does not divide the {config.heads} heads, {config.kv_heads} "
            f"KV heads and {config.ffn} feed-forward rows of {config.name}; {could}",
        )


class ShardWeights:
    """Keeps `models.weights.Weights` and `Fp8Weights` for a part of a model: nothing else of the
    file is read."""

    def __init__(self, weights: Weights, shard: Shard) -> None:
        self._weights = weights
        self._shard = shard

    def names(self) -> list[str]:
        return self._weights.names()

    def kind(self, name: str) -> str:
        """In the file."""
        return self._weights.kind(name)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The part's rows or columns of a tensor; all of it where parts have it whole."""
        last = name.rpartition(".")[2]
        if last not in ("head", *_ROWS, *_COLUMNS):
            return self._weights.float32(name)
        kind, rows = self.quantized(name)
        if last == "head":
            mine, zeros = self._shard.head_rows(len(rows))
            return np.pad(dequantize(rows[mine], kind), ((0, zeros), (0, 0)))
        numbers = dequantize(rows, kind)
        return numbers.reshape(-1) if last.endswith("bias") else numbers

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """As they are in the file; as "F32" where a block of the file is in two parts."""
        last = name.rpartition(".")[2]
        kind, rows = self._weights.quantized(name)
        if last in _ROWS:
            return kind, self._rows(rows)
        if last not in _COLUMNS:
            return kind, rows
        block = BY_NAME[kind]
        if rows.shape[1] // block.block_bytes % self._shard.count:
            return "F32", np.ascontiguousarray(self._columns(dequantize(rows, kind))).view(np.uint8)
        return kind, self._columns(rows)

    def fp8(self, name: str) -> CodedMatrix | None:
        """A matrix of layers as it is in the file, if it is of this kind there."""
        weights, last = self._weights, name.rpartition(".")[2]
        found = weights.fp8(name) if isinstance(weights, Fp8Weights) else None
        if found is None:
            return None
        if last in _ROWS:
            return CodedMatrix(self._rows(found.codes), self._rows(found.scales))
        return found._replace(codes=self._columns(found.codes)) if last in _COLUMNS else found

    def _rows(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        size = len(matrix) // self._shard.count
        return matrix[self._shard.index * size :][:size]

    def _columns(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        size = matrix.shape[1] // self._shard.count
        return matrix[:, self._shard.index * size :][:, :size]
