"""A whole pass over float weights, as one job of the team: see `claims`.

As in `blocklayers`, the last layer makes only keys and values of rows whose logits nobody wants."""

from typing import NamedTuple

from tokenix.drivers.cpu.attention import attend_item
from tokenix.drivers.cpu.attention import count_items as count_attention
from tokenix.drivers.cpu.claims import begin, claim, finish
from tokenix.drivers.cpu.dense import count_items as count_multiply
from tokenix.drivers.cpu.dense import multiply_item
from tokenix.drivers.cpu.fetch import Fetch, fetch_nothing, plan_matrix
from tokenix.drivers.cpu.floatrows import norm_row, swiglu_row
from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare
from tokenix.drivers.cpu.kvformat import PageLayout
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.rows import copy_row, rotate_append_row
from tokenix.drivers.cpu.team import outline, share

PHASES = ("norm", "qkv", "rotate", "attend", "o", "norm", "gate_up", "swiglu", "down")
"""Of a layer."""
HEAD_PHASES = ("norm", "head")
_COUNT, _ATTEND = len(PHASES), PHASES.index("attend")

RUN_ROWS = 16
"""Rows of one item of a large batch: what they write side by side is in no other item's cache
lines. In a small batch every row is an item."""


class LayerWeights(NamedTuple):
    """Weights of a model, those of layers stacked. Packed matrices are as in `dense`."""

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
    norm: Float32
    embed: Array
    head: Array
    """The same where both are one matrix."""


class Shape(NamedTuple):
    """What kernels need of the model and the arena."""

    eps: float
    heads: int
    kv_heads: int
    head_dim: int
    layer_bytes: int


class Rows(NamedTuple):
    """Rows of a pass, padded to whole tiles: all of them, or those whose logits are wanted. What is
    packed is the input of a matrix, see `dense`."""

    tokens: int
    x: Float32
    """[padded rows, hidden]"""
    packed_x: Array
    packed_mixed: Array
    """Of all query heads."""
    gate_up: Float32
    packed_ffn: Array


