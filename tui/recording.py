"""The file that `--record` writes and `--replay` reads: a line that says what it is, then a look on
each, as JSON; compressed if its name ends in `.gz`."""

import errno
import gzip
import os
import threading
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from tokenix.syscalls.types import Pid
from tokenix.tui.beside import Asker, Beside
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import Source, View

FORMAT: Final = "tokenix top 1"
LOOK: Final = Snapshot.__struct_fields__
FLUSH_LOOKS: Final = 10
"""So many looks at most are lost when the program is killed."""


class Recorded(Snapshot, frozen=True):
    """A look as it is written."""

    beside: Beside = Beside()


class Head(msgspec.Struct, frozen=True):
    format: str


class Moment(msgspec.Struct, frozen=True):
    """As much of a look as finding one needs."""

    taken_s: float


def nameless(look: Snapshot) -> Snapshot:
    """Without what processes are called: by default that is how their prompts begin."""
    replace = msgspec.structs.replace
    return replace(look, processes=tuple(replace(each, name="") for each in look.processes))


class Recorder:
    """A source that writes down what another one gives. OSError when made: no such file can be
    written."""

    def __init__(self, source: Source, path: Path, prompts: bool) -> None:
        self._source, self._prompts = source, prompts
        self._file = _open(path, "wb")
        self._asker = Asker(prompts)
        self._lock = threading.Lock()
        self._looks = 0
        self._write(Head(FORMAT))

    @property
    def can_act(self) -> bool:
        return self._source.can_act

    def pull(self) -> Snapshot:
        look = self._source.pull()
        beside = self._asker.ask(self._source.view(), look.time_s, look.figures)
        kept = look if self._prompts else nameless(look)
        self._write(Recorded(**{name: getattr(kept, name) for name in LOOK}, beside=beside))
        return look

    def watch(self, pids: Sequence[Pid]) -> None:
        self._source.watch(pids)

    def view(self) -> View:
        return self._source.view()

    def close(self) -> None:
        self._source.close()
        with self._lock:
            self._file.close()

    def _write(self, record: msgspec.Struct) -> None:
        with self._lock:
            if self._file.closed:
                return
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._looks += 1
            if self._looks % FLUSH_LOOKS == 1:
                self._file.flush()


def read_lines(path: Path) -> tuple[list[bytes], list[float]]:
    """The looks of a recording as they are written, and when each was taken: never before another
    one, even if the clock was put back. A last line that is not whole is left out. OSError: ENOENT
    and its like; EINVAL: it is no recording, or a line of it is damaged."""
    with _open(path, "rb") as file:
        try:
            lines = file.read().split(b"\n")
        except (gzip.BadGzipFile, EOFError) as problem:
            raise _no_recording(path, str(problem)) from None
    try:
        head = msgspec.json.decode(lines[0], type=Head)
    except msgspec.DecodeError:
        raise _no_recording(path, "its first line does not say so") from None
    if head.format != FORMAT:
        raise _no_recording(path, f"it is of the format {head.format!r}, not {FORMAT!r}")
    looks = lines[1:-1]
    if not looks:
        raise _no_recording(path, "there are no looks in it")
    decoder = msgspec.json.Decoder(Moment)
    times: list[float] = []
    for line in looks:
        try:
            times.append(decoder.decode(line).taken_s)
        except msgspec.DecodeError as problem:
            what = f"{os.fspath(path)}: line {len(times) + 2} is damaged: {problem}"
            raise OSError(errno.EINVAL, what) from None
    return looks, list(accumulate(times, max))


def _no_recording(path: Path, why: str) -> OSError:
    return OSError(errno.EINVAL, f"{os.fspath(path)} is no recording of tokenix top: {why}")


def _open(path: Path, mode: str) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, mode))
    return path.open(mode)
