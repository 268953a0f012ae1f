"""Pages of keys and values that attention reads next, asked for while matrices are multiplied.

    matrix     tile | tile | tile | tile | tile ..      arithmetic; memory has little to do
    fetched    part of a page .. | part | ..            from memory to the caches
    attention                                            reads them there

Multiplying a batch leaves memory idle, and attention would wait for it. All matrices from one
attention to the next share the work: each tile of them asks for a part of a page or for nothing.
"""

from typing import NamedTuple

from tokenix.drivers.cpu.jit import Int32, bare

MAX_HALVINGS = 2
MAX_LINES = 8
"""Cache lines with each block of a tile: more would keep the multiplication waiting."""
_LINE = 64


class Fetch(NamedTuple):
    """The share of a matrix."""

    start: int
    """Address of the layer's pages in frame 0."""
    frame_bytes: int
    frames: Int32
    """Of which the pages are read."""
    halvings: int
    """Of the pages of a frame: a part of them is asked for during one tile."""
    part_bytes: int
    first: int
    """Which of all tiles until then is the first one of the matrix."""
    rate: float
    """Parts for each tile; 0: nothing is fetched."""


@bare
def fetch_nothing(frames: Int32) -> Fetch:
    return Fetch(0, 0, frames, 0, 0, 0, 0.0)


@bare
def plan_fetch(
    start: int, frame_bytes: int, page_bytes: int, frames: Int32, first: int, tiles: int
) -> Fetch:
    """For a matrix that begins with tile `first` of `tiles`; page_bytes: of a layer in a frame.
    With more frames than tiles only some of them are fetched."""
    halvings = 0
    while halvings < MAX_HALVINGS and len(frames) << (halvings + 1) <= tiles:
        halvings += 1
    rate = (len(frames) << halvings) / tiles
    return Fetch(start, frame_bytes, frames, halvings, page_bytes >> halvings, first, rate)


@bare
def plan_matrix(
    which: int,
    groups: tuple[int, int, int, int],
    tiles: int,
    layer: int,
    layers: int,
    arena: int,
    frame_bytes: int,
    layer_bytes: int,
    frames: Int32,
) -> Fetch:
    """For a matrix with so many tiles of rows: o, gate and up, and down (0 to 2) of a layer fetch
    for the next layer, then its qkv (3) for itself. groups: of these; arena: address of frame 0."""
    ahead = layer if which == 3 else layer + 1
    if ahead == layers:
        return fetch_nothing(frames)
    first, whole = 0, 0
    for i in range(4):
        if i < which:
            first += groups[i]
        whole += groups[i]
    start = arena + ahead * layer_bytes
    return plan_fetch(start, frame_bytes, layer_bytes, frames, first * tiles, whole * tiles)


@bare
def count_fetched(fetch: Fetch, blocks: int) -> int:
    """Cache lines that a tile asks for with each of its blocks."""
    if fetch.rate == 0.0:
        return 0
    return min(MAX_LINES, (fetch.part_bytes // _LINE + blocks - 1) // blocks)


@bare
def find_part(fetch: Fetch, tile: int) -> int:
    """The address of what is asked for during a tile of the matrix; 0 for nothing."""
    tile += fetch.first
    part = int(tile * fetch.rate)
    if part == int((tile - 1) * fetch.rate) and tile > 0:
        return 0
    frame = int(fetch.frames[part >> fetch.halvings])
    inside = part & ((1 << fetch.halvings) - 1)
    return fetch.start + frame * fetch.frame_bytes + inside * fetch.part_bytes
