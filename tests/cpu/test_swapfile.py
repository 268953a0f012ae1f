"""The swap file on real file systems: what it takes, what it refuses, what it leaves."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tokenix.drivers import swapfile
from tokenix.drivers.swapfile import SwapFile
from tokenix.tests.cpu.swapstore import PADDED, PAGE, Scripted, Store
from tokenix.tests.tidy.tree import ROOT


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.file.close()


class NoDirect(Scripted):
    """A file system that takes the flag O_DIRECT and refuses the IO."""

    def move(self, done, fd, buffers, offset, may_pass):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().move(done, fd, buffers, offset, may_pass)


class Liar(Scripted):
    """Reads with O_DIRECT give other bytes than were written."""

    def preadv(self, fd, buffers, offset):
        read = super().preadv(fd, buffers, offset)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            buffers[0][7] ^= 1
        return read


def count_open():
    return len(list(Path("/proc/self/fd").iterdir()))


def takes_direct(directory):
    file = SwapFile(str(directory), 1, PAGE, zlib.crc32)
    file.close()
    return file.direct


def run(code, *args, before=()):
    """A fresh interpreter, perhaps inside another command."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    command = [*before, sys.executable, "-c", code, *args]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def mounted(directory, options):
    """The start of a command that sees a memory file system mounted at `directory`."""
    mount = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    private = ("unshare", "-rm", "sh", "-c", mount, str(directory))
    try:
        subprocess.run([*private, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"no file system can be mounted in a namespace of our own: {why}")
    return private


# ---- where the bytes go ----


@pytest.mark.parametrize("way", ["direct", "flag refused", "io refused", "io lies", "memory"])
def test_pages_come_back_from_any_file_system(tmp_path, monkeypatch, way):
    directory = tmp_path
    io = {"io refused": NoDirect, "io lies": Liar}.get(way, Scripted)()
    if way == "direct" and not takes_direct(tmp_path):
        pytest.skip(f"the file system of {tmp_path} refuses O_DIRECT")
    if way == "memory":
        directory = Path("/dev/shm")
        if not os.access(directory, os.W_OK):
            pytest.skip("no /dev/shm that can be written")
    if way == "flag refused":
        plain = fcntl.fcntl

        def refuse(fd, command, flags=0):
            if command == fcntl.F_SETFL and flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return plain(fd, command, flags)

        monkeypatch.setattr(fcntl, "fcntl", refuse)
    store = Store(directory, io=io)
    if way != "memory":
        assert store.file.direct == (way == "direct")
    assert store.file.block_bytes == PADDED
    assert store.store(3, 0, 1, 7, 2) == {}
    assert store.fetch(3, 0, 1, 7, 2) == {}
    store_s, fetch_s = store.file.measure()
    assert store_s > 0
    assert fetch_s > 0
    store.file.close()


def test_the_file_has_its_space_and_no_name(store, tmp_path):
    assert os.fstat(store.file._file.fileno()).st_blocks * 512 >= 8 * PADDED
    assert os.fstat(store.file._file.fileno()).st_nlink == 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_after_a_kill(tmp_path):
    code = (
        "import os, signal, sys, zlib\n"
        "from tokenix.drivers.swapfile import SwapFile\n"
        "file = SwapFile(sys.argv[1], 64, 4096, zlib.crc32)\n"
        "file.measure()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run(code, str(tmp_path)).returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_neighbouring_blocks_share_a_call(store, monkeypatch):
    store.store(4, 2, 3, 7, 0)
    assert sorted(store.io.calls) == [(0, 1), (2, 3), (7, 1)]
    monkeypatch.setattr(swapfile, "RUN_BYTES", 2 * PADDED)
    store.io.calls.clear()
    assert store.fetch(4, 2, 3, 7, 0) == {}
    assert sorted(store.io.calls) == [(0, 1), (2, 2), (4, 1), (7, 1)]


def test_measuring_publishes_nothing(store):
    assert min(store.file.measure()) > 0
    assert set(store.fetch(0, 1, 2, generation=0)) == {0, 1, 2}


# ---- what cannot be opened ----


@pytest.mark.parametrize(
    ("directory", "blocks", "number", "words"),
    [
        ("missing", 8, errno.ENOENT, "no such directory; create it"),
        ("file", 8, errno.ENOTDIR, "no directory; name one"),
        ("x" * 300, 8, errno.ENAMETOOLONG, "too long"),
        ("loop", 8, errno.ELOOP, "circle"),
        ("nul\0", 8, errno.EINVAL, "null"),
        (None, 8, errno.EINVAL, "name a directory"),
        (".", 0, errno.EINVAL, "at least one block"),
        (".", -3, errno.EINVAL, "at least one block"),
        (".", 1 << 40, errno.ENOSPC, "ask for at most"),
        (".", 1 << 80, errno.ENOSPC, "ask for at most"),
    ],
)
def test_d16_what_cannot_be_is_refused_and_leaves_nothing(
    tmp_path, directory, blocks, number, words
):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    where = "" if directory is None else f"{tmp_path}/{directory}"
    before = count_open()
    with pytest.raises(OSError, match=words) as refused:
        SwapFile(where, blocks, PAGE, zlib.crc32)
    assert refused.value.errno == number
    assert f"swap file of {blocks} blocks" in refused.value.strerror
    assert repr(where) in refused.value.strerror
    assert count_open() == before
    assert {path.name for path in tmp_path.iterdir()} == {"file", "loop"}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "may not write there"),
        (errno.EPERM, "may not write there"),
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "ask for at most"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_reservation_that_fails_says_why(tmp_path, monkeypatch, number, words):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    before = count_open()
    with pytest.raises(OSError, match=words) as refused:
        SwapFile(str(tmp_path), 8, PAGE, zlib.crc32)
    assert refused.value.errno == number
    assert count_open() == before
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_when_it_is_measured_is_not_used(store):
    store.io.fails = {2: OSError(errno.EIO, "Input/output error")}
    with pytest.raises(OSError, match=r"block 2: not written: Input/output error.*another one"):
        store.file.measure()


FULL_DISK = """
import os, sys, zlib
from tokenix.drivers.swapfile import BlockIo, SwapFile, disk_memory
here = sys.argv[1]
try:
    SwapFile(here, 1024, 4096, zlib.crc32)
except OSError as refused:
    print(refused.strerror)
assert os.listdir(here) == [], os.listdir(here)
free = os.statvfs(here)
assert free.f_bavail == free.f_blocks, "what was refused gave its space back"
file = SwapFile(here, 128, 4096, zlib.crc32)
try:
    with open(os.path.join(here, "others"), "wb", buffering=0) as others:
        while True:
            others.write(bytes(4096))
except OSError as full:
    print(full.strerror)
data = memoryview(disk_memory(4096))
pages = [BlockIo(i, 1, data, zlib.crc32(data)) for i in range(128)]
file.store(pages)
assert [page.wrong for page in pages] == [None] * 128
file.fetch(pages)
assert [page.wrong for page in pages] == [None] * 128
file.close()
print("served", os.statvfs(here).f_bavail >= 128)
"""


def test_d16_a_disk_that_is_full(tmp_path):
    """On a real file system of 2 MiB: too large a file is refused; one that was opened keeps its
    space when others fill the disk."""
    done = run(FULL_DISK, str(tmp_path), before=mounted(tmp_path, "size=2m"))
    assert done.returncode == 0, done.stderr
    refused, full, served = done.stdout.splitlines()
    assert "1024 blocks (4.0 MiB)" in refused
    assert "2.0 MiB are free there" in refused
    assert "at most 512 blocks" in refused
    assert full == os.strerror(errno.ENOSPC)
    assert served == "served True"


def test_a_read_only_file_system_is_refused(tmp_path):
    code = (
        "import sys, zlib\n"
        "from tokenix.drivers.swapfile import SwapFile\n"
        "try: SwapFile(sys.argv[1], 4, 4096, zlib.crc32)\n"
        "except OSError as refused: print(refused.strerror)\n"
    )
    done = run(code, str(tmp_path), before=mounted(tmp_path, "ro"))
    assert "read-only; name a directory on another" in done.stdout


def test_d16_a_limit_on_file_size(tmp_path):
    code = (
        "import resource, sys, zlib\n"
        "from tokenix.drivers.swapfile import SwapFile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "SwapFile(sys.argv[1], 256, 4096, zlib.crc32).close()\n"
        "try: SwapFile(sys.argv[1], 257, 4096, zlib.crc32)\n"
        "except OSError as refused: print(refused.strerror)\n"
    )
    done = run(code, str(tmp_path))
    assert "ulimit -f" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []
