"""Items of a matrix in blocks: what a worker multiplies at a time, and asks for meanwhile.

tiles of rows     0 .. 15          16 .. 31
groups 0, 1     | item 0         | item n           a group's weights stay in the first cache
groups 2, 3     | item 1         | item n + 1       for all tiles of an item, and the codes of
..                                                  these tiles in the second one for all items
"""

from tokenix.drivers.cpu.blockrows import SWIGLU_ROWS, Rows8, swiglu_rows, tile_places
from tokenix.drivers.cpu.blocks import ALIGNMENT, FACTORS, FORMS, PAIR, PAIR_BYTES
from tokenix.drivers.cpu.blocktile import block_tiles
from tokenix.drivers.cpu.fetch import Fetch, count_fetched, find_part
from tokenix.drivers.cpu.jit import Float32, Int64, bare
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.numbers import address

UNIT = 2 * PAIR // LANES
"""Groups of gate and up that make a pair of blocks of the wide codes: 4 of gate, 4 of up."""
LONE_UNITS = 4
"""Units of an item for a lone row: while memory is read as fast as it comes, what else SwiGLU needs
comes late."""
RUN_GROUPS = 2
"""Groups of an item."""
HEAD_RUN_GROUPS = 24
BLOCK_TILES = 16
"""Tiles of an item: their codes fit the L2 cache."""
_LINES = tuple(-(-PAIR_BYTES[form] // 128) for form in FORMS)
"""Cache lines of a block, by format."""


@bare
def _count_lines(entry: int, tiles: int) -> int:
    """Cache lines to ask for with each block of a tile, so that the next group has come when all
    tiles of this one are done. A lone row needs no help: the processor sees one stream."""
    return (_LINES[entry & (ALIGNMENT - 1)] + tiles - 1) // tiles


@bare
def count_items(groups: int, run: int, rows: Rows8) -> int:
    """Items of a matrix: runs of groups x blocks of tiles."""
    tiles: int = rows.codes.shape[0]
    return ((groups + run - 1) // run) * ((tiles + BLOCK_TILES - 1) // BLOCK_TILES)


@bare
def count_swiglu(rows: Rows8) -> int:
    """Groups of an item of gate and up."""
    return LONE_UNITS * UNIT if rows.codes.shape[2] == 1 else UNIT


@bare
def _count_alike(entries: Int64, first: int, last: int) -> int:
    """Groups of the first one's format, from it on; they lie one behind the other."""
    form, group = entries[first] & (ALIGNMENT - 1), first + 1
    while group < last and entries[group] & (ALIGNMENT - 1) == form:
        group += 1
    return group - first


@bare
def _multiply_groups(
    tile: int,
    start: int,
    entries: Int64,
    group: int,
    last_group: int,
    rows: Rows8,
    first_tile: int,
    last_tile: int,
    at_out: int,
    stride: int,
    adding: int,
    fetch: Fetch,
    parts: Int64,
) -> None:
    """Groups of a matrix times some tiles of rows, to `at_out` (adding: +=), rows `stride` bytes
    apart. What the next group needs is fetched meanwhile."""
    tiles, pairs, columns = rows.codes.shape[0], rows.codes.shape[1], rows.codes.shape[2]
    more = count_fetched(fetch, 2 * pairs)
    codes, factors = tile_places(rows, first_tile * columns, 0)
    while group < last_group:
        alike, at = _count_alike(entries, group, last_group), 0
        for each in range(group, group + alike if more > 0 else group):
            for t in range(first_tile, last_tile):
                parts[at] = find_part(fetch, each * tiles + t)
                at += 1
        block_tiles(
            tile,
            entries[group],
            start,
            columns,
            codes,
            factors,
            at_out,
            alike,
            last_tile - first_tile,
            pairs,
            stride,
            adding,
            _count_lines(entries[group], last_tile - first_tile) if columns > 1 else 0,
            address(parts),
            more,
        )
        group, at_out = group + alike, at_out + alike * LANES * 4


@bare
def multiply_item(
    tile: int,
    start: int,
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
    _multiply_groups(
        tile,
        start,
        entries,
        first_group,
        min(groups, first_group + run),
        rows,
        first_tile,
        last_tile,
        address(out) + first_tile * columns * stride + first_group * LANES * 4,
        stride,
        adding,
        fetch,
        parts,
    )


@bare
def swiglu_item(
    tile: int,
    start: int,
    entries: Int64,
    rows: Rows8,
    wide: Rows8,
    both: Float32,
    fetch: Fetch,
    parts: Int64,
    item: int,
) -> None:
    """A pair of the wide codes of some tiles: 64 numbers of gate and of up for each row."""
    tiles, columns, run = rows.codes.shape[0], rows.codes.shape[2], count_swiglu(rows)
    runs = (len(entries) + run - 1) // run
    first_tile, first_group = item // runs * BLOCK_TILES, item % runs * run
    last_tile, last_group = (
        min(tiles, first_tile + BLOCK_TILES),
        min(len(entries), first_group + run),
    )
    stride = UNIT * LANES * 4
    for group in range(first_group, last_group, UNIT):
        _multiply_groups(
            tile,
            start,
            entries,
            group,
            group + UNIT,
            rows,
            first_tile,
            last_tile,
            address(both) + (group - first_group) // UNIT * stride,
            stride,
            0,
            fetch,
            parts,
        )
    at = address(both)
    for group in range(first_group, last_group, UNIT):
        for t in range(first_tile, last_tile):
            codes, factors = tile_places(wide, t * columns, group // UNIT)
            done = 0
            while done < columns:
                some = SWIGLU_ROWS if columns - done >= SWIGLU_ROWS else 1
                swiglu_rows(some, at, stride, codes + done * PAIR, factors + done * FACTORS * 4)
                at, done = at + some * stride, done + some
