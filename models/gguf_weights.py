"""The tensors of a mapped GGUF file under their normalized names."""

import numpy as np
import numpy.typing as npt

from tokenix.models.config import ModelConfig
from tokenix.models.ggml_types import check_readable, dequantize
from tokenix.models.gguf_config import PERMUTED
from tokenix.models.gguf_header import GgufHeader
from tokenix.models.tensor_names import check_tensors, expected_shapes, gguf_name, split_layer

_NOT_WEIGHTS = ("rope_freqs.weight",)


class GgufWeights:
    """Weights over a GGUF file. Nothing is read or dequantized before it is asked for."""

    def __init__(self, header: GgufHeader, config: ModelConfig) -> None:
        """Check that the file has exactly the tensors of `config`.

        Errors: OSError; ENOENT tensors missing, EINVAL wrong shapes or unknown tensors, ENOEXEC a
        tensor type that cannot be dequantized.
        """
        self._header = header
        self._shapes = expected_shapes(config)
        self._permuted_heads: dict[str, int] = {}
        if config.architecture in PERMUTED:
            self._permuted_heads = {
                "q": config.heads,
                "q_bias": config.heads,
                "k": config.kv_heads,
                "k_bias": config.kv_heads,
            }
        where = str(header.path)
        expected = {gguf_name(name): shape for name, shape in self._shapes.items()}
        found = {name: info.shape for name, info in header.tensors.items()}
        unknown = [n for n in found if n not in expected and n not in _NOT_WEIGHTS]
        check_tensors(where, expected, found, unknown)
        for name in expected:
            check_readable(where, name, header.tensors[name].type)

    def names(self) -> list[str]:
        """All normalized names, in the order layers run."""
        return list(self._shapes)

    def kind(self, name: str) -> str:
        """The ggml type. KeyError if there is none."""
        return self._header.tensors[gguf_name(name)].type.name

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor dequantized to float32, a new array [out, in] or [n]. KeyError if none."""
        kind, rows = self.quantized(name)
        return dequantize(rows, kind).reshape(self._shapes[name])

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """(ggml type name, raw blocks uint8 [out, bytes per row]). KeyError if there is none.

        A vector is one row. The array is a read-only view of the file, except q and k of permuted
        architectures, which are copies with their rows in half-split order.
        """
        return self.rows(name, 0, self._shapes[name][0])

    def rows(self, name: str, first: int, last: int) -> tuple[str, npt.NDArray[np.uint8]]:
        """Keeps `RowWeights`. KeyError if there is none."""
        shape = self._shapes[name]
        info = self._header.tensors[gguf_name(name)]
        data = np.frombuffer(self._header.data, np.uint8, info.size_bytes, info.start)
        heads = self._permuted_heads.get(split_layer(name)[1])
        if heads is None:
            raw = data.reshape(shape[0] if len(shape) == 2 else 1, -1)
            return info.type.name, raw[first:last]
        order, stored = half_split_rows(shape[0], heads), data.reshape(shape[0], -1)
        if len(shape) == 2:
            return info.type.name, stored[order[first:last]]
        return info.type.name, stored[order].reshape(1, -1)[first:last]


def half_split_rows(rows: int, heads: int) -> npt.NDArray[np.intp]:
    """Where each half-split row of q or k lies in a matrix stored for adjacent pairs, [rows].

    A head of 6:   stored  0a 0b 1a 1b 2a 2b   ->   0a 1a 2a 0b 1b 2b
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
