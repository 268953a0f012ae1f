"""Dense layers: y = x @ w.T with packed weights. The place to put faster ones.

    packed weight   [out / 16][in][16]      16 output rows side by side, so that a tile streams them
    packed input    [tiles][in][T]          T token rows side by side, padded with zeros

Weights are kept as float16 by default: 11 bits of mantissa lose eight times less than bfloat16,
and a decode step reads half the bytes of float32. Sums are float32.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.jit import Array, Float32, parallel_kernel, prange
from tokenix.drivers.cpu.tile import ADD, LANES, OVERWRITE, address, tile

DenseKind = Literal["f16", "f32"]
DTYPES: dict[DenseKind, np.dtype[np.generic]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}

FLOAT16_MAX = 65504.0

BLOCK_TOKENS = 128
"""Token rows that share one pass over the weights: their packed input fits the L2 cache."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    data: Array
    """[groups, in, 16], float32, or int16 with the bits of float16 (see `tile`)."""
    outputs: int
    """Rows of the matrix before padding to whole groups."""

    @property
    def padded_outputs(self) -> int:
        return int(self.data.shape[0]) * LANES


def pack_matrix(matrices: list[Float32], kind: DenseKind) -> PackedMatrix:
    """Stack [out_i, in] matrices and interleave them for `multiply`."""
    outputs = sum(len(m) for m in matrices)
    inputs = matrices[0].shape[1]
    groups = -(-outputs // LANES)
    data = aligned_empty((groups, inputs, LANES), DTYPES[kind])
    stacked = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    whole = outputs // LANES
    data[:whole] = stacked[: whole * LANES].reshape(whole, LANES, inputs).transpose(0, 2, 1)
    if whole < groups:
        data[whole] = 0
        data[whole, :, : outputs - whole * LANES] = stacked[whole * LANES :].T
    if kind == "f16" and np.abs(stacked).max() > FLOAT16_MAX:
        raise ValueError("a weight is beyond the range of float16; use dense='f32'")
    return PackedMatrix(data.view(np.int16) if kind == "f16" else data, outputs)


def choose_tile(tokens: int) -> int:
    """Columns per tile for a batch of `tokens` rows. Results do not depend on it, time does."""
    for columns in (1, 2, 4, 8):
        if tokens <= columns:
            return columns
    return 16 if -tokens % 16 < 8 else 8


def pad_tokens(tokens: int) -> int:
    columns = choose_tile(tokens)
    return -(-tokens // columns) * columns


@parallel_kernel
def _multiply(weight: Array, x: Float32, out: Float32, mode: int) -> None:
    tiles, inputs, columns = x.shape
    groups = weight.shape[0]
    weight_step = inputs * LANES * weight.itemsize
    x_step = inputs * columns * 4
    stride = out.shape[1] * 4
    at_w, at_x, at_out = address(weight), address(x), address(out)
    block = max(1, BLOCK_TOKENS // columns)
    for first in range(0, tiles, block):
        last = min(tiles, first + block)
        for group in prange(groups):
            for t in range(first, last):
                tile(
                    weight,
                    columns,
                    at_w + group * weight_step,
                    at_x + t * x_step,
                    at_out + t * columns * stride + group * LANES * 4,
                    inputs,
                    stride,
                    mode,
                )


def multiply(weight: PackedMatrix, x: Float32, out: Float32, add: bool = False) -> None:
    """out[rows, padded outputs] = (or +=) x @ weight.T for packed x [tiles, in, T].

    `out` has a row for every column of x, padding included.
    """
    assert x.shape[1] == weight.data.shape[1], (x.shape, weight.data.shape)
    assert out.shape == (x.shape[0] * x.shape[2], weight.padded_outputs)
    _multiply(weight.data, x, out, ADD if add else OVERWRITE)
