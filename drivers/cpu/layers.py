"""A whole pass over float weights, as one job of the team: see `claims`.

As in `blocklayers`, the last layer makes only keys and values of rows whose logits nobody wants.
There as here a large pass goes in two halves:

    worker 0   layer 0 of the first half   | layer 1 .. | helps with the second half | head
    worker 1   layer 0 of the second half  | layer 1 ..                              | head

What two threads write side by side, and wait for, travels between their cores, and a layer has
nine phases: so where there are enough rows for both, each goes through all layers with its own. A
chunk may have its first tokens in one half and the rest in the other, which then waits in each
layer for the keys of the first.
"""

from typing import NamedTuple

from tokenix.drivers.cpu.attention import attend_item
from tokenix.drivers.cpu.attention import count_items as count_attention
from tokenix.drivers.cpu.best import find_best
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
HEAD_PHASES = ("norm", "head", "best")
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


class Batch(NamedTuple):
    """The token rows of a half."""

    ids: Int32
    positions: Int32
    frames: Int32
    """Frame that each token's K and V go to."""
    wanted: int
    """Rows whose logits are wanted."""
    kept: Int32
    """A row's place among these, or -1: the last layer makes keys and values of all rows, and from
    attention on has the wanted ones, side by side."""
    blocks: Int32
    """[n, 6], see `attention.attend_item`."""
    last_blocks: Int32
    """Likewise, of the rows whose logits are wanted."""
    reads: Int32
    """Frames that attention reads."""
    follows: int
    """Whether it begins in the middle of a chunk: the other half has what it attends to."""
    masses: Float32
    """[mass rows, items of a block, pages] zeros, see `attention.attend_item`."""
    tables: Int32
    cos: Float32
    sin: Float32


class Rows(NamedTuple):
    """Rows of a half, padded to whole tiles: all of them, or those whose logits are wanted. What is
    packed is the input of a matrix, see `dense`."""

    tokens: int
    x: Float32
    """[padded rows, hidden]"""
    packed_x: Array
    packed_mixed: Array
    """Of all query heads."""
    gate_up: Float32
    packed_ffn: Array


class Half(NamedTuple):
    """Rows of a pass, on their way through the layers."""

    every: Rows
    wanted: Rows
    batch: Batch
    qkv: Float32
    """[padded rows, groups * 16]"""
    claims: Int64
    """Of the phases of all layers."""


class Head(NamedTuple):
    """Rows whose logits are wanted, of both halves."""

    tokens: int
    packed_x: Array
    logits: Float32
    """[padded rows, padded vocab]"""
    vocab_tokens: int
    best: Int32
    """[rows], see `best.find_best`."""
    claims: Int64


class Logits(NamedTuple):
    """What a pass gives, valid until the next one."""

    rows: Float32
    """[wanted rows, vocab]"""
    best: Int32
    """[wanted rows], see `best.find_best`."""


