"""What goes wrong between memory and the swap file is a failed page, never data."""

import errno
import random
import threading
import zlib

import pytest

from tokenix.drivers import swapfile
from tokenix.drivers.swapfile import ALIGNMENT, BlockIo
from tokenix.tests.cpu.swapstore import PADDED, PATIENCE_S, Store
from tokenix.tests.device.swap import flip_bit, truncate


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.file.close()


@pytest.mark.parametrize("verb", ["store", "fetch"])
def test_d7_a_page_that_the_disk_fails_is_a_failed_page(store, verb):
    assert store.store(0, 1, 2, 3, 4) == {}
    store.io.fails = {2: OSError(errno.EIO, "Input/output error")}
    wrong = getattr(store, verb)(0, 1, 2, 3, 4)
    assert set(wrong) == {2}
    assert "block 2: not" in wrong[2]
    assert "Input/output error" in wrong[2]
    store.io.fails = {}
    assert set(store.fetch(0, 1, 2, 3, 4)) == ({2} if verb == "store" else set())


@pytest.mark.parametrize("verb", ["store", "fetch"])
def test_d12_a_short_transfer_fails_its_page_and_no_other(store, verb):
    """The call for the run comes back short, and then the one for the page."""
    assert store.store(0, 1, 2, 3) == {}
    store.io.short = {2: ALIGNMENT}
    wrong = getattr(store, verb)(0, 1, 2, 3)
    assert set(wrong) == {2}
    assert f"{ALIGNMENT} of {PADDED} bytes" in wrong[2]


def test_a_transfer_that_stops_half_way_goes_on(store):
    assert store.store(0, 1, 2, 3) == {}
    plain = store.io.preadv

    def stop_half_way(fd, buffers, offset):
        return plain(fd, buffers[:2], offset) - (100 if len(buffers) > 1 else 0)

    store.io.preadv = stop_half_way
    assert store.fetch(0, 1, 2, 3) == {}


def test_a_hook_that_breaks_costs_its_pages_only(store):
    store.store(0, 2)
    store.io.fails = {2: MemoryError("none left")}
    assert store.fetch(0, 2) == {2: "block 2: MemoryError: none left"}
    store.io.fails = {}
    assert store.fetch(0, 2) == {}


def test_what_changed_before_it_was_stored_is_not_stored(store):
    store.store(0, 1, 2)
    pages = [BlockIo(i, 2, store.source(i), zlib.crc32(store.source(i))) for i in range(3)]
    store.source(1)[9] ^= 1
    store.file.store(pages)
    assert [page.wrong is None for page in pages] == [True, False, True]
    assert "another checksum" in pages[1].wrong
    assert set(store.fetch(0, 1, 2, generation=2)) == {1}
    assert set(store.fetch(1)) == {1}, "the block was given up"


def test_a_bit_that_changes_on_the_disk_is_seen(store):
    store.store(0, 1, 2)
    flip_bit(store.file, 1)
    wrong = store.fetch(0, 1, 2)
    assert set(wrong) == {1}
    assert "checksum" in wrong[1]


def test_d11_a_block_serves_nothing_while_it_is_written(store):
    store.store(5)
    store.io.writes_pass.clear()
    again = threading.Thread(target=store.store, args=(5,), kwargs={"generation": 2})
    again.start()
    assert store.io.reached.wait(PATIENCE_S)
    for generation in (1, 2):
        assert "holds nothing" in store.fetch(5, generation=generation)[5]
    store.io.writes_pass.set()
    again.join()
    assert store.fetch(5, generation=2) == {}
    assert "holds generation 2" in store.fetch(5, generation=1)[5]


def test_d14_a_file_that_somebody_shortens(store):
    store.store(*range(8))
    truncate(store.file, 3)
    wrong = store.fetch(*range(8))
    assert set(wrong) == {3, 4, 5, 6, 7}
    assert all("0 of 8192 bytes read" in why for why in wrong.values())
    assert store.store(*range(8)) == {}, "what is written makes it whole again"
    assert store.fetch(*range(8)) == {}


def test_d14_a_directory_that_vanishes(tmp_path):
    (tmp_path / "gone").mkdir()
    store = Store(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert store.store(0, 1) == {}
    assert store.fetch(0, 1) == {}
    store.file.close()


def test_d15_a_new_file_holds_nothing(store, tmp_path):
    store.store(0, 1, 2)
    store.file.close()
    again = Store(tmp_path)
    assert set(again.fetch(0, 1, 2)) == {0, 1, 2}
    again.file.close()


def test_d17_a_load_waits_for_no_store(store, monkeypatch):
    monkeypatch.setattr(swapfile, "RUN_BYTES", PADDED)
    store.store(0, 1)
    store.io.writes_pass.clear()
    many = threading.Thread(target=store.store, args=(2, 3, 4, 5, 6, 7))
    many.start()
    assert store.io.reached.wait(PATIENCE_S)
    assert store.fetch(0, 1) == {}
    store.io.writes_pass.set()
    many.join()
    assert store.fetch(2, 3, 4, 5, 6, 7) == {}


def test_d5_nothing_is_garbled_under_load(tmp_path, seed):
    """Stores and fetches of random sets of blocks at the same time, thousands of pages."""
    blocks = 32
    store = Store(tmp_path, blocks)
    assert store.store(*range(blocks)) == {}
    chance = random.Random(seed)
    for turn in range(2, 80):
        order = chance.sample(range(blocks), blocks)
        out, back = order[: blocks // 2], order[blocks // 2 :]
        pages = [BlockIo(i, turn, store.source(i), zlib.crc32(store.source(i))) for i in out]
        storing = threading.Thread(target=store.file.store, args=(pages,))
        storing.start()
        loads = [BlockIo(i, store.file._generations[i], store.target(i)) for i in back]
        store.file.fetch(loads)
        storing.join()
        assert [page.wrong for page in pages + loads] == [None] * blocks
        assert all(store.target(i) == store.source(i) for i in back)
        for i in back:
            store.target(i)[:] = bytes(PADDED)
    store.file.close()


def test_close_waits_for_what_is_under_way(store):
    store.store(0)
    store.io.reads_pass.clear()
    pages = [BlockIo(0, 1, store.target(0))]
    fetching = threading.Thread(target=store.file.fetch, args=(pages,))
    fetching.start()
    assert store.io.reached.wait(PATIENCE_S)
    closing = threading.Thread(target=store.file.close)
    closing.start()
    closing.join(0.1)
    assert not store.file._file.closed
    store.io.reads_pass.set()
    fetching.join()
    closing.join()
    assert pages[0].wrong is None
    assert store.file._file.closed
    late = [BlockIo(0, 1, store.target(0))]
    store.file.fetch(late)
    assert "closed" in late[0].wrong
    store.file.close()


@pytest.mark.parametrize("block", [-1, 8, 1 << 40])
def test_a_block_outside_is_refused(store, block):
    for wrong in (store.store(block, 1), store.fetch(block, 1)):
        assert list(wrong) == [block]
        assert f"block {block} outside the 8" in wrong[block]
