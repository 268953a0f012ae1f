"""Block tables by deltas, and the parts of the swap tier, by themselves."""

import numpy as np
import pytest

from tokenix.drivers.cpu.arena import FrameArena, PageShape
from tokenix.drivers.cpu.checksum import checksum, copy_checksum
from tokenix.drivers.cpu.slots import ArenaSlots
from tokenix.drivers.ops import PageIn, TableDelta
from tokenix.drivers.tables import BlockTables
from tokenix.tests.cpu.conftest import TINY

KNOWN_CHECKSUMS = [
    (0, 6249743002471849265),
    (5, 16653572124700711569),
    (8, 12413168006717845549),
    (1000, 14754343533761560857),
]
"""Of `size` multiples of a number."""


def table(tables, pid):
    return tables.pages[tables.row_of(pid), : tables.length(pid)].tolist()


def test_a_delta_keeps_and_appends():
    tables = BlockTables(100)
    for keep, frames, expected in [
        (0, (5, 6), [5, 6]),
        (2, (7,), [5, 6, 7]),
        (1, (9,), [5, 9]),
        (2, (), [5, 9]),
        (0, (), []),
        (0, tuple(range(40)), list(range(40))),
    ]:
        assert tables.apply(TableDelta(1, keep, frames)) is None
        assert table(tables, 1) == expected


def test_rows_grow_and_are_used_again():
    tables = BlockTables(1000)
    for pid in range(1, 41):
        assert tables.apply(TableDelta(pid, 0, (pid, pid + 1))) is None
    rows = len(tables.pages)
    for pid in range(1, 21):
        tables.drop(pid)
        tables.drop(pid)
    for pid in range(41, 61):
        assert tables.apply(TableDelta(pid, 0, (pid,))) is None
    assert len(tables) == 40
    assert len(tables.pages) == rows
    assert [table(tables, pid) for pid in (21, 40, 41, 60)] == [[21, 22], [40, 41], [41], [60]]


@pytest.mark.parametrize(
    "delta", [TableDelta(1, 3, ()), TableDelta(1, -1, ()), TableDelta(1, 1, (100,))]
)
def test_a_bad_delta_drops_the_table(delta):
    tables = BlockTables(100)
    tables.apply(TableDelta(1, 0, (5, 6)))
    assert tables.apply(delta)
    assert tables.length(1) == 0


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_checksum_sees_every_word_and_its_place(size, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 2**63, size).astype(np.uint64)
    target = np.zeros_like(data)
    plain = copy_checksum(data, target)
    assert (target == data).all()
    assert copy_checksum(data, target) == plain == checksum(data)
    for _ in range(30):
        changed = data.copy()
        changed[rng.integers(size)] ^= np.uint64(1) << np.uint64(rng.integers(64))
        assert copy_checksum(changed, target) != plain
    if size > 1:
        assert copy_checksum(data[::-1].copy(), target) != plain
    assert copy_checksum(np.zeros(size, np.uint64), target) != 0


@pytest.mark.parametrize(("size", "known"), KNOWN_CHECKSUMS)
def test_checksums_stay_those_of_images_on_disk(size, known):
    data = np.arange(size, dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)
    room = np.zeros(size + 16, np.uint64)
    for shift in range(8):  # of the lines that are written at once
        room[:] = 1
        assert copy_checksum(data, room[shift : shift + size]) == known
        assert (room[shift : shift + size] == data).all()
        assert (room[:shift] == 1).all() and (room[shift + size :] == 1).all()
    assert checksum(data) == known


def test_a_publish_that_breaks_leaves_the_slot_invalid(monkeypatch):
    arena = FrameArena(PageShape.of(TINY, 16, "f16"), 2)
    slots = ArenaSlots(2, arena.shape.frame_bytes)
    slots.publish(arena, 0, 1, 7)
    assert slots.load((PageIn(1, 7, 1),), arena) == [None]

    def breaks(source, target):
        raise MemoryError

    monkeypatch.setattr("tokenix.drivers.cpu.slots.copy_checksum", breaks)
    with pytest.raises(MemoryError):
        slots.publish(arena, 0, 1, 8)
    monkeypatch.undo()
    for generation in (7, 8):
        (wrong,) = slots.load((PageIn(1, generation, 1),), arena)
        assert "holds nothing" in wrong
