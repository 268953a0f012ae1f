"""Packing by pieces, and packed weights in files: the same bits, or none at all."""

import errno
import fcntl
import os
import resource
import threading
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tokenix.drivers.cpu import blockpack, pack, packcache, pieces
from tokenix.drivers.cpu.packcache import PackCache
from tokenix.drivers.usercache import cache_folder
from tokenix.tests.cpu.conftest import FAMILIES, TINY, Model, QuantizedWeights

KINDS = ("native", "f16", "bf16", "f32")
OTHER = replace(TINY, ffn=112)


class Closed(QuantizedWeights):
    """Whose matrices nobody reads."""

    def quantized(self, name):
        raise AssertionError(f"{name} is packed")

    def kind(self, name):
        return QuantizedWeights.quantized(self, name)[0]


def pack_as(kind, config=TINY, weights=None, keep=None):
    """All arrays of a packed model."""
    weights = weights or QuantizedWeights(config)
    if kind == "native":
        return blockpack.pack_model(config, weights, None, keep)[1:]
    return pack.pack_model(config, weights, kind, None, keep)[1:]


def same(left, right):
    pairs = list(zip(left, right, strict=True))
    return all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs) and all(
        a.tobytes() == b.tobytes() for a, b in pairs
    )


def cache_in(folder, model="m", **changes):
    return PackCache(model, folder, **{"least_bytes": 0, **changes})


def files_in(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_any_size_are_packed_to_the_same_bits(kind, monkeypatch):
    found = []
    for numbers in (1, 5000, 1 << 30):  # 16 rows at a time, some, whole matrices
        monkeypatch.setattr(pieces, "PIECE_NUMBERS", numbers)
        found.append(pack_as(kind))
    assert same(found[0], found[2]) and same(found[1], found[2])


@pytest.mark.parametrize("kind", ["native", "bf16"])
def test_rows_are_asked_for_where_they_are_to_be_had(kind, monkeypatch):
    """So that nobody makes all of a matrix, such as a file in fp8 would have to."""

    class Rows(Closed):
        def rows(self, name, first, last):
            found, raw = QuantizedWeights.quantized(self, name)
            return found, raw[first:last]

    expected = pack_as(kind)
    monkeypatch.setattr(pieces, "PIECE_NUMBERS", 5000)
    assert same(expected, pack_as(kind, weights=Rows(TINY)))


def test_what_cannot_be_packed_is_said_by_the_first_that_cannot(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NUMBERS", 1)
    weights = QuantizedWeights(replace(TINY, vocab_tokens=2000))
    for name in ("layers.1.down", "embed"):
        weights.raw.pop(name, None)
        weights.tensors[name][-1, -1] = 1e30
    with pytest.raises(ValueError, match=r"layers\.1\.down is beyond the range of float16"):
        pack_as("f16", replace(TINY, vocab_tokens=2000), weights)


@pytest.mark.parametrize("at", [0, 49])
def test_a_piece_that_fails_is_never_lost(at):
    def work(number):
        if number == at:
            raise ValueError(f"piece {number}")

    with pytest.raises(ValueError, match=f"piece {at}"):
        pieces.pack_all(partial(work, number) for number in range(50))


def test_pieces_wait_until_somebody_can_take_them():
    """Else all of a file would be read ahead."""
    lock, open_now, most = threading.Lock(), [0], [0]

    def work():
        with lock:
            open_now[0] -= 1

    def jobs():
        for _ in range(200):
            with lock:
                open_now[0] += 1
                most[0] = max(most[0], open_now[0])
            yield work

    pieces.pack_all(jobs())
    assert open_now[0] == 0 and most[0] <= 3 * pieces.get_threads()


@pytest.mark.parametrize("kind", KINDS)
def test_packing_takes_the_memory_of_some_pieces(kind, monkeypatch):
    """Beside the result, which is not counted here: it is mapped."""
    config = replace(TINY, vocab_tokens=20_000)
    weights = QuantizedWeights(config)
    monkeypatch.setattr(pieces, "PIECE_NUMBERS", 1 << 14)
    monkeypatch.setattr(pieces, "get_threads", lambda: 2)
    pack_as(kind, config, weights)  # what is imported and compiled, is so
    tracemalloc.start()
    try:
        pack_as(kind, config, weights)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < config.vocab_tokens * config.hidden  # whole, it takes 6 to 18 bytes of each


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "tied", "qwen2"])
def test_kept_weights_are_the_same_bits(tmp_path, kind, family):
    config = FAMILIES[family]
    keep = cache_in(tmp_path)
    packed, first = pack_as(kind, config), pack_as(kind, config, keep=keep)
    again = pack_as(kind, config, Closed(config), keep)
    assert same(packed, first) and same(packed, again) and keep.notes == []
    kinds = [[str(each.dtype), each.flags.writeable] for each in packed]
    assert kinds == [[str(each.dtype), each.flags.writeable] for each in again]  # to the compiler
    assert len(files_in(tmp_path)) == 1