class Desks(NamedTuple):
    """What each worker has for itself in attention."""

    scratch: Float32
    """[workers, floats], like places [workers, n] for `attention.attend_item`."""
    places: Int64


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
    half: Half,
    rows: Rows,
    arena: Array,
    pages: PageLayout,
    worker: int,
) -> None:
    """A worker's part of a phase over rows."""
    layer, phase = step // _COUNT, step % _COUNT
    batch, claims = half.batch, half.claims
    items, done = _count_runs(rows.tokens), 0
    item = claim(claims, step, worker, items)
    while item >= 0:
        for row in range(_first_row(rows.tokens, item), _first_row(rows.tokens, item + 1)):
            if phase == 0:
                norm_row(rows.x[row], w.attn_norm[layer], shape.eps, rows.packed_x, row)
                if layer == len(w.attn_norm) - 1 and batch.kept[row] >= 0:
                    copy_row(rows.x[row], half.wanted.x[batch.kept[row]])
            elif phase == 5:
                norm_row(rows.x[row], w.ffn_norm[layer], shape.eps, rows.packed_x, row)
            elif phase == 7:
                swiglu_row(rows.gate_up[row], rows.packed_ffn, row)
            else:
                rotate_append_row(
                    half.qkv,
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
    half: Half,
    rows: Rows,
    blocks: Int32,
    desks: Desks,
    arena: Array,
    pages: PageLayout,
    fetch: Fetch,
    worker: int,
) -> None:
    """A worker's part of attention, or of a matrix."""
    layer, phase = step // _COUNT, step % _COUNT
    batch, qkv, claims = half.batch, half.qkv, half.claims
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
                desks.scratch[worker],
                desks.places[worker],
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
def _run_layers(
    w: LayerWeights,
    shape: Shape,
    half: Half,
    before: Half,
    desks: Desks,
    arena: Array,
    pages: PageLayout,
    worker: int,
) -> None:
    """A worker's part of a half's layers. before: the half whose keys it may need."""
    phases = len(w.attn_norm) * _COUNT
    tiles, tiled = half.every.packed_x.shape[0], half.every.tokens > 1
    for step in range(begin(half.claims), phases):
        layer, phase, last = step // _COUNT, step % _COUNT, step >= phases - _COUNT + _ATTEND
        rows = half.wanted if last else half.every
        if phase == 0 or phase == 2 or phase == 5 or phase == 7:
            _run_rows(step, w, shape, half, rows, arena, pages, worker)
            continue
        fetch = fetch_nothing(half.batch.reads)
        if phase == _ATTEND and half.batch.follows:
            finish(before.claims, step - 1, worker, 0, _count_runs(before.every.tokens))
        elif tiled and phase != _ATTEND:
            fetch = _plan_fetch(phase, layer, w, shape, tiles, half.batch.reads, arena)
        blocks = half.batch.last_blocks if last else half.batch.blocks
        _run_items(step, w, shape, half, rows, blocks, desks, arena, pages, fetch, worker)


@bare
def _run_head(
    w: LayerWeights, eps: float, first: Half, second: Half, head: Head, worker: int
) -> None:
    """Logits of the wanted rows of both halves."""
    begin(head.claims)
    items, done, firsts = _count_runs(head.tokens), 0, first.wanted.tokens
    item = claim(head.claims, 0, worker, items)
    while item >= 0:
        for row in range(_first_row(head.tokens, item), _first_row(head.tokens, item + 1)):
            x = first.wanted.x[row] if row < firsts else second.wanted.x[row - firsts]
            norm_row(x, w.norm, eps, head.packed_x, row)
        done += 1
        item = claim(head.claims, 0, worker, items)
    finish(head.claims, 0, worker, done, items)
    nothing = fetch_nothing(first.batch.reads)
    items, done = count_multiply(len(w.head), head.packed_x), 0
    item = claim(head.claims, 1, worker, items)
    while item >= 0:
        multiply_item(w.tile, w.head, head.packed_x, head.logits, 0, nothing, item)
        done += 1
        item = claim(head.claims, 1, worker, items)
    finish(head.claims, 1, worker, done, items)
    items, done = head.tokens, 0
    item = claim(head.claims, 2, worker, items)
    while item >= 0:
        head.best[item] = find_best(address(head.logits[item]), head.vocab_tokens)
        done += 1
        item = claim(head.claims, 2, worker, items)
    finish(head.claims, 2, worker, done, items)


@bare
def _work(
    w: LayerWeights,
    shape: Shape,
    first: Half,
    second: Half,
    head: Head,
    desks: Desks,
    arena: Array,
    pages: PageLayout,
    worker: int,
) -> None:
    """A worker's part of a pass: of one half, then of the other."""
    halves = 2 if second.every.tokens > 0 else 1
    for turn in range(halves):
        half = second if (worker + turn) % halves == 1 else first
        _run_layers(w, shape, half, first, desks, arena, pages, worker)
    if head.tokens > 0:
        _run_head(w, shape.eps, first, second, head, worker)


_job = outline(_work)


@bare
def run_layers(
    team: Int64,
    w: LayerWeights,
    shape: Shape,
    first: Half,
    second: Half,
    head: Head,
    desks: Desks,
    arena: Array,
    pages: PageLayout,
) -> None:
    """x of all rows of both halves through all layers; K and V of every row into the arena, logits
    of the wanted rows. The second half may have no rows."""
    share(team, _job((w, shape, first, second, head, desks, arena, pages)))
