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

Then, of the rows whose logits are wanted, the last norm and the head.
"""

from typing import NamedTuple

from tokenix.drivers.cpu.attention import attend_item
from tokenix.drivers.cpu.attention import count_items as count_attention
from tokenix.drivers.cpu.blockrows import (
    SWIGLU_ROWS,
    Rows8,
    embed_row,
    norm_row,
    quantize_row,
    swiglu_rows,
    tile_places,
)
from tokenix.drivers.cpu.blocks import ALIGNMENT, BLOCK, BYTES
from tokenix.drivers.cpu.blocktile import block_tiles
from tokenix.drivers.cpu.claims import begin, claim, finish
from tokenix.drivers.cpu.fetch import (
    Fetch,
    count_fetched,
    fetch_nothing,
    find_part,
    plan_fetch,
)
from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare
from tokenix.drivers.cpu.kvformat import PageLayout
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import Batch, Shape
from tokenix.drivers.cpu.rows import rotate_append_row
from tokenix.drivers.cpu.team import outline, share
from tokenix.drivers.cpu.tile import address

PHASES = ("norm", "qkv", "rotate", "attend", "quantize", "o", "norm", "swiglu", "down")
"""Of a layer, as in the picture."""
HEAD_PHASES = ("norm", "head")
_COUNT = len(PHASES)

UNIT = 4
"""Groups of gate and up that make one block of the wide codes: 2 of gate, 2 of up."""
RUN_GROUPS = 2
"""Groups of an item."""
HEAD_RUN_GROUPS = 24
BLOCK_TILES = 16
"""Tiles of an item: their codes fit the L2 cache."""


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

    x: Float32
    """[padded rows, hidden]"""
    qkv: Float32
    mixed: Float32
    """[padded rows, whole blocks of heads * head_dim, 1]; zeros behind it."""
    logits: Float32
    """[padded wanted rows, padded vocab + 16]: a group writes a line of each row, and rows that
    are a multiple of 4096 bytes apart would take each other's place in the caches."""
    both: Float32
    """[workers, rows of BLOCK_TILES tiles, UNIT * 16]: gate and up of an item."""
    parts: Int64
    """[workers, BLOCK_TILES]: what each tile of an item fetches, see `fetch.find_part`."""


class Inputs(NamedTuple):
    """What matrices read."""

    narrow: Rows8
    """Of qkv, and of gate and up."""
    attended: Rows8
    """Of o: `mixed`."""
    wide: Rows8
    """Of down."""
    last: Rows8
    """Of the head."""


class Tokens(NamedTuple):
    """What goes into a pass, and whose logits come out."""

    ids: Int32
    wanted: Int32
    """Rows, ascending."""


@bare
def _plan_fetch(
    phase: int, layer: int, w: BlockWeights, shape: Shape, tiles: int, reads: Int32, arena: Array
) -> Fetch:
    """For a matrix with so many tiles of rows: o, gate and up, and down of a layer fetch for the
    next layer, then its qkv for itself."""
    o, gate_up, down = w.o.shape[1], w.gate_up.shape[1], w.down.shape[1]
    first, ahead = o + gate_up + down, layer
    if phase > 1:
        first, ahead = 0 if phase == 5 else o if phase == 7 else o + gate_up, layer + 1
    if ahead == len(w.o):
        return fetch_nothing(reads)
    whole = (o + gate_up + down + w.qkv.shape[1]) * tiles
    start = address(arena) + ahead * shape.layer_bytes
    frame_bytes = arena.shape[1] * arena.itemsize
    return plan_fetch(start, frame_bytes, shape.layer_bytes, reads, first * tiles, whole)


@bare
def _count_lines(entry: int, tiles: int) -> int:
    """Cache lines to ask for with each block of a tile, so that the next group has come when all
    tiles of this one are done. A lone row needs no help: the processor sees one stream."""
    lines = 9 if entry & (ALIGNMENT - 1) == BYTES else 5
    return (lines + tiles - 1) // tiles


