"""Paged attention: a block of queries of one row against that row's keys and values.

    scores[slot][key]      slots are (query, head of the kv head's group) pairs, at most 16
    softmax per slot       over keys 0..position
    out[slot][dim]         sum over keys in order

Keys are taken in the order of positions, one chain per result, so a query's result depends on its
own position and keys only: decode, any prefill chunk and recompute give the same bits. The mask
never lets a key behind the query take part, whatever junk its page holds.

Attention mass is read off the weights between softmax and values, for blocks that ask for it. It
changes no weight.
"""

import numpy as np

from tokenix.drivers.cpu.floatrows import find_row, put_quotient, step_of
from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64, bare
from tokenix.drivers.cpu.keytile import AHEAD, MAX_SLOTS
from tokenix.drivers.cpu.kvformat import PageLayout
from tokenix.drivers.cpu.kvpages import find_places, score_keys, sum_values
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.numbers import address, ask_for, widen
from tokenix.drivers.cpu.softmax import softmax


@bare
def _pack_queries(
    q: Float32, token: int, queries: int, head: int, group: int, dim: int, packed: Float32
) -> None:
    """Slots (query, head) of q [tokens, heads * dim] into packed [dim / 16, slots, 16]. The heads
    behind them are those of the next item, as a rule, and asked for."""
    parts, slots = packed.shape[0], packed.shape[1]
    to, row = address(packed), LANES * 4
    for i in range(queries):
        at = address(q) + ((token + i) * q.shape[1] + head * dim) * 4
        for g in range(group):
            for part in range(parts):
                ask_for(at + ((g + group) * parts + part) * row)
                widen(q, at + (g * parts + part) * row, to + (part * slots + i * group + g) * row)


