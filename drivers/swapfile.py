"""The swap file: the tier below host memory. One bounded file of page-sized blocks, for any driver.

    block    one page, padded to a multiple of 4096 bytes, at block * block_bytes
    table    {generation, checksum} of every block, in this process's memory

The file has no name: it is opened unnamed, or unlinked before a byte is reserved. So it takes its
space from `df` but is not seen by `ls`, nothing of it is left after a kill -9, and no later process
can find what is stale. All of its space is reserved when it is opened: a disk that others fill
afterwards costs no page.

A block is valid only while its generation is set: `store` clears it first, then writes the data,
and sets checksum and generation last. `fetch` serves what has both, and nothing else.

Data goes between the disk and the caller's memory without a copy, past the page cache (O_DIRECT)
where the file system allows. Pages are moved by a few threads, and neighbouring blocks by one
preadv or pwritev. The standard library has no io_uring; with pages of hundreds of KiB, threads that
wait in the system call reach the disk's rate for a tenth of a core.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from tokenix.drivers.diskthreads import DiskThreads

ALIGNMENT = 4096
"""Of blocks in the file, and of the memory that is given for them. Covers disks with sectors of 512
and of 4096 bytes."""

FETCH_THREADS = 8
STORE_THREADS = 2
"""By measurement, pages of 360 KiB one by one on a virtual NVMe disk: reads 1.4, 1.9, 2.2, 2.4 GB/s
and writes 1.8, 2.7, 3.5, 3.9 GB/s with 1, 2, 4, 8 threads. Stores get fewer, as loads come first,
and a pool of their own, so that no load ever waits for a store to leave a thread."""

RUN_BYTES = 2 << 20
"""Most that one system call moves: 8 threads then share a command of 16 MiB. Runs of 4 pages of 360
KiB are read 1.3 times as fast as single ones, of 16 pages of 16 KiB 3 times (4 threads)."""

MEASURED_BYTES = 16 << 20

_INVALID = -1
_UNMADE = {
    errno.ENOENT: "there is no such directory; create it or name another one",
    errno.ENOTDIR: "that is no directory; name one",
    errno.EACCES: "this process may not write there; let it, or name another directory",
    errno.EPERM: "this process may not write there; let it, or name another directory",
    errno.EROFS: "that file system is read-only; name a directory on another one",
    errno.ENAMETOOLONG: "that name is too long; name another directory",
    errno.ELOOP: "its symbolic links go round in a circle; name another directory",
    errno.EFBIG: "a file may not be that large there (ulimit -f, or the file system's own limit); "
    "ask for fewer blocks",
}
"""What was wrong and what to do about it."""


class DiskIo:
    """How files are read and written. Tests override it to delay, fail, shorten or corrupt."""

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def fsync(self, fd: int) -> None:
        """Of an image, or of the folder it is in."""
        os.fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        """An image gets its name."""
        source.replace(target)


def disk_memory(size: int) -> mmap.mmap:
    """Zeroed, page-aligned memory that costs nothing until it is touched, in huge pages where the
    kernel has them: a disk reads 1.6 times as fast into memory that is contiguous for it."""
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@dataclass(slots=True)
class BlockIo:
    """One page on its way between `data` and `block`."""

    block: int
    generation: int
    data: memoryview
    """Bytes [block_bytes], at an address that is a multiple of ALIGNMENT (`disk_memory`)."""
    checksum: int = 0
    """Of `data`: a store is given it, a fetch finds it."""
    wrong: str | None = None
    """Why the page failed. After a fetch, `data` then holds junk."""


class SwapFile:
    """`blocks` blocks of `block_bytes` each, at least `page_bytes`, in a file in `directory`.

    checksum: of the bytes of a block; runs on several threads at once, and should let go of the
    GIL. OSError if the file cannot be made; its `strerror` says why and what to do.

    One thread may store while another fetches.
    """

    def __init__(
        self,
        directory: str,
        blocks: int,
        page_bytes: int,
        checksum: Callable[[memoryview], int],
        io: DiskIo | None = None,
    ) -> None:
        self.blocks = blocks
        self.block_bytes = -(-page_bytes // ALIGNMENT) * ALIGNMENT
        self._checksum = checksum
        self._io = io or DiskIo()
        self._file = _reserve(directory, blocks, self.block_bytes)
        try:
            self.direct = self._bypass_cache()
            """Whether the page cache is bypassed. If not, what was moved is dropped from it."""
            self._generations = array("q", [_INVALID]) * blocks
            self._checksums = array("Q", [0]) * blocks
        except BaseException:
            self._file.close()
            raise
        self._readers = DiskThreads(FETCH_THREADS, "tokenix-disk-read")
        self._writers = DiskThreads(STORE_THREADS, "tokenix-disk-write")

    def close(self) -> None:
        """Wait for what is under way and give the space back. Idempotent."""
        # The file's number may belong to another file afterwards: no thread may still use it.
        self._readers.close()
        self._writers.close()
        self._file.close()

    def store(self, pages: Sequence[BlockIo]) -> None:
        """Write pages and publish them; those with `wrong` set were not."""
        for page in pages:
            page.wrong = page.wrong or self._outside(page)
            if page.wrong is None:
                self._generations[page.block] = _INVALID
        self._share(self._writers, self._write, pages)

    def fetch(self, pages: Sequence[BlockIo]) -> None:
        """Read pages that hold their generation and checksum; those with `wrong` set do not."""
        for page in pages:
            page.wrong = page.wrong or self._outside(page) or self._stale(page)
        self._share(self._readers, self._read, pages)

    def measure(self) -> tuple[float, float]:
        """Seconds per page (store, fetch) with many under way. OSError if the disk fails. Nothing
        may be stored yet."""
        count = min(self.blocks, max(1, MEASURED_BYTES // self.block_bytes))
        size = self.block_bytes
        memory = disk_memory(count * size)
        memory.write(os.urandom(count * size))  # a file system that compresses gains nothing
        data = memoryview(memory)
        views = [data[i * size : (i + 1) * size] for i in range(count)]
        pages = [BlockIo(i, 0, view, self._checksum(view)) for i, view in enumerate(views)]
        store_s = fetch_s = float("inf")
        for _ in range(2):
            store_s = min(store_s, _seconds(self.store, pages))
            fetch_s = min(fetch_s, _seconds(self.fetch, pages))
        for page in pages:
            self._generations[page.block] = _INVALID
        return store_s / count, fetch_s / count

    # ---- what a block holds ----

    def _outside(self, page: BlockIo) -> str | None:
        assert len(page.data) == self.block_bytes, "memory of another size than a block"
        assert page.generation >= 0, page.generation
        if 0 <= page.block < self.blocks:
            return None
        return f"block {page.block} outside the {self.blocks} of the swap file"

    def _stale(self, page: BlockIo) -> str | None:
        found = self._generations[page.block]
        if found == page.generation:
            return None
        held = "nothing" if found == _INVALID else f"generation {found}"
        return f"block {page.block} holds {held}, not generation {page.generation}"

    # ---- moving pages, on the pools' threads ----

    def _share(
        self,
        pool: DiskThreads,
        move: Callable[[list[BlockIo]], None],
        pages: Sequence[BlockIo],
    ) -> None:
        """Let the pool move all good pages. When this returns nothing touches their memory."""
        moving: list[Future[None]] = []
        for run in self._runs(pages):
            try:
                moving.append(pool.submit(partial(_guarded, move, run)))
            except RuntimeError:
                _spoil(run, "the swap file was closed")
        wait(moving)

    def _runs(self, pages: Sequence[BlockIo]) -> list[list[BlockIo]]:
        """The good pages, in runs of neighbouring blocks that one system call may move."""
        longest = max(1, RUN_BYTES // self.block_bytes)
        runs: list[list[BlockIo]] = []
        good = [page for page in pages if page.wrong is None]
        for page in sorted(good, key=lambda page: page.block):
            if runs and len(runs[-1]) < longest and runs[-1][-1].block + 1 == page.block:
                runs[-1].append(page)
            else:
                runs.append([page])
        return runs

    def _write(self, run: list[BlockIo]) -> None:
        for page in run:
            if self._checksum(page.data) != page.checksum:
                page.wrong = f"block {page.block}: what was to be stored has another checksum"
        for part in self._runs(run):
            self._move(part, self._io.pwritev, "written")
            if not self.direct:
                os.fdatasync(self._file.fileno())
                self._forget_cached(part)
        for page in run:
            if page.wrong is None:
                self._checksums[page.block] = page.checksum
                self._generations[page.block] = page.generation

    def _read(self, run: list[BlockIo]) -> None:
        self._move(run, self._io.preadv, "read")
        if not self.direct:
            self._forget_cached(run)
        for page in run:
            if page.wrong is None:
                page.checksum = self._checksum(page.data)
                if page.checksum != self._checksums[page.block]:
                    page.wrong = f"block {page.block} does not have the checksum it was stored with"
                else:
                    page.wrong = self._stale(page)

    def _move(
        self, run: list[BlockIo], move: Callable[[int, list[memoryview], int], int], done: str
    ) -> None:
        """One call for the whole run, or, if that fails, one for each page. The interpreter repeats
        calls that a signal interrupts."""
        size, width = self.block_bytes, len(run)
        while run:
            part = run[:width]
            try:
                got = move(self._file.fileno(), [p.data for p in part], part[0].block * size)
                wrong = f"{got} of {size} bytes {done}"
            except OSError as error:
                got, wrong = 0, f"not {done}: {error.strerror or error}"
            whole = got // size
            if whole == 0 and len(part) > 1:
                width = 1
            elif whole == 0:
                part[0].wrong = f"block {part[0].block}: {wrong}"
                whole = 1
            run = run[whole:]

    # ---- the page cache ----

    def _bypass_cache(self) -> bool:
        """Ask for O_DIRECT and try it: some file systems accept the flag and refuse the IO."""
        fd = self._file.fileno()
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            memory = disk_memory(2 * ALIGNMENT)
            memory.write(os.urandom(ALIGNMENT))
            data = memoryview(memory)
            sent, found = data[:ALIGNMENT], data[ALIGNMENT:]
            wrote = self._io.pwritev(fd, [sent], 0)
            read = self._io.preadv(fd, [found], 0)
            if wrote == read == ALIGNMENT and sent == found:
                return True
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return False

    def _forget_cached(self, run: list[BlockIo]) -> None:
        start, length = run[0].block * self.block_bytes, len(run) * self.block_bytes
        os.posix_fadvise(self._file.fileno(), start, length, os.POSIX_FADV_DONTNEED)


def _seconds(move: Callable[[Sequence[BlockIo]], None], pages: Sequence[BlockIo]) -> float:
    before_s = time.perf_counter()
    move(pages)
    spent_s = time.perf_counter() - before_s
    for page in pages:
        if page.wrong is not None:
            raise OSError(errno.EIO, f"the disk fails ({page.wrong}); name another one")
    return max(spent_s, 1e-9)


def _guarded(move: Callable[[list[BlockIo]], None], run: list[BlockIo]) -> None:
    try:
        move(run)
    except Exception as error:
        _spoil(run, f"{type(error).__name__}: {error}")


def _spoil(run: list[BlockIo], wrong: str) -> None:
    for page in run:
        page.wrong = page.wrong or f"block {page.block}: {wrong}"


def _reserve(directory: str, blocks: int, block_bytes: int) -> IO[bytes]:
    """A new file without a name, its space reserved. OSError with a sentence; nothing is left."""
    size = blocks * block_bytes
    asked = f"no swap file of {blocks} blocks ({_bytes(size)}) in {directory!r}"
    if blocks < 1:
        raise OSError(errno.EINVAL, f"{asked}: ask for at least one block")
    if not directory:
        raise OSError(errno.EINVAL, f"{asked}: name a directory")
    try:
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(tempfile.TemporaryFile(dir=directory, buffering=0))
            # Asked first, as a reservation that fails half-way fills the disk for that moment.
            room = os.fstatvfs(file.fileno())
            if room.f_blocks and size > room.f_bavail * room.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(file.fileno(), 0, size)
            undo.pop_all()
            return file
    except OSError as error:
        why = _UNMADE.get(error.errno or 0)
        if error.errno == errno.ENOENT and Path(directory).is_dir():
            why = "that file system makes no files for others; name a directory on another one"
        if why is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = _too_little_room(directory, block_bytes)
        raise OSError(error.errno, f"{asked}: {why or error.strerror or error}") from None
    except OverflowError:
        raise OSError(errno.EFBIG, f"{asked}: {_UNMADE[errno.EFBIG]}") from None
    except ValueError as error:
        raise OSError(errno.EINVAL, f"{asked}: {error}; name another directory") from None


def check_room(directory: str, size_bytes: int) -> None:
    """OSError ENOSPC if a file of that size has no room in a directory now. What else may be wrong
    with it is said when the file is made."""
    try:
        room = os.statvfs(directory)
    except (OSError, ValueError):
        return
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and size_bytes > free:
        raise OSError(
            errno.ENOSPC,
            f"no swap file of {_bytes(size_bytes)} in {directory!r}: {_bytes(free)} are free; "
            "ask for less, make room, or name a directory on another disk",
        )


def _too_little_room(directory: str, block_bytes: int) -> str:
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    return (
        f"{_bytes(free)} are free there, or less by a quota; ask for at most {free // block_bytes} "
        f"blocks, make room, or name a directory on another disk"
    )


def _bytes(count: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"