class Batch(NamedTuple):
    """The token rows of one pass."""

    positions: Int32
    frames: Int32
    """Frame that each token's K and V go to."""
    kept: Int32
    """Its place among the rows whose logits are wanted, or -1: the last layer makes keys and values
    of all rows, and from attention on has these, side by side."""
    blocks: Int32
    """[n, 6], see `attention.attend_item`."""
    last_blocks: Int32
    """Likewise, of the rows whose logits are wanted."""
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
def _count_items(phase: int, w: LayerWeights, shape: Shape, rows: Rows, blocks: Int32) -> int:
    """Items of attention, or of a matrix."""
    if phase == 1:
        return count_multiply(w.qkv.shape[1], rows.packed_x)
    if phase == 3:
        return count_attention(blocks, shape.kv_heads, shape.heads // shape.kv_heads)
    if phase == 4:
        return count_multiply(w.o.shape[1], rows.packed_mixed)
    if phase == 6:
        return count_multiply(w.gate_up.shape[1], rows.packed_x)
    return count_multiply(w.down.shape[1], rows.packed_ffn)


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
    step: int,
    w: LayerWeights,
    shape: Shape,
    qkv: Float32,
    rows: Rows,
    last_x: Float32,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
    worker: int,
) -> None:
    """A worker's part of a phase over rows. last_x: of the wanted rows, from the last layer on."""
    layer, phase = step // _COUNT, step % _COUNT
    items, done = _count_runs(rows.tokens), 0
    item = claim(claims, step, worker, items)
    while item >= 0:
        for row in range(_first_row(rows.tokens, item), _first_row(rows.tokens, item + 1)):
            if phase == 0:
                norm_row(rows.x[row], w.attn_norm[layer], shape.eps, rows.packed_x, row)
                if layer == len(w.attn_norm) - 1 and batch.kept[row] >= 0:
                    copy_row(rows.x[row], last_x[batch.kept[row]])
            elif phase == 5:
                norm_row(rows.x[row], w.ffn_norm[layer], shape.eps, rows.packed_x, row)
            elif phase == 7:
                swiglu_row(rows.gate_up[row], rows.packed_ffn, row)
            else:
                rotate_append_row(
                    qkv,
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
        done += 1
        item = claim(claims, step, worker, items)
    finish(claims, step, worker, done, items)


@bare
def _run_items(
    step: int,
    w: LayerWeights,
    shape: Shape,
    qkv: Float32,
    rows: Rows,
    batch: Batch,
    blocks: Int32,
    arena: Array,
    pages: PageLayout,
    fetch: Fetch,
    claims: Int64,
    worker: int,
) -> None:
    """A worker's part of attention, or of a matrix."""
    layer, phase = step // _COUNT, step % _COUNT
    items, done = _count_items(phase, w, shape, rows, blocks), 0
    item = claim(claims, step, worker, items)
    while item >= 0:
        if phase == 1:
            multiply_item(w.tile, w.qkv[layer], rows.packed_x, qkv, 0, fetch, item)
        elif phase == 3:
            attend_item(
                arena,
                layer * shape.layer_bytes,
                pages,
                batch.tables,
                blocks,
                qkv,
                rows.packed_mixed,
                shape.kv_heads,
                shape.heads // shape.kv_heads,
                shape.head_dim,
                batch.masses,
                batch.scratch[worker],
                batch.places[worker],
                item,
            )
        elif phase == 4:
            multiply_item(w.tile, w.o[layer], rows.packed_mixed, rows.x, 1, fetch, item)
        elif phase == 6:
            multiply_item(w.tile, w.gate_up[layer], rows.packed_x, rows.gate_up, 0, fetch, item)
        else:
            multiply_item(w.tile, w.down[layer], rows.packed_ffn, rows.x, 1, fetch, item)
        done += 1
        item = claim(claims, step, worker, items)
    finish(claims, step, worker, done, items)


@bare
def _plan_fetch(
    phase: int, layer: int, w: LayerWeights, shape: Shape, tiles: int, reads: Int32, arena: Array
) -> Fetch:
    """For the matrix of a phase."""
    groups = w.o.shape[1], w.gate_up.shape[1], w.down.shape[1], w.qkv.shape[1]
    which = 3 if phase == 1 else (phase - 4) // 2
    frame_bytes = arena.shape[1] * arena.itemsize
    start, each = address(arena), shape.layer_bytes
    return plan_matrix(which, groups, tiles, layer, len(w.o), start, frame_bytes, each, reads)


@bare
def _run_head(
    w: LayerWeights,
    eps: float,
    rows: Rows,
    logits: Float32,
    nothing: Fetch,
    claims: Int64,
    worker: int,
    phase: int,
) -> None:
    """Logits of the wanted rows, from phase `phase` on."""
    items, done = _count_runs(rows.tokens), 0
    item = claim(claims, phase, worker, items)
    while item >= 0:
        for row in range(_first_row(rows.tokens, item), _first_row(rows.tokens, item + 1)):
            norm_row(rows.x[row], w.norm, eps, rows.packed_x, row)
        done += 1
        item = claim(claims, phase, worker, items)
    finish(claims, phase, worker, done, items)
    phase += 1
    items, done = count_multiply(len(w.head), rows.packed_x), 0
    item = claim(claims, phase, worker, items)
    while item >= 0:
        multiply_item(w.tile, w.head, rows.packed_x, logits, 0, nothing, item)
        done += 1
        item = claim(claims, phase, worker, items)
    finish(claims, phase, worker, done, items)


@bare
def _work(
    w: LayerWeights,
    shape: Shape,
    qkv: Float32,
    logits: Float32,
    every: Rows,
    wanted: Rows,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
    worker: int,
) -> None:
    phases = len(w.attn_norm) * _COUNT
    tiles, rows, blocks = every.packed_x.shape[0], every, batch.blocks
    begin(claims, worker)
    for step in range(phases):
        layer, phase = step // _COUNT, step % _COUNT
        if step == phases - _COUNT + _ATTEND:
            rows, blocks = wanted, batch.last_blocks
        if phase == 0 or phase == 2 or phase == 5 or phase == 7:
            _run_rows(step, w, shape, qkv, rows, wanted.x, batch, arena, pages, claims, worker)
            continue
        fetch = fetch_nothing(batch.reads)
        if every.tokens > 1 and phase != _ATTEND:
            fetch = _plan_fetch(phase, layer, w, shape, tiles, batch.reads, arena)
        _run_items(step, w, shape, qkv, rows, batch, blocks, arena, pages, fetch, claims, worker)
    if wanted.tokens > 0:
        nothing = fetch_nothing(batch.reads)
        _run_head(w, shape.eps, wanted, logits, nothing, claims, worker, phases)


_job = outline(_work)


@bare
def run_layers(
    team: Int64,
    w: LayerWeights,
    shape: Shape,
    qkv: Float32,
    logits: Float32,
    every: Rows,
    wanted: Rows,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
) -> None:
    """x of all rows through all layers; K and V of every row into the arena, logits of the wanted
    rows. qkv [padded rows, groups * 16]; logits [padded wanted rows, padded vocab]; claims: of the
    phases of all layers and of the head."""
    share(team, _job((w, shape, qkv, logits, every, wanted, batch, arena, pages, claims)))
