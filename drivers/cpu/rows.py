"""Kernels over the token rows of a batch: sums of squares, rotary embedding, KV append.

Each row is computed from itself alone, in one fixed order, so no result depends on the batch.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import Array, Float32, Int32, bare, cgutils, intrinsic
from tokenix.drivers.cpu.kvformat import PageLayout, find_block
from tokenix.drivers.cpu.kvpages import turn_head, write_head
from tokenix.drivers.cpu.lanes import (
    I64,
    LANES,
    VF32,
    add_floats,
    fill,
    fma,
    fold,
    load,
    splat,
    store,
)
from tokenix.drivers.cpu.numbers import address


@intrinsic
def sum_squares(typing: Any, x: Any, vectors: Any) -> Any:
    """Of 16 float32 at a time: 16 partial sums by index, then their halves onto each other."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        total = cgutils.alloca_once(b, VF32)
        b.store(fill(VF32, 0.0), total)
        with cgutils.for_range(b, args[1], intp=I64) as loop:
            here = load(b, VF32, b.add(args[0], b.shl(loop.index, ir.Constant(I64, 6))))
            b.store(fma(b, here, here, b.load(total)), total)
        return fold(b, b.load(total), add_floats)

    return types.float32(types.int64, types.int64), codegen


@bare
def copy_row(x: Float32, to: Float32) -> None:
    for k in range(len(x)):
        to[k] = x[k]


@bare
def root_mean_square(x: Float32, eps: float) -> np.float32:
    """1 / sqrt(mean(x^2) + eps) of whole lanes."""
    total = sum_squares(address(x), len(x) // LANES)
    return np.float32(1.0 / np.sqrt(np.float64(total) / len(x) + eps))


@intrinsic
def rotate_lanes(typing: Any, low: Any, high: Any, cos: Any, sin: Any, scale: Any) -> Any:
    """16 pairs of float32, in place: turned by an angle each, then times scale."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        low, high, cos, sin = (load(b, VF32, at) for at in args[:4])
        scale = splat(b, args[4])
        turned = b.fsub(b.fmul(low, cos), b.fmul(high, sin))
        store(b, b.fmul(turned, scale), args[0])
        turned = b.fadd(b.fmul(high, cos), b.fmul(low, sin))
        store(b, b.fmul(turned, scale), args[1])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32), codegen


@bare
def _rotate(head: Float32, cos: Float32, sin: Float32, scale: np.float32) -> None:
    """Half-split rotary embedding in place (dims past 2 * len(cos) stay), then times scale."""
    half = len(cos)
    whole = half // LANES * LANES
    for first in range(0, whole * 4, LANES * 4):
        low_at = address(head) + first
        rotate_lanes(low_at, low_at + half * 4, address(cos) + first, address(sin) + first, scale)
    for d in range(whole, half):
        low, high = head[d], head[d + half]
        head[d] = np.float32(low * cos[d] - high * sin[d]) * scale
        head[d + half] = np.float32(high * cos[d] + low * sin[d]) * scale
    for d in range(2 * half, len(head)):
        head[d] *= scale


@bare
def _norm_head(head: Float32, weight: Float32, eps: float) -> None:
    scale = root_mean_square(head, eps)
    for d in range(len(head)):
        head[d] = head[d] * scale * weight[d]


@bare
def rotate_append_row(
    qkv: Float32,
    bias: Float32,
    q_norm: Float32,
    k_norm: Float32,
    eps: float,
    cos: Float32,
    sin: Float32,
    positions: Int32,
    frames: Int32,
    arena: Array,
    layer_base: int,
    pages: PageLayout,
    heads: int,
    kv_heads: int,
    dim: int,
    row: int,
) -> None:
    """Finish q of one row in place and write its k and v to their page.

    qkv [at least rows, (heads + 2 * kv_heads) * dim]; bias of the same width or empty; q_norm and
    k_norm [dim] or empty; cos, sin [context, rotated / 2]; positions, frames [rows]; layer_base:
    byte offset of the layer in a frame. q is scaled by 1 / sqrt(dim).
    """
    scale = np.float32(1.0 / np.sqrt(np.float64(dim)))
    position = positions[row]
    for k in range(len(bias)):
        qkv[row, k] += bias[k]
    for h in range(heads + kv_heads):
        head = qkv[row, h * dim : (h + 1) * dim]
        if len(q_norm) > 0:
            _norm_head(head, q_norm if h < heads else k_norm, eps)
        factor = scale if h < heads else np.float32(1.0)
        _rotate(head, cos[position], sin[position], factor)
        turn_head(arena, pages, head, h < heads)
    inside = position % pages.page_tokens
    frame_bytes = arena.shape[1] * arena.itemsize
    at = layer_base + find_block(frame_bytes, frames[row], pages, inside)
    for h in range(kv_heads):
        at_k = at + h * pages.head_bytes
        at_v = at_k + kv_heads * pages.head_bytes
        k_start, v_start = (heads + h) * dim, (heads + kv_heads + h) * dim
        key, value = qkv[row, k_start : k_start + dim], qkv[row, v_start : v_start + dim]
        write_head(arena, pages, at_k, at_v, inside % LANES, key, value)