@bare
def _count_items(groups: int, run: int, rows: Rows8) -> int:
    """Items of a matrix: runs of groups x blocks of tiles."""
    tiles: int = rows.codes.shape[0]
    return ((groups + run - 1) // run) * ((tiles + BLOCK_TILES - 1) // BLOCK_TILES)


@bare
def _multiply_group(
    w: BlockWeights,
    entries: Int64,
    group: int,
    rows: Rows8,
    first_tile: int,
    last_tile: int,
    at_out: int,
    stride: int,
    adding: int,
    fetch: Fetch,
    parts: Int64,
) -> None:
    """A group of a matrix times some tiles of rows, to `at_out` (adding: +=), rows `stride` bytes
    apart. What the next group needs is fetched meanwhile."""
    entry, start = entries[group], address(w.blob)
    tiles, blocks, columns = rows.codes.shape[0], rows.codes.shape[1], rows.codes.shape[2]
    more = count_fetched(fetch, blocks)
    if more > 0:
        for t in range(first_tile, last_tile):
            parts[t - first_tile] = find_part(fetch, group * tiles + t)
    codes, factors = tile_places(rows, first_tile * columns, 0)
    block_tiles(
        w.tile,
        entry,
        start,
        columns,
        codes,
        factors,
        at_out,
        last_tile - first_tile,
        blocks,
        stride,
        adding,
        start + entries[min(group + 1, len(entries) - 1)],
        _count_lines(entry, last_tile - first_tile) if columns > 1 else 0,
        address(parts),
        more,
    )


@bare
def _multiply_item(
    w: BlockWeights,
    entries: Int64,
    run: int,
    rows: Rows8,
    out: Float32,
    adding: int,
    fetch: Fetch,
    parts: Int64,
    item: int,
) -> None:
    """One item of out [padded rows, outputs] = (adding: +=) rows @ matrix.T."""
    groups, tiles = len(entries), rows.codes.shape[0]
    columns, stride = rows.codes.shape[2], out.shape[1] * 4
    runs = (groups + run - 1) // run
    first_tile, first_group = item // runs * BLOCK_TILES, item % runs * run
    last_tile = min(tiles, first_tile + BLOCK_TILES)
    for group in range(first_group, min(groups, first_group + run)):
        at_out = address(out) + first_tile * columns * stride + group * LANES * 4
        _multiply_group(
            w, entries, group, rows, first_tile, last_tile, at_out, stride, adding, fetch, parts
        )


@bare
def _swiglu_item(
    w: BlockWeights,
    entries: Int64,
    rows: Rows8,
    wide: Rows8,
    both: Float32,
    fetch: Fetch,
    parts: Int64,
    item: int,
) -> None:
    """A block of the wide codes of some tiles: 32 numbers of gate and of up for each row."""
    units, tiles = len(entries) // UNIT, rows.codes.shape[0]
    columns = rows.codes.shape[2]
    unit, first_tile = item % units, item // units * BLOCK_TILES
    last_tile = min(tiles, first_tile + BLOCK_TILES)
    stride = UNIT * LANES * 4
    for part in range(UNIT):
        group = unit * UNIT + part
        at_out = address(both) + part * LANES * 4
        _multiply_group(
            w, entries, group, rows, first_tile, last_tile, at_out, stride, 0, fetch, parts
        )
    at = address(both)
    for t in range(first_tile, last_tile):
        codes, factors = tile_places(wide, t * columns, unit)
        done = 0
        while done < columns:
            some = SWIGLU_ROWS if columns - done >= SWIGLU_ROWS else 1
            swiglu_rows(some, at, stride, codes + done * BLOCK, factors + done * 4, columns * 4)
            at, done = at + some * stride, done + some


@bare
def _run_item(
    phase: int,
    layer: int,
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
    inputs: Inputs,
    batch: Batch,
    tokens: Tokens,
    arena: Array,
    pages: PageLayout,
    fetch: Fetch,
    worker: int,
    item: int,
) -> None:
    parts = act.parts[worker]
    if phase == 0:
        if layer == 0:
            embed_row(w.blob, w.embed, tokens.ids[item], act.x[item])
        norm_row(act.x[item], w.attn_norm[layer], shape.eps, inputs.narrow, item)
    elif phase == 1:
        _multiply_item(w, w.qkv[layer], RUN_GROUPS, inputs.narrow, act.qkv, 0, fetch, parts, item)
    elif phase == 2:
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
            item,
        )
    elif phase == 3:
        attend_item(
            arena,
            layer * shape.layer_bytes,
            pages,
            batch.tables,
            batch.blocks,
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
    elif phase == 4:
        quantize_row(address(act.mixed[item]), inputs.attended, item)
    elif phase == 5:
        _multiply_item(w, w.o[layer], RUN_GROUPS, inputs.attended, act.x, 1, fetch, parts, item)
    elif phase == 6:
        norm_row(act.x[item], w.ffn_norm[layer], shape.eps, inputs.narrow, item)
    elif phase == 7:
        both = act.both[worker]
        _swiglu_item(w, w.gate_up[layer], inputs.narrow, inputs.wide, both, fetch, parts, item)
    else:
        _multiply_item(w, w.down[layer], RUN_GROUPS, inputs.wide, act.x, 1, fetch, parts, item)


@bare
def _count(phase: int, w: BlockWeights, shape: Shape, inputs: Inputs, batch: Batch) -> int:
    """Items of a phase."""
    if phase == 1:
        return _count_items(w.qkv.shape[1], RUN_GROUPS, inputs.narrow)
    if phase == 3:
        return count_attention(batch.blocks, shape.kv_heads, shape.heads // shape.kv_heads)
    if phase == 5:
        return _count_items(w.o.shape[1], RUN_GROUPS, inputs.attended)
    if phase == 7:
        return _count_items(w.gate_up.shape[1], UNIT, inputs.narrow)
    if phase == 8:
        return _count_items(w.down.shape[1], RUN_GROUPS, inputs.wide)
    return len(batch.positions)


@bare
def _run_head(
    w: BlockWeights,
    eps: float,
    act: BlockActivations,
    last: Rows8,
    tokens: Tokens,
    claims: Int64,
    worker: int,
    phase: int,
) -> None:
    """Logits of the wanted rows, from phase `phase` on."""
    items, done = len(tokens.wanted), 0
    item = claim(claims, phase, worker, items)
    while item >= 0:
        norm_row(act.x[tokens.wanted[item]], w.norm, eps, last, item)
        done += 1
        item = claim(claims, phase, worker, items)
    finish(claims, phase, worker, done, items)
    phase += 1
    nothing = fetch_nothing(tokens.wanted)
    items, done = _count_items(len(w.head), HEAD_RUN_GROUPS, last), 0
    item = claim(claims, phase, worker, items)
    while item >= 0:
        _multiply_item(
            w, w.head, HEAD_RUN_GROUPS, last, act.logits, 0, nothing, act.parts[worker], item
        )
        done += 1
        item = claim(claims, phase, worker, items)
    finish(claims, phase, worker, done, items)


@bare
def _work(
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
    inputs: Inputs,
    batch: Batch,
    tokens: Tokens,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
    worker: int,
) -> None:
    """A worker's part of a pass."""
    phases = len(w.attn_norm) * _COUNT
    tiles, tiled = inputs.narrow.codes.shape[0], len(batch.positions) > 1
    begin(claims, worker)
    for step in range(phases):
        layer, phase = step // _COUNT, step % _COUNT
        fetch = fetch_nothing(batch.reads)
        if tiled and (phase == 1 or phase == 5 or phase >= 7):
            fetch = _plan_fetch(phase, layer, w, shape, tiles, batch.reads, arena)
        items, done = _count(phase, w, shape, inputs, batch), 0
        item = claim(claims, step, worker, items)
        while item >= 0:
            _run_item(
                phase,
                layer,
                w,
                shape,
                act,
                inputs,
                batch,
                tokens,
                arena,
                pages,
                fetch,
                worker,
                item,
            )
            done += 1
            item = claim(claims, step, worker, items)
        finish(claims, step, worker, done, items)
    if len(tokens.wanted) > 0:
        _run_head(w, shape.eps, act, inputs.last, tokens, claims, worker, phases)


_job = outline(_work)


@bare
def run_blocks(
    team: Int64,
    w: BlockWeights,
    shape: Shape,
    act: BlockActivations,
    inputs: Inputs,
    batch: Batch,
    tokens: Tokens,
    arena: Array,
    pages: PageLayout,
    claims: Int64,
) -> None:
    """The tokens of a pass through all layers: K and V of every row into the arena, logits of the
    wanted rows. claims: of the phases of all layers and of the head."""
    share(team, _job((w, shape, act, inputs, batch, tokens, arena, pages, claims)))
