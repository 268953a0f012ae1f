"""The directory of images on a real file system: all of a file or nothing, whatever fails."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tokenix.drivers.imagefile import BadImage, Head
from tokenix.drivers.imagestore import ImageStore, Listing
from tokenix.drivers.swapfile import DiskIo
from tokenix.tests.tidy.tree import ROOT

PATH = "saved/t-red/one.img"
PAGES = [memoryview(os.urandom(8192)) for _ in range(3)]
HEAD = Head(b"meta", (1, 2, 3), 5000)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    store = ImageStore()
    assert store.open(str(tmp_path / "images")) == Listing()
    return store


def load(store: ImageStore, path: str = PATH) -> list[bytes | None]:
    """Its pages; None for those that are not whole."""
    memory = [bytearray(8192) for _ in PAGES]
    digest = store.read(path).digest
    _, whole = store.load(path, digest, [(i, memoryview(m)) for i, m in enumerate(memory)])
    return [bytes(m) if ok else None for m, ok in zip(memory, whole, strict=True)]


def names(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def test_what_was_saved_is_there(store: ImageStore, tmp_path: Path) -> None:
    assert store.save(PATH, HEAD, PAGES) == HEAD.file_bytes
    assert load(store) == [bytes(page) for page in PAGES]
    store.close()
    assert ImageStore().open(str(tmp_path / "images")).images == ((PATH, HEAD.file_bytes),)


def test_nobody_else_may_look(store: ImageStore, tmp_path: Path) -> None:
    store.save(PATH, HEAD, PAGES)
    for path in (tmp_path / "images").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


class Failing(DiskIo):
    """Fails one of its calls, the `nth` of a kind."""

    def __init__(self, kind: str, nth: int, number: int) -> None:
        self._kind, self._left, self._number = kind, nth, number

    def _count(self, kind: str) -> None:
        if kind == self._kind:
            self._left -= 1
            if self._left < 0:
                raise OSError(self._number, os.strerror(self._number))

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._count("write")
        return super().pwritev(fd, [buffers[0][:3000]], offset)  # in pieces, too

    def fsync(self, fd: int) -> None:
        self._count("fsync")
        super().fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        self._count("replace")
        super().replace(source, target)


@pytest.mark.parametrize(
    ("kind", "nth", "number"),
    [*(("write", n, errno.ENOSPC) for n in range(8)), ("write", 3, errno.EIO),
     ("fsync", 0, errno.EIO), ("replace", 0, errno.EIO)],
)  # fmt: skip
def test_a_save_that_fails_leaves_what_was_there(
    tmp_path: Path, kind: str, nth: int, number: int
) -> None:
    good = ImageStore()
    good.open(str(tmp_path))
    good.save(PATH, Head(b"older", (9,), 5000), PAGES[:1])
    good.close()
    bad = ImageStore(Failing(kind, nth, number))
    bad.open(str(tmp_path))
    with pytest.raises(OSError) as why:
        bad.save(PATH, HEAD, PAGES)
    assert why.value.errno == number
    assert names(tmp_path) == [".lock", PATH]
    assert bad.read(PATH).meta == b"older"
    with pytest.raises(OSError):
        bad.save("saved/t-red/two.img", HEAD, PAGES)
    assert names(tmp_path) == [".lock", PATH]


@pytest.mark.parametrize("moment", ["write 0", "write 5", "fsync 0", "replace 0", "fsync 1"])
def test_killed_in_the_middle_of_a_save(tmp_path: Path, moment: str) -> None:
    """The older file is there until the newer one is; then that."""
    program = (
        "import os, signal\n"
        "from tokenix.tests.images.test_store import HEAD, PAGES, PATH, Failing\n"
        "from tokenix.tests.images.test_store import Head, ImageStore\n"
        "class Deadly(Failing):\n"
        "    def _count(self, kind):\n"
        "        try:\n"
        "            super()._count(kind)\n"
        "        except OSError:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "store = ImageStore()\n"
        f"store.open({str(tmp_path)!r})\n"
        "store.save(PATH, Head(b'older', (9,), 5000), PAGES[:1])\n"
        f"store._io = Deadly({moment.split(maxsplit=1)[0]!r}, {moment.split()[1]}, 5)\n"
        "store.save(PATH, HEAD, PAGES)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=False)
    assert done.returncode == -9
    store = ImageStore()
    assert [path for path, _ in store.open(str(tmp_path)).images] == [PATH]
    assert names(tmp_path) == [".lock", PATH]
    renamed = moment == "fsync 1"
    assert store.read(PATH).meta == (b"meta" if renamed else b"older")


def test_pieces_make_a_whole(tmp_path: Path) -> None:
    store = ImageStore(Failing("none", 0, 0))
    store.open(str(tmp_path))
    store.save(PATH, HEAD, PAGES)
    assert load(store) == [bytes(page) for page in PAGES]


def test_a_file_that_is_cut_off_has_the_pages_that_are_left(
    store: ImageStore, tmp_path: Path
) -> None:
    store.save(PATH, HEAD, PAGES)
    file = tmp_path / "images" / PATH
    for size, pages in ((4096 + 3 * 8192, 3), (4096 + 2 * 8192 + 5000, 3), (4096 + 9192, 1)):
        os.truncate(file, size)
        assert sum(page is not None for page in load(store)) == pages
    for size in (4095, 48, 47, 0):
        os.truncate(file, size)
        with pytest.raises(BadImage):
            store.read(PATH)


def test_what_was_being_written_is_removed(store: ImageStore, tmp_path: Path) -> None:
    """And what is not ours is left alone."""
    store.save(PATH, HEAD, PAGES)
    folder = tmp_path / "images" / "saved" / "t-red"
    (folder / ".tmp-two.img").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "link.img").symlink_to(folder / "one.img")
    store.close()
    assert [path for path, _ in ImageStore().open(str(tmp_path / "images")).images] == [PATH]
    assert not (folder / ".tmp-two.img").exists() and (folder / "notes.txt").exists()


def test_links_are_not_followed(store: ImageStore, tmp_path: Path) -> None:
    store.save(PATH, HEAD, PAGES)
    link = tmp_path / "images" / "saved" / "t-red" / "two.img"
    link.symlink_to("one.img")
    with pytest.raises(OSError):
        store.read("saved/t-red/two.img")


def test_one_kernel_at_a_time(store: ImageStore, tmp_path: Path) -> None:
    """Until it is closed, or dead."""
    directory = str(tmp_path / "images")
    with pytest.raises(OSError, match="another kernel") as why:
        ImageStore().open(directory)
    assert why.value.errno == errno.EBUSY
    store.close()
    program = (
        "import os, sys\nfrom tokenix.drivers.imagestore import ImageStore\n"
        f"store = ImageStore()\nstore.open({directory!r})\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".lib")},
    )  # fmt: skip
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == b"open\n"
    with pytest.raises(OSError, match="another kernel"):
        store.open(directory)
    other.kill()
    other.wait()
    other.stdin.close()
    other.stdout.close()
    assert store.open(directory) == Listing()


@pytest.mark.parametrize("missing", ["", "no/such/parent", "file"])
def test_directories_that_cannot_be(tmp_path: Path, missing: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        ImageStore().open(str(tmp_path / missing) if missing else "")


def test_without_a_directory_there_is_nothing() -> None:
    for act in (lambda s: s.read(PATH), lambda s: s.unlink(PATH), lambda s: s.save(PATH, HEAD, [])):
        with pytest.raises(OSError, match="no image directory"):
            act(ImageStore())
