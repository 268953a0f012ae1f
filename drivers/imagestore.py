"""A directory of process images on a real disk, for any driver.

    DIRECTORY/.lock                  held while a kernel uses it, and let go by the kernel's death
    DIRECTORY/saved/TENANT/NAME.img
    DIRECTORY/idle/NUMBER.img
              .../.tmp-FILE          being written; removed when the directory is opened next

A file is written under another name, is brought to the disk (fsync) and then gets its own name,
which is brought to the disk too. So there is all of it or nothing, whenever the power goes. Files
and folders are for this user only: they hold what people have said.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenix.drivers.imagefile import PREAMBLE_BYTES, BadImage, Head, measure, parse
from tokenix.drivers.swapfile import DiskIo

LOCK, SUFFIX, TEMPORARY = ".lock", ".img", ".tmp-"

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


class ImageStore:
    """One thread uses it. OSError for what the file system refuses, BadImage for what is damaged;
    both say why."""

    def __init__(self, io: DiskIo | None = None) -> None:
        self._io = io or DiskIo()
        self._root: Path | None = None
        self._lock = -1

    def open(self, directory: str) -> tuple[tuple[str, int], ...]:
        """Take a directory, made if it is missing; (path, bytes) of every image in it."""
        if not directory:
            raise OSError(errno.EINVAL, "name a directory")
        root = Path(directory)
        with contextlib.suppress(FileExistsError):
            root.mkdir(_FOLDER_MODE)
        lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise OSError(
                errno.EBUSY, "another kernel keeps its images there; name another directory"
            ) from None
        self.close()
        self._lock, self._root = lock, root
        found = []
        for folder in ("saved", "idle"):
            (root / folder).mkdir(_FOLDER_MODE, exist_ok=True)
            for path in sorted(_files(root / folder)):
                if path.name.startswith(TEMPORARY):
                    path.unlink()
                elif path.suffix == SUFFIX:
                    found.append((path.relative_to(root).as_posix(), path.stat().st_size))
        return tuple(found)

    def close(self) -> None:
        """Let the directory go. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self._root = -1, None

    def save(self, path: str, head: Head, pages: Sequence[memoryview]) -> int:
        """Write a file; its size. `pages` are padded."""
        target = self._place(path)
        temporary = target.with_name(TEMPORARY + target.name)
        _make_folder(target.parent)
        room = os.statvfs(target.parent)
        if room.f_blocks and head.file_bytes > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with _opened(temporary, flags) as fd:
                self._write(fd, memoryview(head.pack()), 0)
                for number, page in enumerate(pages):
                    self._write(fd, page, head.offset(number))
                self._io.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._io.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        with _opened(target.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
            self._io.fsync(folder)
        return head.file_bytes

    def read(self, path: str) -> Head:
        """The head of a file."""
        with self._reading(path) as fd:
            return self._head(fd)

    def load(
        self, path: str, digest: bytes, pages: Sequence[tuple[int, memoryview]]
    ) -> tuple[Head, list[bool]]:
        """Fill the memory of some pages of the file whose head has that digest; which are whole.
        Their checksums are in the head."""
        with self._reading(path) as fd:
            head = self._head(fd)
            if head.digest != digest:
                raise BadImage(errno.EBADMSG, "it is another image than before")
            whole = [
                number < head.pages and self._read(fd, data, head.offset(number), head.page_bytes)
                for number, data in pages
            ]
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return head, whole

    def unlink(self, path: str) -> None:
        self._place(path).unlink()

    # ---- inside ----

    def _place(self, path: str) -> Path:
        if self._root is None:
            raise OSError(errno.EINVAL, "there is no image directory")
        parts = path.split("/")
        assert all(part and not part.startswith(".") for part in parts), path
        return self._root.joinpath(*parts)

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[int]:
        with _opened(self._place(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) as fd:
            yield fd

    def _head(self, fd: int) -> Head:
        size = os.fstat(fd).st_size
        preamble = bytearray(PREAMBLE_BYTES)
        if not self._read(fd, memoryview(preamble), 0, PREAMBLE_BYTES):
            raise BadImage(errno.EBADMSG, "it is too short for an image")
        data = bytearray(measure(bytes(preamble), size))
        if not self._read(fd, memoryview(data), 0, len(data)):
            raise BadImage(errno.EBADMSG, "its head is cut off")
        return parse(bytes(data))

    def _write(self, fd: int, data: memoryview, offset: int) -> None:
        done = 0
        while done < len(data):
            got = self._io.pwritev(fd, [data[done:]], offset + done)
            if got <= 0:
                raise OSError(errno.EIO, f"{done} of {len(data)} bytes written")
            done += got

    def _read(self, fd: int, data: memoryview, offset: int, need: int) -> bool:
        """Whether at least `need` bytes of what `data` has room for were there."""
        done = 0
        while done < len(data):
            got = self._io.preadv(fd, [data[done:]], offset + done)
            if got <= 0:
                break
            done += got
        return done >= need


def _files(folder: Path) -> Iterator[Path]:
    """Files in a folder and in those within, but no links."""
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        with _opened(folder.parent, os.O_RDONLY | os.O_DIRECTORY) as parent:
            os.fsync(parent)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, _FILE_MODE)
    try:
        yield fd
    finally:
        os.close(fd)
