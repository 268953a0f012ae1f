"""A whole pass over weights in blocks, as one job of the team: see `claims`.

    0 norm      x -> codes                  (of the first layer: the embedding as well)
    1 qkv       codes -> qkv
    2 rotate    qkv -> queries; keys and values to their pages
    3 attend    queries, pages -> mixed
    4 quantize  mixed -> codes
    5 o         codes -> added to x
    6 norm      x -> codes
    7 swiglu    codes -> gate and up, silu(gate) * up -> wide codes
    8 down      wide codes -> added to x

Then the last norm and the head. Of rows whose logits nobody wants, the last layer makes keys and
values only: from attention on it has the wanted rows, side by side.
"""

from typing import NamedTuple

from tokenix.drivers.cpu.attention import attend_item
from tokenix.drivers.cpu.attention import count_items as count_attention
from tokenix.drivers.cpu.blockitems import (
    HEAD_RUN_GROUPS,
    RUN_GROUPS,
    UNIT,
    count_items,
    multiply_item,
    swiglu_item,
)
from tokenix.drivers.cpu.blockrows import Rows8, embed_row, norm_row, quantize_row
from tokenix.drivers.cpu.claims import begin, claim, finish
from tokenix.drivers.cpu.fetch import Fetch, fetch_nothing, plan_matrix
from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare
from tokenix.drivers.cpu.kvformat import PageLayout
from tokenix.drivers.cpu.layers import Batch, Shape
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.rows import copy_row, rotate_append_row
from tokenix.drivers.cpu.team import outline, share

PHASES = ("norm", "qkv", "rotate", "attend", "quantize", "o", "norm", "swiglu", "down")
"""Of a layer, as in the picture."""
HEAD_PHASES = ("norm", "head")
MOST_TOGETHER = 8
"""Rows of an item at most."""
_COUNT, _ATTEND = len(PHASES), PHASES.index("attend")


class BlockWeights(NamedTuple):
    """Weights of all layers. Matrices are entries of `blob`, see `blocks`."""

    tile: int
    """`tile_function()`: what multiplies them."""
    blob: Array
    attn_norm: Float32
    """[layers, hidden]"""
    qkv: Int64
    """[layers, groups]"""
    bias: Float32
    """[layers, (heads + 2 * kv_heads) * head_dim] or [layers, 0]"""
    q_norm: Float32
    """[layers, head_dim] or [layers, 0], like k_norm"""
    k_norm: Float32
    o: Int64
    ffn_norm: Float32
    gate_up: Int64
    """[layers, groups]: 2 of gate, 2 of up, in turn"""
    down: Int64
    norm: Float32
    embed: Int64
    head: Int64


class BlockActivations(NamedTuple):
    """Working memory of a pass of `rows` token rows, padded to whole tiles."""

    qkv: Float32
    """[padded rows, groups * 16]"""
    mixed: Float32
    """[padded rows, whole blocks of heads * head_dim / 16, 1, 16]; zeros behind it."""
    logits: Float32
    """[padded wanted rows, padded vocab + 16]: a group writes a line of each row, and rows that
    are a multiple of 4096 bytes apart would take each other's place in the caches."""
    both: Float32
    """[workers, rows of BLOCK_TILES tiles, UNIT * 16]: gate and up of an item."""
    parts: Int64
    """[workers, UNIT * BLOCK_TILES]: what each tile of an item fetches, see `fetch.find_part`."""


class Rows(NamedTuple):
    """Rows of a pass: all of them, or those whose logits are wanted."""

    tokens: int
    x: Float32
    """[padded rows, hidden]"""
    narrow: Rows8
    """What qkv, gate and up read; and the head."""
    attended: Rows8
    """What o reads: `mixed`."""
    wide: Rows8
    """What down reads."""


@bare
def _plan_fetch(
    phase: int, layer: int, w: BlockWeights, shape: Shape, tiles: int, reads: Int32, arena: Array
) -> Fetch:
    """For the matrix of a phase."""
    groups = w.o.shape[1], w.gate_up.shape[1], w.down.shape[1], w.qkv.shape[1]
    which = 3 if phase == 1 else 0 if phase == 5 else phase - 6
    frame_bytes = arena.shape[1] * arena.itemsize
    start, each = address(arena), shape.layer_bytes
    return plan_matrix(which, groups, tiles, layer, len(w.o), start, frame_bytes, each, reads)


