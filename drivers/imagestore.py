"""A directory of process images on a real disk, for any driver.

    DIRECTORY/.lock                  held while a kernel uses it, and let go by the kernel's death
    DIRECTORY/saved/TENANT/NAME.img
    DIRECTORY/idle/NUMBER.img
              .../.tmp-FILE          being written; removed when the directory is opened next

A file is written under another name, is brought to the disk (fsync) and then gets its own name,
which is brought to the disk too. So there is all of it or nothing, whenever the power goes. Files
and folders are for this user only: they hold what people have said.

Others may have put anything there. What is no regular file with a name that is text, in a place
as above, is no image: it is left alone, told of as a stray, and never waited for (a pipe, a
device).
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenix.drivers.imagefile import PREAMBLE_BYTES, BadImage, Head, measure, parse
from tokenix.drivers.swapfile import DiskIo

LOCK, SUFFIX, TEMPORARY = ".lock", ".img", ".tmp-"

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
# Neither waits for the other end of a pipe, nor takes a terminal.
_FILE = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a directory, by path."""

    images: tuple[tuple[str, int], ...] = ()
    """(path, bytes) of each."""
    strays: tuple[str, ...] = ()
    """Paths of what is none; bytes that are no text are escaped."""


class ImageStore:
    """One thread uses it. OSError for what the file system refuses, BadImage for what is damaged;
    both say why."""

    def __init__(self, io: DiskIo | None = None) -> None:
        self._io = io or DiskIo()
        self._root: Path | None = None
        self._lock = -1

    def open(self, directory: str) -> Listing:
        """Take a directory, made if it is missing; what is in it. That of the last `open` is let
        go; to open it once more is to look again."""
        if not directory:
            raise OSError(errno.EINVAL, "name a directory")
        if "\0" in directory:
            raise OSError(errno.EINVAL, "a path has no null character; name another directory")
        root = Path(directory)
        with contextlib.suppress(FileExistsError):
            root.mkdir(_FOLDER_MODE)
        if not self._holds(root):
            lock = _locked(root / LOCK)
            self.close()
            self._lock, self._root = lock, root
        return _listed(root)

    def close(self) -> None:
        """Let the directory go. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self._root = -1, None

    def save(self, path: str, head: Head, pages: Sequence[memoryview]) -> int:
        """Write a file; its size. `pages` are padded."""
        target = self._place(path)
        self._return_to_root()
        temporary = target.with_name(TEMPORARY + target.name)
        _make_folder(target.parent)
        room = os.statvfs(target.parent)
        if room.f_blocks and head.file_bytes > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            temporary.unlink(missing_ok=True)
            with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE) as fd:
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
        with _opened(target.parent, _FOLDER) as folder:
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
        """OSError EISDIR: a directory is in its place, and stays there."""
        self._place(path).unlink()

    # ---- inside ----

    def _place(self, path: str) -> Path:
        if self._root is None:
            raise OSError(errno.EINVAL, "there is no image directory")
        parts = path.split("/")
        assert all(part and not part.startswith(".") for part in parts), path
        return self._root.joinpath(*parts)

    def _holds(self, root: Path) -> bool:
        """Whether the lock of that directory, as it is there now, is ours."""
        if self._lock < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._lock), (root / LOCK).lstat())
        except OSError:
            return False

    def _return_to_root(self) -> None:
        """The directory may have been taken away, and made again."""
        root = self._root
        assert root is not None, "there is one"
        if self._holds(root):
            return
        try:
            root.mkdir(_FOLDER_MODE, exist_ok=True)
        except OSError as why:
            what = f"the image directory {str(root)!r} is gone ({why.strerror}); bring it back"
            raise OSError(why.errno, what) from None
        lock = _locked(root / LOCK)
        os.close(self._lock)
        self._lock = lock

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[int]:
        with _opened(self._place(path), os.O_RDONLY | _FILE) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadImage(errno.EBADMSG, "it is no regular file")
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


def check_directory(directory: str) -> None:
    """OSError if no images can be kept there now."""
    store = ImageStore()
    try:
        store.open(directory)
    except OSError as why:
        what = f"no images can be kept in {directory!r}: {why.strerror or why}"
        raise OSError(why.errno, what) from None
    finally:
        store.close()


def _locked(path: Path) -> int:
    """A lock that is ours until it is closed; OSError EBUSY if another kernel has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | _FILE, _FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise OSError(
            errno.EBUSY, "another kernel keeps its images there; name another directory"
        ) from None
    return lock


def _listed(root: Path) -> Listing:
    """What is in a directory of ours; what was being written when its last user died goes."""
    images: list[tuple[str, int]] = []
    strays: list[str] = []
    for name in ("saved", "idle"):
        _make_folder(root / name)
    tenants, others = _divided(root / "saved", stat.S_ISDIR)
    strays += others
    for folder in (*(Path(entry.path) for entry in tenants), root / "idle"):
        files, others = _divided(folder, stat.S_ISREG)
        strays += others
        for entry in files:
            if entry.name.startswith(TEMPORARY):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
            elif entry.name.startswith(".") or not entry.name.endswith(SUFFIX):
                strays.append(entry.path)
            else:
                size = entry.stat(follow_symlinks=False).st_size
                images.append((Path(entry.path).relative_to(root).as_posix(), size))
    told = sorted(_escaped(os.path.relpath(path, root)) for path in strays)
    return Listing(tuple(sorted(images)), tuple(told))


def _divided(
    folder: Path, wanted: Callable[[int], bool]
) -> tuple[list[os.DirEntry[str]], list[str]]:
    """Entries of the wanted mode with names that are text, and the paths of the others."""
    good: list[os.DirEntry[str]] = []
    others: list[str] = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return [], [str(folder)]
    for entry in entries:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:
            continue  # it went meanwhile
        if wanted(mode) and entry.name == _escaped(entry.name):
            good.append(entry)
        else:
            others.append(entry.path)
    return good, others


def _escaped(path: str) -> str:
    """Text in any case."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _make_folder(folder: Path) -> None:
    """It, and those above, unless they are there."""
    if not folder.is_dir():
        try:
            folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        except FileExistsError:
            what = f"{folder.name!r} there is no folder; move it away"
            raise OSError(errno.ENOTDIR, what) from None
        with _opened(folder.parent, _FOLDER) as parent:
            os.fsync(parent)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, _FILE_MODE)
    try:
        yield fd
    finally:
        os.close(fd)
