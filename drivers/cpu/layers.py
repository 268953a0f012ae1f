"""All layers of a pass over float weights as one job of the team: see `claims`."""

from typing import NamedTuple

from tokenix.drivers.cpu.attention import attend_item
from tokenix.drivers.cpu.attention import count_items as count_attention
from tokenix.drivers.cpu.claims import begin, claim, finish
from tokenix.drivers.cpu.dense import count_items as count_multiply
from tokenix.drivers.cpu.dense import multiply_item
from tokenix.drivers.cpu.floatrows import norm_row, swiglu_row
from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare
from tokenix.drivers.cpu.kvformat import PageLayout
from tokenix.drivers.cpu.rows import rotate_append_row
from tokenix.drivers.cpu.team import outline, share

PHASES = ("norm", "qkv", "rotate", "attend", "o", "norm", "gate_up", "swiglu", "down")
"""Of a layer."""
HEAD_PHASES = ("norm", "head")
_COUNT = len(PHASES)

RUN_ROWS = 16
"""Rows of one item of a large batch: what they write side by side is in no other item's cache
lines. In a small batch every row is an item."""


class LayerWeights(NamedTuple):
    """Weights of all layers, stacked. Packed matrices are as in `dense`."""

    tile: int
    """`floattile.tile_function` of their kind: what multiplies them."""
    attn_norm: Float32
    """[layers, hidden]"""
    qkv: Array
    bias: Float32
    """[layers, (heads + 2 * kv_heads) * head_dim] or [layers, 0]"""
    q_norm: Float32
    """[layers, head_dim] or [layers, 0], like k_norm"""
    k_norm: Float32
    o: Array
    ffn_norm: Float32
    gate_up: Array
    down: Array


class Shape(NamedTuple):
    """What kernels need of the model and the arena."""

    eps: float
    heads: int
    kv_heads: int
    head_dim: int
    layer_bytes: int


class Activations(NamedTuple):
    """Working memory of one pass of `rows` token rows, padded to whole tiles of T. What is packed
    is the input of a matrix, see `dense`."""

    x: Float32
    """[padded rows, hidden]"""
    packed_x: Array
    qkv: Float32
    packed_mixed: Array
    """Of all query heads."""
    gate_up: Float32
    packed_ffn: Array


class Batch(NamedTuple):
    """The token rows of one pass."""

    positions: Int32
    frames: Int32
    """Frame that each token's K and V go to."""
    blocks: Int32
    """[n, 5], see `attention.attend_item`."""
    last_blocks: Int32
    """Likewise, of the rows whose logits are wanted: a net may do no more in its last layer."""
    masses: Float32
    """[mass rows, items of a block, pages] zeros, likewise."""
    tables: Int32
    reads: Int32
    """Frames that attention reads."""
    scratch: Float32
    """[workers, floats], like places [workers, n] for `attention.attend_item`."""
    places: Int64
    cos: Float32
    sin: Float32


