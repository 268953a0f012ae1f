"""Dense layers of float weights: y = x @ w.T, in the packed forms that `floattile` describes.

packed weight   [out / 16][in / 16][16][16]     groups of 16 output rows, read from end to end
packed input    [tiles][in / 16][T][16]         token rows in tiles of T, padded with zeros

f32    as a reference, that no machine serves
f16    11 bits of mantissa lose eight times less than bfloat16; token rows stay float32
bf16   what most files hold; token rows are rounded to it as well, sums are float32
"""

from typing import Any, Literal

import numpy as np

from tokenix.drivers.cpu.fetch import Fetch, count_fetched, find_part
from tokenix.drivers.cpu.floattile import LINE, SMALLEST, float_tile
from tokenix.drivers.cpu.jit import Array, Float32, Int32, bare, has_bf16, has_vnni, host_context
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.pieces import Piece
from tokenix.drivers.weightkind import WeightKind
from tokenix.models.ggml_types import dequantize
from tokenix.models.weights import Weights

FloatKind = Literal["bf16", "f16", "f32"]
DenseKind = Literal["native", "bf16", "f16", "f32"]
"""native: in the blocks of the file, see `blocks`; not of this module."""
STORED: dict[FloatKind, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "f16": np.dtype(np.int16),
    "f32": np.dtype(np.float32),
}

FLOAT16_MAX = 65504.0

WEIGHTS: dict[WeightKind, DenseKind] = {"native": "native", "bf16": "bf16", "exact": "f16"}


def choose_weights(kind: WeightKind, weights: Weights) -> WeightKind:
    """native, bf16 or exact: what auto means for a model on this machine.

    Weights that a file has in few bits stay so where that is fast; those that it has in 16 bits are
    not rounded: bfloat16 is computed with where that is fast, else kept as float16, which has more
    bits and a smaller range.
    """
    if kind != "auto":
        return kind
    matrices = (name for name in weights.names() if not name.endswith(("norm", "bias")))
    kinds = {weights.kind(name) for name in matrices}
    if not kinds <= {"F32", "F16", "BF16"}:
        return "native" if has_vnni(host_context()) else "exact"
    return "bf16" if kinds == {"BF16"} and has_bf16(host_context()) else "exact"


BLOCK_TOKENS = 128
"""Token rows that share one pass over the weights: their packed input fits the L2 cache."""

RUN_GROUPS = 4
"""Groups of 16 outputs in one work item."""


def read_piece(piece: Piece, kind: FloatKind) -> Array:
    """Its rows [rows, in] in the dtype that is stored. ValueError beyond the range of float16."""
    if piece.kind == kind.upper():
        rows = piece.raw.view(STORED[kind])
    else:
        wide = dequantize(piece.raw, piece.kind)
        rows = wide
        if kind == "f16":
            if np.abs(wide).max() > FLOAT16_MAX:
                raise ValueError(
                    f"{piece.name} is beyond the range of float16; boot with weights='bf16'"
                )
            rows = wide.astype(np.float16).view(np.int16)
        elif kind == "bf16":
            bits = wide.view(np.uint32)
            rows = (bits + (bits >> 16 & 1) + 0x7FFF >> 16).astype(np.uint16)
    if kind == "bf16":
        least = np.float32(SMALLEST).view(np.uint32) >> 16
        rows = np.where(rows & 0x7FFF < least, np.uint16(0), rows)
    return rows


def pack_rows(rows: Array, into: Array) -> None:
    """Interleave rows [n, in], as `read_piece` gives them, into the groups [groups, blocks, 16, 16]
    that they fill; what the last one lacks is zero."""
    groups, blocks = into.shape[:2]
    if len(rows) < groups * LANES:
        rest = np.zeros((groups * LANES - len(rows), rows.shape[1]), rows.dtype)
        rows = np.concatenate([rows, rest])
    if into.dtype == STORED["bf16"]:
        pairs = rows.reshape(groups, LANES, blocks, LANES // 2, 2)
        into.reshape(groups, blocks, LANES // 2, LANES, 2)[:] = pairs.transpose(0, 2, 3, 1, 4)
    else:
        into[:] = rows.reshape(groups, LANES, blocks, LANES).transpose(0, 2, 3, 1)


def packed_shape(outputs: int, inputs: int) -> tuple[int, int, int, int]:
    """Of a packed weight."""
    return -(-outputs // LANES), inputs // LANES, LANES, LANES


def read_rows(packed: Array, rows: Int32) -> Float32:
    """Rows of a packed weight, float32 [rows, in]."""
    groups, blocks = packed.shape[:2]
    group, lane = rows // LANES, rows % LANES
    if packed.dtype == STORED["bf16"]:
        pairs = packed.reshape(groups, blocks, LANES // 2, LANES, 2)[group, :, :, lane]
        wide = pairs.reshape(len(rows), -1).astype(np.uint32) << 16
        return wide.view(np.float32)
    numbers = packed[group, :, :, lane].reshape(len(rows), -1)
    if packed.dtype == STORED["f16"]:
        numbers = numbers.view(np.float16).astype(np.float32)
    return numbers


@bare
def count_items(groups: int, x: Array) -> int:
    """Work items of a multiplication: runs of row groups x blocks of token tiles."""
    block = max(1, BLOCK_TOKENS // x.shape[2])
    runs = (groups + RUN_GROUPS - 1) // RUN_GROUPS
    return int(runs * ((x.shape[0] + block - 1) // block))


@bare
def multiply_item(
    function: int, weight: Array, x: Array, out: Float32, adding: int, fetch: Fetch, item: int
) -> None:
    """One item of out [rows, outputs] = (adding: +=) x @ weight.T.

    function: `floattile.tile_function` of the weight; weight and x packed; out has a row for every
    row of x. With several token rows, what the next group needs is fetched meanwhile; and the
    matrix's share of `fetch`.
    """
    tiles, blocks, columns = x.shape[0], x.shape[1], x.shape[2]
    groups = weight.shape[0]
    runs = (groups + RUN_GROUPS - 1) // RUN_GROUPS
    block = max(1, BLOCK_TOKENS // columns)
    first_tile, first_group = item // runs * block, item % runs * RUN_GROUPS
    last_tile = min(tiles, first_tile + block)
    block_bytes = LANES * LANES * weight.itemsize
    x_step, stride = blocks * columns * LANES * x.itemsize, out.shape[1] * 4
    lines = (block_bytes // LINE + last_tile - first_tile - 1) // (last_tile - first_tile)
    if columns == 1:  # the processor sees one stream
        lines = 0
    some = count_fetched(fetch, blocks)
    for group in range(first_group, min(groups, first_group + RUN_GROUPS)):
        at_w = address(weight) + group * blocks * block_bytes
        ahead = at_w + blocks * block_bytes
        for t in range(first_tile, last_tile):
            at_out = address(out) + t * columns * stride + group * LANES * 4
            at_x = address(x) + t * x_step
            more = find_part(fetch, group * tiles + t) if some > 0 else 0
            float_tile(
                function,
                columns,
                at_w,
                at_x,
                at_out,
                blocks,
                stride,
                adding,
                ahead,
                lines,
                more,
                some if more != 0 else 0,
            )
            ahead += lines * blocks * LINE