def test_a_pass_over_kept_weights(tmp_path):
    kept = cache_in(tmp_path)
    tokens, expected = list(range(40)), None
    for weights in (QuantizedWeights(TINY), Closed(TINY)):
        logits = Model(TINY, weights, dense="native", keep=kept).all_logits(0, tokens)
        assert expected is None or (logits == expected).all()
        expected = logits


def flip(at):
    def change(data):
        data[at] ^= 1

    return change


def cut(size):
    def change(data):
        del data[size:]

    return change


def clear(data):
    data[:] = bytes(len(data))


DAMAGE = {
    "empty": cut(0),
    "a byte": cut(1),
    "half": cut(20_000),
    "a byte less": cut(-1),
    "a page less": cut(-4096),
    "a bit of the first part": flip(0),
    "a bit of the second part": flip(5000),
    "the last bit": flip(-200),
    "a sum": flip(-73),
    "size": flip(-72),
    "key": flip(-64),
    "seal": flip(-1),
    "a byte more": lambda data: data.append(0),
    "zeros": clear,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_packed_again(tmp_path, damage, monkeypatch):
    monkeypatch.setattr(packcache, "PART_BYTES", 4096)
    expected = pack_as("native", keep=cache_in(tmp_path))
    (path,) = files_in(tmp_path)
    whole = path.read_bytes()
    data = bytearray(whole)
    DAMAGE[damage](data)
    assert data != whole
    path.chmod(0o600)
    path.write_bytes(data)
    keep = cache_in(tmp_path)
    assert same(expected, pack_as("native", keep=keep))
    (note,) = keep.notes
    assert str(path) in note and "packed again" in note and "\n" not in note
    assert files_in(tmp_path) == [path] and path.read_bytes() == whole


def test_a_file_of_other_code_is_replaced(tmp_path, monkeypatch):
    pack_as("native", keep=cache_in(tmp_path))
    (path,) = files_in(tmp_path)
    old = path.read_bytes()
    monkeypatch.setattr(packcache, "_key", lambda: b"k" * 32)
    keep = cache_in(tmp_path)
    with pytest.raises(AssertionError, match="is packed"):
        pack_as("native", weights=Closed(TINY), keep=keep)
    pack_as("native", keep=keep)
    pack_as("native", weights=Closed(TINY), keep=keep)
    assert keep.notes == [] and files_in(tmp_path) == [path] and path.read_bytes() != old


@pytest.mark.parametrize("changed", ["source", "processor"])
def test_the_key_is_of_the_sources_and_the_processor(tmp_path, monkeypatch, changed):
    def key():
        packcache._key.cache_clear()
        return packcache._key()

    before = key()
    assert key() == before
    with monkeypatch.context() as patch:
        if changed == "source":
            (tmp_path / "more.py").write_text("")
            patch.setattr(packcache, "models", SimpleNamespace(__path__=[str(tmp_path)]))
        else:
            codegen = SimpleNamespace(magic_tuple=lambda: ("x", "y", "z"))
            patch.setattr(
                packcache, "host_context", lambda: SimpleNamespace(codegen=lambda: codegen)
            )
        assert key() != before
    assert key() == before


def test_another_model_configuration_or_kind_has_another_file(tmp_path):
    pack_as("f16", keep=cache_in(tmp_path))
    for count, (kind, config, model) in enumerate(
        [("f16", OTHER, "m"), ("bf16", TINY, "m"), ("f16", TINY, "n")], 2
    ):
        keep = cache_in(tmp_path, model)
        with pytest.raises(AssertionError, match="is packed"):
            pack_as(kind, config, Closed(config), keep)
        pack_as(kind, config, keep=keep)
        assert len(files_in(tmp_path)) == count
    pack_as("f16", replace(TINY, name="called otherwise"), Closed(TINY), cache_in(tmp_path))


@contextmanager
def largest_file(size):
    """Of this process: what is written beyond fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path):
    keep = cache_in(tmp_path)
    with largest_file(50_000):
        found = pack_as("f32", keep=keep)
    (note,) = keep.notes
    assert same(found, pack_as("f32")) and files_in(tmp_path) == []
    assert os.strerror(errno.EFBIG) in note and "each start packs" in note


def test_where_nothing_can_be_kept_a_start_packs(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    usage = SimpleNamespace(free=1 << 10)
    nearly_full = tmp_path / "full"
    for folder, says in ((blocked / "weights", "Not a directory"), (nearly_full, "has 0 MiB left")):
        keep = cache_in(folder)
        with monkeypatch.context() as patch:
            if folder == nearly_full:
                patch.setattr(packcache.shutil, "disk_usage", lambda path: usage)
            assert same(pack_as("native", keep=keep), pack_as("native"))
        (note,) = keep.notes
        assert says in note and "each start packs" in note
        assert not folder.is_dir() or files_in(folder) == []


def test_without_a_folder_of_its_own_it_is_the_user_s(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pack_as("native", keep=cache_in(None))
    (path,) = files_in(tmp_path / "tokenix" / "weights")
    assert path.stat().st_mode & 0o777 == 0o400  # who cut it off would kill whoever has it mapped


@pytest.mark.parametrize("shared", ["", "cache", "./cache", "~/cache"])
def test_a_cache_folder_that_is_not_absolute_is_none(tmp_path, monkeypatch, shared):
    monkeypatch.setenv("XDG_CACHE_HOME", shared)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "tokenix"
    pack_as("native", keep=cache_in(None))
    assert len(files_in(cache_folder() / "weights")) == 1


def test_small_models_have_no_file(tmp_path):
    keep = PackCache("m", tmp_path)
    pack_as("native", keep=keep)
    assert keep.notes == [] and files_in(tmp_path) == []


def test_those_used_longest_ago_make_room(tmp_path):
    now, found = time.time(), []
    for age_s, model in ((9000, "a"), (9900, "b"), (9500, "c")):
        pack_as("f16", keep=cache_in(tmp_path, model))
        (path,) = (each for each in files_in(tmp_path) if each not in found)
        os.utime(path, (now - age_s, now - age_s))
        found.append(path)
    size = path.stat().st_size
    others = {"note.txt": 9000, "left-x.new": 9000, "begun-x.new": 10, "held-x.new": 9000}
    for name, age_s in others.items():
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (now - age_s, now - age_s))
    with (tmp_path / "held-x.new").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        pack_as("f16", weights=Closed(TINY), keep=cache_in(tmp_path, "b"))  # used now
        assert not (tmp_path / "left-x.new").exists()  # though there was nothing to write
        pack_as("f16", keep=cache_in(tmp_path, "d", limit_bytes=2 * size))
    assert {path.name for path in files_in(tmp_path) if path.suffix != ".weights"} == {
        "note.txt", "begun-x.new", "held-x.new",
    }  # fmt: skip
    assert len(list(tmp_path.glob("*.weights"))) == 2
    for model in "bd":
        pack_as("f16", weights=Closed(TINY), keep=cache_in(tmp_path, model))
    keep = cache_in(tmp_path, "e", limit_bytes=size // 2)
    pack_as("f16", keep=keep)
    (note,) = keep.notes
    assert "MiB at most are kept" in note and len(list(tmp_path.glob("*.weights"))) == 2


def test_two_that_start_at_once_do_no_harm_to_each_other(tmp_path):
    both = threading.Barrier(2, timeout=60)
    found = {}

    class Slow(QuantizedWeights):
        def quantized(self, name):
            if name == "layers.0.q":
                both.wait()  # both have looked, and found nothing
            return super().quantized(name)

    def start(who):
        keep = cache_in(tmp_path)
        found[who] = pack_as("native", weights=Slow(TINY), keep=keep), keep.notes

    threads = [threading.Thread(target=start, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(found[0][0], found[1][0]) and found[0][1] == found[1][1] == []
    assert len(files_in(tmp_path)) == 1
    mapped = pack_as("native", weights=Closed(TINY), keep=cache_in(tmp_path))
    (path,) = files_in(tmp_path)
    path.unlink()  # who has it mapped keeps it
    assert same(mapped, found[0][0])