@bare
def _add_mass(
    weights: Float32, normal: Float32, first: int, keys: int, page_tokens: int, mass: Float32
) -> None:
    """mass [at least the pages of `keys`] += softmax weights of the slots from `first` on, summed
    by page. weights [blocks, slots, 16 keys] and normal [slots], their sums."""
    for slot in range(first, len(normal)):
        for start in range(0, keys, page_tokens):
            total = np.float32(0.0)
            for key in range(start, min(keys, start + page_tokens)):
                total += weights[key // LANES, slot, key % LANES]
            mass[start // page_tokens] += total / normal[slot]


@bare
def _carve(scratch: Float32, rows: int, width: int) -> tuple[Float32, Float32]:
    """An array [rows, width, 16] in the first part of some memory, and the rest of it."""
    floats = rows * width * LANES
    return scratch[:floats].reshape(rows, width, LANES), scratch[floats:]


@bare
def _write(sums: Float32, normal: Float32, group: int, token: int, head: int, out: Array) -> None:
    """sums [slots, parts, 16] over normal [slots] into packed out, from a head on."""
    parts, step = sums.shape[1], step_of(out)
    for slot in range(len(normal)):
        to = find_row(out, token + slot // group, (head + slot % group) * parts)
        for part in range(parts):
            at = address(sums) + (slot * parts + part) * LANES * 4
            put_quotient(out, at, normal[slot], to + part * step)


def count_scratch(dim: int, keys: int) -> int:
    """float32 that an item of attention to so many keys works with, at most."""
    padded = -(-keys // LANES) * LANES
    return MAX_SLOTS * (2 * dim + padded + 1 + max(dim // LANES, padded))


def count_places(keys: int) -> int:
    """int64 of an item, likewise."""
    return 2 * -(-keys // LANES) + AHEAD


@bare
def _attend_block(
    places: Int64,
    pages: PageLayout,
    q: Float32,
    out: Array,
    block: Int32,
    head: int,
    group: int,
    dim: int,
    masses: Float32,
    rest: int,
    scratch: Float32,
) -> None:
    """Attention of one query block for `group` query heads from `head` on. What its last query
    looks at goes to masses[block[4], rest], if it asks."""
    token, position, queries = block[1], block[2], block[3]
    slots = queries * group
    keys = position + queries
    key_blocks = (keys + LANES - 1) // LANES
    packed, left = _carve(scratch, dim // LANES, slots)
    sums, left = _carve(left, slots, dim // LANES)
    scores, left = _carve(left, key_blocks, slots)
    normal, spare = left[:slots], left[slots:]
    _pack_queries(q, token, queries, head, group, dim, packed)
    score_keys(places, pages, packed, scores, spare)
    softmax(address(scores), slots, group, position, key_blocks, address(normal))
    if block[4] >= 0:
        _add_mass(scores, normal, slots - group, keys, pages.page_tokens, masses[block[4], rest])
    sum_values(places, pages, keys, scores, sums, spare)
    _write(sums, normal, group, block[5], head, out)


@bare
def count_parts(kv_heads: int, group: int) -> int:
    """Work items of a query block: kv heads x parts of a head group."""
    return kv_heads * ((group + MAX_SLOTS - 1) // MAX_SLOTS)


@bare
def count_items(blocks: Int32, kv_heads: int, group: int) -> int:
    """Work items of a layer's attention."""
    return len(blocks) * count_parts(kv_heads, group)


@bare
def _find_reads(
    arena: Array,
    layer_base: int,
    pages: PageLayout,
    tables: Int32,
    blocks: Int32,
    kv_heads: int,
    parts: int,
    item: int,
    places: Int64,
) -> Int64:
    """`places` of an item for `kvpages.score_keys`: what is read next are keys of the next item."""
    block, head = item // (kv_heads * parts), item // parts % kv_heads
    count = (blocks[block, 2] + blocks[block, 3] + LANES - 1) // LANES
    table, base = tables[blocks[block, 0]], layer_base + head * pages.head_bytes
    find_places(arena, base, table, pages, count, places, 0)
    for i in range(count):
        places[count + i] = places[i] + kv_heads * pages.head_bytes
    block, head = (item + 1) // (kv_heads * parts), (item + 1) // parts % kv_heads
    if block == len(blocks):
        places[2 * count : 2 * count + AHEAD] = places[2 * count - 1]
        return places
    table, base = tables[blocks[block, 0]], layer_base + head * pages.head_bytes
    found = min(AHEAD, (blocks[block, 2] + blocks[block, 3] + LANES - 1) // LANES)
    find_places(arena, base, table, pages, found, places, 2 * count)
    places[2 * count + found : 2 * count + AHEAD] = places[2 * count + found - 1]
    return places


@bare
def attend_item(
    arena: Array,
    layer_base: int,
    pages: PageLayout,
    tables: Int32,
    blocks: Int32,
    q: Float32,
    out: Array,
    kv_heads: int,
    group: int,
    dim: int,
    masses: Float32,
    scratch: Float32,
    places: Int64,
    item: int,
) -> None:
    """One item of the attention of a layer.

    arena [frames, elements]; layer_base: byte offset of the layer in a frame; tables
    [rows, pages] frame numbers; blocks [n, 6] = (table row, first token row, its position,
    queries, mass row or -1, its first row of out); q [tokens, at least heads * dim] float32, scaled
    and rotated; out: rows of `floatrows`; masses [mass rows, items of a block, pages] grows by the
    softmax weights of each asking block's last query, summed by page: items write rows of their
    own. scratch, places: working memory of `count_scratch` and `count_places` of the most keys.
    """
    parts = (group + MAX_SLOTS - 1) // MAX_SLOTS
    block, rest = item // (kv_heads * parts), item % (kv_heads * parts)
    kv_head, part = rest // parts, rest % parts
    _attend_block(
        _find_reads(arena, layer_base, pages, tables, blocks, kv_heads, parts, item, places),
        pages,
        q,
        out,
        blocks[block],
        kv_head * group + part * MAX_SLOTS,
        min(MAX_SLOTS, group - part * MAX_SLOTS),
        dim,
        masses,
        rest,
        scratch,
    )
