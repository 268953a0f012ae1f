"""What tiles of matrices ask for ahead of attention."""

import numpy as np
import pytest

from tokenix.drivers.cpu.fetch import (
    count_fetched,
    fetch_nothing,
    find_part,
    plan_fetch,
    plan_matrix,
)
from tokenix.drivers.cpu.jit import bare

START, FRAME_BYTES, PAGE_BYTES = 1 << 20, 1 << 16, 12_288
MATRICES = (36, 192, 36, 60)
"""Groups of each, from one attention to the next."""


@bare
def write_down(frames, groups, tiles, found):
    first = 0
    for count in groups:
        fetch = plan_fetch(START, FRAME_BYTES, PAGE_BYTES, frames, first, len(found))
        for tile in range(count * tiles):
            found[first + tile, 0] = find_part(fetch, tile)
            found[first + tile, 1] = count_fetched(fetch, 18)
        first += count * tiles


def collect(frames, groups, tiles):
    """Addresses and lines of each tile of all matrices."""
    found = np.zeros((sum(groups) * tiles, 2), np.int64)
    write_down(frames, groups, tiles, found)
    return found.tolist()


@pytest.mark.parametrize(("frames", "tiles", "parts"), [
    (1, 1, 4), (12, 1, 4), (96, 1, 2), (162, 1, 2), (324, 1, 1), (384, 4, 2), (7, 64, 4),
])  # fmt: skip
def test_every_page_is_asked_for_once(frames, tiles, parts, seed):
    order = np.random.default_rng(seed).permutation(frames).astype(np.int32)
    found = collect(order, MATRICES, tiles)
    asked = [(at, lines) for at, lines in found if at]
    size = PAGE_BYTES // parts
    expected = [START + f * FRAME_BYTES + p * size for f in order.tolist() for p in range(parts)]
    assert [at for at, _ in asked] == expected
    for _, lines in asked:
        assert lines * 18 * 64 >= size or lines == 8


def test_with_more_frames_than_tiles_some_are_left_out():
    frames = np.arange(1000, dtype=np.int32)
    found = [at for at, _ in collect(frames, MATRICES, 1)]
    pages = {START + f * FRAME_BYTES for f in range(1000)}
    assert len(found) == sum(MATRICES) == len(set(found)) and set(found) <= pages


@bare
def write_share(which, layer, layers, frames, found):
    fetch = plan_matrix(which, MATRICES, 2, layer, layers, 0, FRAME_BYTES, PAGE_BYTES, frames)
    found[:] = fetch.start, fetch.first, count_fetched(fetch, 18)


@pytest.mark.parametrize(("which", "layer", "start", "first"), [
    (0, 0, 1, 0), (1, 0, 1, 72), (2, 0, 1, 456), (3, 1, 1, 528), (3, 0, 0, 528),
])  # fmt: skip
def test_matrices_from_one_attention_to_the_next_share_its_pages(which, layer, start, first):
    found = np.zeros(3, np.int64)
    write_share(which, layer, 2, np.arange(20, dtype=np.int32), found)
    assert found.tolist() == [start * PAGE_BYTES, first, 3]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_behind_the_last_attention_nothing_is_fetched(which):
    found = np.ones(3, np.int64)
    write_share(which, 1, 2, np.arange(20, dtype=np.int32), found)
    assert found[2] == 0


@bare
def lines_of_nothing(frames):
    return count_fetched(fetch_nothing(frames), 18)


def test_nothing_is_fetched_without_a_rate():
    assert lines_of_nothing(np.zeros(3, np.int32)) == 0
