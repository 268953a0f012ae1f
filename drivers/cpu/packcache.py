"""Packed weights of models in files of the user's cache folder, mapped at the next start.

    file   [weights as they are packed, whole pages][sum of each part][size][key][seal]

    name   says of which model: its files as they lie there, its configuration, the kind of weights
    key    says what else they depend on: the code that packs, and the processor
    seal   a digest of sums, size and key

A model whose files were changed, or replaced, has another name; for other code or another processor
the file is replaced. All parts are summed before any is used: what is damaged, or was half written
when the power failed, is packed again. So nothing waits for the disk when it is kept.

Files are written under another name first, and never changed afterwards: two processes that start
at once both write one, and the second takes the place of the first, which stays mapped where it is.
They may only be read: who cuts one off in place kills each process that has it mapped (SIGBUS).
What cannot be read or written is a note, never an error.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from io import FileIO
from pathlib import Path

import numpy as np

from tokenix import models
from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.checksum import checksum
from tokenix.drivers.cpu.jit import Array, host_context
from tokenix.drivers.cpu.team import get_threads
from tokenix.drivers.usercache import cache_folder
from tokenix.models.config import ModelConfig

LIMIT_BYTES = 16 << 30
"""Of all files together; the ones that were used longest ago make room."""
LEAST_BYTES = 16 << 20
"""What is smaller is packed in less time than is worth a file."""
YOUNG_S = 60.0
"""A file in the writing that is younger may not have its lock yet."""
PAGE = 4096
PART_BYTES = 32 << 20
"""That are read, summed and written at a time."""
_KEY_BYTES = _SEAL_BYTES = hashlib.sha256().digest_size
_END_BYTES = 8 + _KEY_BYTES + _SEAL_BYTES
_POPULATE_READ = 22
"""MADV_POPULATE_READ (Linux 5.14): has pages in place, and fails where touching would kill."""


def take_packed(
    keep: "PackCache | None",
    kind: str,
    config: ModelConfig,
    size_bytes: int,
    fill: Callable[[Array], None],
) -> Array:
    """Packed weights of this kind, uint8 [size_bytes]: kept ones, or such as `fill` packs into
    zeros, which are then kept. Nobody writes them afterwards."""
    pages = -(-size_bytes // PAGE) * PAGE
    run = None if keep is None else keep.load(kind, config, pages)
    if run is None:
        run = aligned_empty((pages,), np.dtype(np.uint8))
        fill(run[:size_bytes])
        if keep is not None:
            keep.store(kind, config, run)
    return run[:size_bytes]


class PackCache:
    """What is kept of one model. For one thread at a time.

    model: names its files as they lie there; folder: None is the user's.
    """

    def __init__(
        self,
        model: str,
        folder: Path | None = None,
        limit_bytes: int = LIMIT_BYTES,
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        self._model = model
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._least_bytes = least_bytes
        self.notes: list[str] = []
        """What went wrong: a line each."""

    def load(self, kind: str, config: ModelConfig, size_bytes: int) -> Array | None:
        """The kept ones, uint8 [size_bytes], mapped; None if there are none, or not these."""
        try:
            path = self._path(kind, config)
            _drop_abandoned(path.parent)
            with path.open("rb") as file:
                run = _map(file.fileno(), size_bytes)
            with suppress(OSError):
                os.utime(path)  # used just now
        except (FileNotFoundError, NotADirectoryError, RuntimeError):
            return None
        except (OSError, ValueError) as why:
            self.notes.append(f"packed weights in {path}: {_said(why)}; they are packed again")
            return None
        return run

    def store(self, kind: str, config: ModelConfig, run: Array) -> None:
        """Keep these, uint8 of whole pages."""
        if len(run) < self._least_bytes:
            return
        try:
            path = self._path(kind, config)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(path, len(run))
            _write(path, run)
        except (OSError, RuntimeError) as why:
            self.notes.append(f"packed weights are not kept, each start packs them: {_said(why)}")

    def _path(self, kind: str, config: ModelConfig) -> Path:
        """RuntimeError: the user has no home directory."""
        folder = cache_folder() / "weights" if self._folder is None else self._folder
        of = repr((self._model, replace(config, name="")))
        return folder / f"{kind}-{hashlib.sha256(of.encode()).hexdigest()[:32]}.weights"

    def _make_room(self, path: Path, size_bytes: int) -> None:
        """For a file in the place of `path`. OSError: it would be too large."""
        if size_bytes > self._limit_bytes:
            raise OSError(
                errno.EFBIG,
                f"{size_bytes >> 20} MiB, where {self._limit_bytes >> 20} MiB at most are kept",
            )
        found = [each for each in _files(path.parent, ".weights") if each[2] != path]
        room = self._limit_bytes - size_bytes
        for _, taken, each in found:
            room -= taken
            if room < 0:
                each.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < 2 * size_bytes:
            raise OSError(
                errno.ENOSPC,
                f"{path.parent} has {free >> 20} MiB left, and needs twice their "
                f"{size_bytes >> 20} MiB",
            )


def _files(folder: Path, suffix: str) -> list[tuple[float, int, Path]]:
    """(last used, bytes, path) of each, the latest first."""
    found = []
    for path in folder.glob(f"*{suffix}"):
        with suppress(FileNotFoundError):  # another process made room
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    return sorted(found, reverse=True)


def _drop_abandoned(folder: Path) -> None:
    """What killed processes had begun to write. At each start: the one after a kill finds it too
    young, and those that follow may have nothing to write."""
    with suppress(OSError):
        for last_used_s, _, path in _files(folder, ".new"):
            if time.time() - last_used_s > YOUNG_S and _is_abandoned(path):
                path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Whether who wrote it has died."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _write(path: Path, run: Array) -> None:
    """At once as a whole, whoever else writes it too."""
    handle, name = tempfile.mkstemp(".new", f"{path.stem}-", path.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            sums = b""
            for start in range(0, len(run), PART_BYTES):
                part = run[start : start + PART_BYTES]
                sums += _sum(part)
                _write_all(file, part)
            tail = sums + len(run).to_bytes(8, "little") + _key()
            _write_all(file, np.frombuffer(tail + _seal(tail), np.uint8))
            os.fchmod(file.fileno(), 0o400)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _write_all(file: FileIO, data: Array) -> None:
    while len(data):
        data = data[file.write(data.data) :]


def _map(file: int, size_bytes: int) -> Array | None:
    """The weights of a file, all of which are as they were written; None if other code, or code for
    another processor, has packed them. OSError, ValueError: it is damaged, or cannot be read.

    In large pages where the file system has them. It is mapped such that it could be written to,
    which would not change the file: for kernels, read-only arrays are of another type."""
    data = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    with suppress(OSError):  # a kernel without them
        data.madvise(mmap.MADV_HUGEPAGE)
    kept = np.frombuffer(data, np.uint8)
    size = int.from_bytes(data[-_END_BYTES:][:8], "little")
    parts = -(-size // PART_BYTES)
    if len(data) != size + 8 * parts + _END_BYTES:
        raise ValueError("cut off or damaged")
    tail = data[size:-_SEAL_BYTES]
    if data[-_SEAL_BYTES:] != _seal(tail):
        raise ValueError("damaged")
    if size != size_bytes or tail[-_KEY_BYTES:] != _key():
        return None

    def is_whole(part: int) -> bool:
        start = part * PART_BYTES
        rows = kept[start : min(start + PART_BYTES, size)]
        _populate(data, start, len(rows))
        return _sum(rows) == tail[8 * part : 8 * part + 8]

    with ThreadPoolExecutor(get_threads(), "tokenix-check") as pool:
        if not all(pool.map(is_whole, range(parts))):
            raise ValueError("damaged")
    return kept[:size]


def _populate(data: mmap.mmap, start: int, length: int) -> None:
    """Have pages in place. OSError: the disk cannot read them."""
    try:
        data.madvise(_POPULATE_READ, start, length)
    except OSError as why:
        if why.errno != errno.EINVAL:  # a kernel that does not know it: they come when touched
            raise


def _said(why: Exception) -> str:
    return str(why.strerror if isinstance(why, OSError) else why)


def _sum(part: Array) -> bytes:
    return int(checksum(part.view(np.uint64))).to_bytes(8, "little")


def _seal(tail: bytes) -> bytes:
    return hashlib.sha256(tail).digest()


@cache
def _key() -> bytes:
    """Of all that packed weights depend on besides the model."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, *map(Path, models.__path__)):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    versions = np.__version__, _version("gguf")
    digest.update(repr((versions, host_context().codegen().magic_tuple())).encode())
    return digest.digest()


def _version(distribution: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return ""