@bare
def _count_together(rows: int) -> int:
    """Rows of an item of a phase over rows: to take an item costs time, and there should be enough
    for all threads."""
    return max(1, min(MOST_TOGETHER, rows // MOST_TOGETHER))


@bare
def _run_rows(
    step: int,
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
    ids: Int32,
    rows: Rows,
    last_x: Float32,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
    worker: int,
) -> None:
    """A worker's part of a phase over rows. last_x: of the wanted rows, from the last layer on."""
    layer, phase, count = step // _COUNT, step % _COUNT, rows.tokens
    together, done = _count_together(count), 0
    items = (count + together - 1) // together
    item = claim(claims, step, worker, items)
    while item >= 0:
        first, last = item * together, min(count, item * together + together)
        if phase == 0:
            for row in range(first, last):
                if layer == 0:
                    embed_row(w.blob, w.embed, ids[row], rows.x[row])
                norm_row(rows.x[row], w.attn_norm[layer], shape.eps, rows.narrow, row)
                if layer == len(w.o) - 1 and batch.kept[row] >= 0:
                    copy_row(rows.x[row], last_x[batch.kept[row]])
        elif phase == 2:
            for row in range(first, last):
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
        elif phase == 4:
            for row in range(first, last):
                quantize_row(address(act.mixed[row]), rows.attended, row)
        else:
            for row in range(first, last):
                norm_row(rows.x[row], w.ffn_norm[layer], shape.eps, rows.narrow, row)
        done += 1
        item = claim(claims, step, worker, items)
    finish(claims, step, worker, done, items)


@bare
def _run_items(
    step: int,
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
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
    parts, tile, start = act.parts[worker], w.tile, address(w.blob)
    items, done = _count(phase, w, shape, rows, blocks), 0
    item = claim(claims, step, worker, items)
    while item >= 0:
        if phase == 1:
            multiply_item(
                tile, start, w.qkv[layer], RUN_GROUPS, rows.narrow, act.qkv, 0, fetch, parts, item
            )
        elif phase == 3:
            attend_item(
                arena,
                layer * shape.layer_bytes,
                pages,
                batch.tables,
                blocks,
                act.qkv,
                act.mixed,
                shape.kv_heads,
                shape.heads // shape.kv_heads,
                shape.head_dim,
                batch.masses,
                batch.scratch[worker],
                batch.places[worker],
                item,
            )
        elif phase == 5:
            multiply_item(
                tile, start, w.o[layer], RUN_GROUPS, rows.attended, rows.x, 1, fetch, parts, item
            )
        elif phase == 7:
            both = act.both[worker]
            swiglu_item(
                tile, start, w.gate_up[layer], rows.narrow, rows.wide, both, fetch, parts, item
            )
        else:
            multiply_item(
                tile, start, w.down[layer], RUN_GROUPS, rows.wide, rows.x, 1, fetch, parts, item
            )
        done += 1
        item = claim(claims, step, worker, items)
    finish(claims, step, worker, done, items)


@bare
def _count(phase: int, w: BlockWeights, shape: Shape, rows: Rows, blocks: Int32) -> int:
    """Items of attention, or of a matrix."""
    if phase == 1:
        return count_items(w.qkv.shape[1], RUN_GROUPS, rows.narrow)
    if phase == 3:
        return count_attention(blocks, shape.kv_heads, shape.heads // shape.kv_heads)
    if phase == 5:
        return count_items(w.o.shape[1], RUN_GROUPS, rows.attended)
    if phase == 7:
        return count_items(w.gate_up.shape[1], UNIT, rows.narrow)
    return count_items(w.down.shape[1], RUN_GROUPS, rows.wide)


@bare
def _run_head(
    w: BlockWeights,
    eps: float,
    act: BlockActivations,
    rows: Rows,
    nothing: Fetch,
    claims: Int64,
    worker: int,
    phase: int,
) -> None:
    """Logits of the wanted rows, from phase `phase` on."""
    items, done = rows.tokens, 0
    item = claim(claims, phase, worker, items)
    while item >= 0:
        norm_row(rows.x[item], w.norm, eps, rows.narrow, item)
        done += 1
        item = claim(claims, phase, worker, items)
    finish(claims, phase, worker, done, items)
    phase += 1
    start, parts = address(w.blob), act.parts[worker]
    items, done = count_items(len(w.head), HEAD_RUN_GROUPS, rows.narrow), 0
    item = claim(claims, phase, worker, items)
    while item >= 0:
        multiply_item(
            w.tile,
            start,
            w.head,
            HEAD_RUN_GROUPS,
            rows.narrow,
            act.logits,
            0,
            nothing,
            parts,
            item,
        )
        done += 1
        item = claim(claims, phase, worker, items)
    finish(claims, phase, worker, done, items)


@bare
def _work(
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
    ids: Int32,
    every: Rows,
    wanted: Rows,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
    worker: int,
) -> None:
    """A worker's part of a pass. The arguments of a call are many, and copied: so there is one for
    each phase, not for each item."""
    phases = len(w.attn_norm) * _COUNT
    tiles, tiled = every.narrow.codes.shape[0], len(ids) > 1
    rows, blocks = every, batch.blocks
    begin(claims, worker)
    for step in range(phases):
        layer, phase = step // _COUNT, step % _COUNT
        if step == phases - _COUNT + _ATTEND:
            rows, blocks = wanted, batch.last_blocks
        if phase == 0 or phase == 2 or phase == 4 or phase == 6:
            _run_rows(step, w, shape, act, ids, rows, wanted.x, batch, arena, pages, claims, worker)
            continue
        fetch = fetch_nothing(batch.reads)
        if tiled and phase != _ATTEND:
            fetch = _plan_fetch(phase, layer, w, shape, tiles, batch.reads, arena)
        _run_items(step, w, shape, act, rows, batch, blocks, arena, pages, fetch, claims, worker)
    if wanted.tokens > 0:
        _run_head(w, shape.eps, act, wanted, fetch_nothing(batch.reads), claims, worker, phases)


_job = outline(_work)


@bare
def run_blocks(
    team: Int64,
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
    ids: Int32,
    every: Rows,
    wanted: Rows,
    batch: Batch,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
) -> None:
    """The tokens of a pass, ids [rows], through all layers: K and V of every row into the arena,
    logits of the wanted rows. claims: of the phases of all layers and of the head."""
    share(team, _job((w, shape, act, ids, every, wanted, batch, arena, pages, claims)))
