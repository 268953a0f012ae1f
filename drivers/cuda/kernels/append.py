"""What becomes of a row's q, k and v: bias, norm and rotation, then q aside, K and V to their page.

    qkv of a row   [ q 0 | q 1 | ... | k 0 | ... | v 0 | ... ]      a warp for each vector
                      |                |             |
                      bias, norm, rotation         bias
                      |                |             |
                      q               page          page

A lane holds pairs of numbers; the rotation also needs the number half a head away, so a vector
passes through shared memory once.
"""

import math
from dataclasses import dataclass
from typing import Any

from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.kernels.words import (
    LOAD_PAIR,
    PER_WORD,
    STORE_PAIR,
    Kind,
    cuda,
    device,
    float32,
    quotient,
)

WARPS = 4
THREADS = 32 * WARPS
ALL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Vector:
    """What the vectors of a model are: the variant of a kernel."""

    x: Kind
    kv: Kind
    dim: int
    bias: bool
    norm: bool


def _make_load(vector: Vector) -> Any:
    dim, bias_added, load_pair = vector.dim, vector.bias, LOAD_PAIR[vector.x]

    @device
    def load(qkv: Any, bias: Any, item: Any, which: Any, cells: Any, warp: Any) -> Any:
        """A vector with its bias into shared memory; the sum of this lane's squares."""
        squares = float32(0.0)
        for pair in range(cuda.threadIdx.x % 32, dim // 2, 32):
            low, high = load_pair(qkv, item * (dim // 2) + pair)
            if bias_added:
                low += bias[which * dim + 2 * pair]
                high += bias[which * dim + 2 * pair + 1]
            cells[warp, 2 * pair] = low
            cells[warp, 2 * pair + 1] = high
            squares += low * low
            squares += high * high
        return squares

    return load


@device
def _sum_warp(x: Any) -> Any:
    step = 16
    while step > 0:
        x += cuda.shfl_xor_sync(ALL, x, step)
        step //= 2
    return x


@device
def _scaled(cells: Any, warp: Any, d: Any, weight: Any, normed: Any, scale: Any) -> Any:
    """Number d of the vector, normed if it is to be."""
    return cells[warp, d] * scale * weight[d] if normed else cells[warp, d]


@device
def _rotated(
    cells: Any, warp: Any, d: Any, half: Any, weight: Any, normed: Any, scale: Any, cos: Any,
    sin: Any, angles: Any,
) -> Any:  # fmt: skip
    """Number d of the vector, rotated with the one half the rotated dims away."""
    mine = _scaled(cells, warp, d, weight, normed, scale)
    if d < half:
        other = _scaled(cells, warp, d + half, weight, normed, scale)
        mine = mine * cos[angles + d] - other * sin[angles + d]
    elif d < 2 * half:
        other = _scaled(cells, warp, d - half, weight, normed, scale)
        mine = mine * cos[angles + d - half] + other * sin[angles + d - half]
    return mine


def make_append(vector: Vector) -> Any:
    """The kernel `abi.APPEND`."""
    load, store_pair, dim, norm = _make_load(vector), STORE_PAIR[vector.kv], vector.dim, vector.norm
    token_words = dim // PER_WORD[vector.kv]
    page_words = PAGE_TOKENS * token_words
    halved = 2 // PER_WORD[vector.kv] - 1  # a pair is one word or two

    def append(
        qkv: Any, bias: Any, q_norm: Any, k_norm: Any, cos: Any, sin: Any, positions: Any,
        slots: Any, tables: Any, q: Any, arena: Any, layer_at: Any, frame_words: Any, rows: Any,
        heads: Any, kv_heads: Any, half: Any, max_pages: Any, eps: Any,
    ) -> None:  # fmt: skip
        cells = cuda.shared.array((WARPS, dim), float32)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        every = heads + 2 * kv_heads
        item = cuda.blockIdx.x * WARPS + warp
        if item >= rows * every:
            return
        row = quotient(item, every)
        which = item - row * every
        position = positions[row]
        if position < 0:
            return
        squares = _sum_warp(load(qkv, bias, item, which, cells, warp))
        cuda.syncwarp()
        scale = float32(1.0) / math.sqrt(squares / float32(dim) + eps)
        weight = q_norm if which < heads else k_norm
        rotated = half if which < heads + kv_heads else 0
        normed = norm and which < heads + kv_heads
        frame = tables[slots[row] * max_pages + (position >> 4)]
        word = frame * frame_words + layer_at + (position & 15) * token_words
        at = word + (which - heads) * page_words >> halved
        angles = position * half
        for pair in range(lane, dim // 2, 32):
            d = 2 * pair
            low = _rotated(cells, warp, d, rotated, weight, normed, scale, cos, sin, angles)
            high = _rotated(cells, warp, d + 1, rotated, weight, normed, scale, cos, sin, angles)
            if which < heads:
                q[(row * heads + which) * dim + d] = low
                q[(row * heads + which) * dim + d + 1] = high
            else:
                store_pair(arena, at + pair, low, high)

    return append
