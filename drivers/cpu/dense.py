"""Dense layers: y = x @ w.T with packed weights. The place to put faster ones.

    packed weight   [out / 16][in][16]      16 output rows side by side, so that a tile streams them
    packed input    [tiles][in][T]          T token rows side by side, padded with zeros

Weights are kept as float16 by default: 11 bits of mantissa lose eight times less than bfloat16,
and a decode step reads half the bytes of float32. Sums are float32.
"""

from typing import Literal

import numpy as np

from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.jit import Array, Float32, bare, has_vnni, host_context
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.tile import address, tile
from tokenix.drivers.weightkind import WeightKind

FloatKind = Literal["f16", "f32"]
DenseKind = Literal["native", "f16", "f32"]
"""native: in the blocks of the file, see `blocks`; not of this module."""
DTYPES: dict[FloatKind, np.dtype[np.generic]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}

FLOAT16_MAX = 65504.0


WEIGHTS: dict[WeightKind, DenseKind] = {"native": "native", "exact": "f16"}


def choose_weights(kind: WeightKind) -> WeightKind:
    """native or exact: what auto means on this machine."""
    if kind == "auto":
        return "native" if has_vnni(host_context()) else "exact"
    return kind


BLOCK_TOKENS = 128
"""Token rows that share one pass over the weights: their packed input fits the L2 cache."""


RUN_GROUPS = 4
"""Groups of 16 outputs in one work item."""


def pack_matrix(matrices: list[Float32], kind: FloatKind, into: Array) -> None:
    """Stack [out_i, in] matrices and interleave them into a packed weight."""
    groups, inputs, _ = into.shape
    stacked = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    if kind == "f16" and np.abs(stacked).max() > FLOAT16_MAX:
        raise ValueError("a weight is beyond the range of float16; use dense='f32'")
    data = into.view(DTYPES[kind])
    whole = len(stacked) // LANES
    data[:whole] = stacked[: whole * LANES].reshape(whole, LANES, inputs).transpose(0, 2, 1)
    if whole < groups:
        data[whole, :, : len(stacked) - whole * LANES] = stacked[whole * LANES :].T


def empty_packed(count: int, outputs: int, inputs: int, kind: FloatKind) -> Array:
    """Zeros for `count` packed weights, [count, groups, in, 16]."""
    stored = np.dtype(np.int16) if kind == "f16" else np.dtype(np.float32)
    return aligned_empty((count, -(-outputs // LANES), inputs, LANES), stored)


def choose_tile(tokens: int) -> int:
    """Columns per tile for a batch of `tokens` rows. Results do not depend on it, time does."""
    for columns in (1, 2, 4, 8):
        if tokens <= columns:
            return columns
    return 16 if -tokens % 16 < 8 else 8


def pad_tokens(tokens: int) -> int:
    columns = choose_tile(tokens)
    return -(-tokens // columns) * columns


@bare
def count_items(groups: int, tiles: int, columns: int) -> int:
    """Work items of a multiplication: runs of row groups x blocks of token tiles."""
    block = max(1, BLOCK_TOKENS // columns)
    return ((groups + RUN_GROUPS - 1) // RUN_GROUPS) * ((tiles + block - 1) // block)


@bare
def multiply_item(weight: Array, x: Float32, out: Float32, mode: int, item: int) -> None:
    """One item of out [rows, outputs] = (mode ADD: +=) x @ weight.T.

    weight [groups, in, 16]; x packed [tiles, in, T]; out has a row for every column of x.
    """
    tiles, inputs, columns = x.shape
    groups = weight.shape[0]
    runs = (groups + RUN_GROUPS - 1) // RUN_GROUPS
    block = max(1, BLOCK_TOKENS // columns)
    first_tile, first_group = item // runs * block, item % runs * RUN_GROUPS
    weight_step, x_step = inputs * LANES * weight.itemsize, inputs * columns * 4
    stride = out.shape[1] * 4
    at_w, at_x, at_out = address(weight), address(x), address(out)
    for group in range(first_group, min(groups, first_group + RUN_GROUPS)):
        for t in range(first_tile, min(tiles, first_tile + block)):
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
