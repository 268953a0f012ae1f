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

Then the last norm, the head, and which logit is the largest. Of rows whose logits nobody wants, the
last layer makes keys and values only: from attention on it has the wanted rows, side by side.

A large pass goes through its layers in two halves, a thread with each: see `layers`.
"""

from typing import NamedTuple

from tokenix.drivers.cpu.attention import attend_item
from tokenix.drivers.cpu.attention import count_items as count_attention
from tokenix.drivers.cpu.best import find_best
from tokenix.drivers.cpu.blockitems import (
    HEAD_RUN_GROUPS,
    RUN_GROUPS,
    count_items,
    count_swiglu,
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
HEAD_PHASES = ("norm", "head", "best")
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
    """[layers, groups]: half a UNIT of gate, then of up, in turn"""
    down: Int64
    norm: Float32
    embed: Int64
    head: Int64


class Rows(NamedTuple):
    """Rows of a half: all of them, or those whose logits are wanted; padded to whole tiles."""

    tokens: int
    x: Float32
    """[padded rows, hidden]"""
    narrow: Rows8
    """What qkv, gate and up read."""
    attended: Rows8
    """What o reads: `mixed`."""
    wide: Rows8
    """What down reads."""


class Half(NamedTuple):
    """Rows of a pass, on their way through the layers."""

    every: Rows
    wanted: Rows
    batch: Batch
    qkv: Float32
    """[padded rows, groups * 16]"""
    mixed: Float32
    """[padded rows, whole pairs of heads * head_dim / 16, 1, 16]; zeros behind it."""
    claims: Int64
    """Of the phases of all layers."""


class Head(NamedTuple):
    """Rows whose logits are wanted, of both halves."""

    tokens: int
    codes: Rows8
    logits: Float32
    """[padded rows, padded vocab + 16]: a group writes a line of each row, and rows that are a
    multiple of 4096 bytes apart would take each other's place in the caches."""
    vocab_tokens: int
    best: Int32
    """[rows], see `best.find_best`."""
    claims: Int64


class Desks(NamedTuple):
    """What each worker has for itself: [workers, ..]."""

    both: Float32
    """[.., rows of BLOCK_TILES tiles or LONE_UNITS, UNIT * 16]: gate and up of an item."""
    parts: Int64
    """[.., UNIT * BLOCK_TILES]: what each tile of an item fetches, see `fetch.find_part`."""
    scratch: Float32
    """[.., floats], like places [.., n] for `attention.attend_item`."""
    places: Int64


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
def _count_runs(rows: int) -> int:
    """Items of a phase over rows."""
    together = _count_together(rows)
    return (rows + together - 1) // together


@bare
def _run_rows(
    step: int,
    w: BlockWeights,
    shape: Shape,
    half: Half,
    rows: Rows,
    arena: Array,
    pages: PageLayout,
    worker: int,
) -> None:
    """A worker's part of a phase over rows."""
    layer, phase, count = step // _COUNT, step % _COUNT, rows.tokens
    batch, claims = half.batch, half.claims
    together, items, done = _count_together(count), _count_runs(count), 0
    item = claim(claims, step, worker, items)
    while item >= 0:
        first, last = item * together, min(count, item * together + together)
        if phase == 0:
            for row in range(first, last):
                if layer == 0:
                    embed_row(w.blob, w.embed, batch.ids[row], rows.x[row])
                norm_row(rows.x[row], w.attn_norm[layer], shape.eps, rows.narrow, row)
                if layer == len(w.o) - 1 and batch.kept[row] >= 0:
                    copy_row(rows.x[row], half.wanted.x[batch.kept[row]])
        elif phase == 2:
            for row in range(first, last):
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
        elif phase == 4:
            for row in range(first, last):
                quantize_row(address(half.mixed[row]), rows.attended, row)
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
    parts, tile, start = desks.parts[worker], w.tile, address(w.blob)
    batch, qkv, claims = half.batch, half.qkv, half.claims
    items, done = _count(phase, w, shape, rows, blocks), 0
    item = claim(claims, step, worker, items)
    while item >= 0:
        if phase == 1:
            multiply_item(
                tile, start, w.qkv[layer], RUN_GROUPS, rows.narrow, qkv, 0, fetch, parts, item
            )
        elif phase == 3:
            attend_item(
                arena,
                layer * shape.layer_bytes,
                pages,
                batch.tables,
                blocks,
                qkv,
                half.mixed,
                shape.kv_heads,
                shape.heads // shape.kv_heads,
                shape.head_dim,
                batch.masses,
                desks.scratch[worker],
                desks.places[worker],
                item,
            )
        elif phase == 5:
            multiply_item(
                tile, start, w.o[layer], RUN_GROUPS, rows.attended, rows.x, 1, fetch, parts, item
            )
        elif phase == 7:
            both = desks.both[worker]
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
        return count_items(w.gate_up.shape[1], count_swiglu(rows.narrow), rows.narrow)
    return count_items(w.down.shape[1], RUN_GROUPS, rows.wide)


@bare
def _run_layers(
    w: BlockWeights,
    shape: Shape,
    half: Half,
    before: Half,
    desks: Desks,
    arena: Array,
    pages: PageLayout,
    worker: int,
) -> None:
    """A worker's part of a half's layers. before: the half whose keys it may need. The arguments
    of a call are many, and copied: so there is one for each phase, not for each item."""
    phases = len(w.attn_norm) * _COUNT
    tiles, tiled = half.every.narrow.codes.shape[0], half.every.tokens > 1
    for step in range(begin(half.claims), phases):
        layer, phase, last = step // _COUNT, step % _COUNT, step >= phases - _COUNT + _ATTEND
        rows = half.wanted if last else half.every
        if phase == 0 or phase == 2 or phase == 4 or phase == 6:
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
    w: BlockWeights, eps: float, first: Half, second: Half, head: Head, parts: Int64, worker: int
) -> None:
    """Logits of the wanted rows of both halves."""
    begin(head.claims)
    items, done, firsts = head.tokens, 0, first.wanted.tokens
    item = claim(head.claims, 0, worker, items)
    while item >= 0:
        x = first.wanted.x[item] if item < firsts else second.wanted.x[item - firsts]
        norm_row(x, w.norm, eps, head.codes, item)
        done += 1
        item = claim(head.claims, 0, worker, items)
    finish(head.claims, 0, worker, done, items)
    start, nothing, run = address(w.blob), fetch_nothing(first.batch.reads), HEAD_RUN_GROUPS
    items, done = count_items(len(w.head), run, head.codes), 0
    item = claim(head.claims, 1, worker, items)
    while item >= 0:
        multiply_item(w.tile, start, w.head, run, head.codes, head.logits, 0, nothing, parts, item)
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
    w: BlockWeights,
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
        _run_head(w, shape.eps, first, second, head, desks.parts[worker], worker)


_job = outline(_work)


@bare
def run_blocks(
    team: Int64,
    w: BlockWeights,
    shape: Shape,
    first: Half,
    second: Half,
    head: Head,
    desks: Desks,
    arena: Array,
    pages: PageLayout,
) -> None:
    """The tokens of both halves through all layers: K and V of every row into the arena, logits of
    the wanted rows. The second half may have no rows."""
    share(team, _job((w, shape, first, second, head, desks, arena, pages)))