@bare
def _count_items(phase: int, w: LayerWeights, shape: Shape, act: Activations, batch: Batch) -> int:
    if phase == 1:
        return count_multiply(w.qkv.shape[1], act.packed_x)
    if phase == 3:
        return count_attention(batch.blocks, shape.kv_heads, shape.heads // shape.kv_heads)
    if phase == 4:
        return count_multiply(w.o.shape[1], act.packed_mixed)
    if phase == 6:
        return count_multiply(w.gate_up.shape[1], act.packed_x)
    if phase == 8:
        return count_multiply(w.down.shape[1], act.packed_ffn)
    return _count_runs(len(batch.positions))


@bare
def _count_runs(rows: int) -> int:
    """Items of a phase over rows."""
    return rows if rows <= RUN_ROWS else (rows + RUN_ROWS - 1) // RUN_ROWS


@bare
def _first_row(rows: int, item: int) -> int:
    """The first row of an item; that of the next one is the end."""
    return item if rows <= RUN_ROWS else min(rows, item * RUN_ROWS)


@bare
def _run_rows(
    phase: int,
    layer: int,
    w: LayerWeights,
    shape: Shape,
    act: Activations,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    row: int,
) -> None:
    if phase == 0:
        norm_row(act.x[row], w.attn_norm[layer], shape.eps, act.packed_x, row)
    elif phase == 5:
        norm_row(act.x[row], w.ffn_norm[layer], shape.eps, act.packed_x, row)
    elif phase == 7:
        swiglu_row(act.gate_up[row], act.packed_ffn, row)
    else:
        rotate_append_row(
            act.qkv,
            w.bias[layer],
            w.q_norm[layer],
            w.k_norm[layer],
            shape.eps,
            batch.cos,
            batch.sin,
            batch.positions,
            batch.frames,
            arena,
            layer * shape.layer_bytes,
            pages,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            row,
        )


@bare
def _run_item(
    phase: int,
    layer: int,
    w: LayerWeights,
    shape: Shape,
    act: Activations,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    worker: int,
    item: int,
) -> None:
    if phase == 1:
        multiply_item(w.tile, w.qkv[layer], act.packed_x, act.qkv, 0, item)
    elif phase == 3:
        attend_item(
            arena,
            layer * shape.layer_bytes,
            pages,
            batch.tables,
            batch.blocks,
            act.qkv,
            act.packed_mixed,
            shape.kv_heads,
            shape.heads // shape.kv_heads,
            shape.head_dim,
            batch.masses,
            batch.scratch[worker],
            batch.places[worker],
            item,
        )
    elif phase == 4:
        multiply_item(w.tile, w.o[layer], act.packed_mixed, act.x, 1, item)
    elif phase == 6:
        multiply_item(w.tile, w.gate_up[layer], act.packed_x, act.gate_up, 0, item)
    elif phase == 8:
        multiply_item(w.tile, w.down[layer], act.packed_ffn, act.x, 1, item)
    else:
        rows = len(batch.positions)
        for row in range(_first_row(rows, item), _first_row(rows, item + 1)):
            _run_rows(phase, layer, w, shape, act, batch, arena, pages, row)


@bare
def _work_layers(
    w: LayerWeights,
    shape: Shape,
    act: Activations,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
    worker: int,
) -> None:
    begin(claims, worker)
    for step in range(len(w.attn_norm) * _COUNT):
        phase = step % _COUNT
        items, done = _count_items(phase, w, shape, act, batch), 0
        item = claim(claims, step, worker, items)
        while item >= 0:
            _run_item(phase, step // _COUNT, w, shape, act, batch, arena, pages, worker, item)
            done += 1
            item = claim(claims, step, worker, items)
        finish(claims, step, worker, done, items)


_layers_job = outline(_work_layers)


@bare
def run_layers(
    team: Int64,
    w: LayerWeights,
    shape: Shape,
    act: Activations,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
) -> None:
    """x through all layers; K and V of every row into the arena. claims: of all their phases."""
    share(team, _layers_job((w, shape, act, batch, arena, pages, claims)))


@bare
def _work_head(
    tile: int,
    norm: Float32,
    head: Array,
    eps: float,
    x: Float32,
    packed: Array,
    logits: Float32,
    claims: Int64,
    worker: int,
) -> None:
    begin(claims, worker)
    for phase in range(2):
        items, done = _count_runs(len(x)), 0
        if phase == 1:
            items = count_multiply(head.shape[0], packed)
        item = claim(claims, phase, worker, items)
        while item >= 0:
            if phase == 0:
                for row in range(_first_row(len(x), item), _first_row(len(x), item + 1)):
                    norm_row(x[row], norm, eps, packed, row)
            else:
                multiply_item(tile, head, packed, logits, 0, item)
            done += 1
            item = claim(claims, phase, worker, items)
        finish(claims, phase, worker, done, items)


_head_job = outline(_work_head)


@bare
def run_head(
    team: Int64,
    tile: int,
    norm: Float32,
    head: Array,
    eps: float,
    x: Float32,
    packed: Array,
    logits: Float32,
    claims: Int64,
) -> None:
    """logits [padded rows, padded vocab] of x [rows, hidden]; claims: of HEAD_PHASES."""
    share(team, _head_job((tile, norm, head, eps, x, packed, logits, claims)))
