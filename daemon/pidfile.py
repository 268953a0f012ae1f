"""The pid file, beside the socket. The lock on the socket says who lives (`syscalls/wire`); this
says it to scripts."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Self


class PidFile:
    """`PATH` with our pid, whole at any time; what a dead daemon has left is replaced."""

    def __init__(self, path: Path) -> None:
        """OSError: it cannot be written there."""
        self.path = path
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            draft.write_text(f"{os.getpid()}\n", encoding="ascii")
            draft.replace(path)
        except OSError as why:
            draft.unlink(missing_ok=True)
            number = why.errno or errno.EIO
            raise OSError(number, f"cannot write {path}: {os.strerror(number)}") from None

    @classmethod
    def beside(cls, socket: Path) -> Self:
        """tokenix.pid of tokenix.sock: each daemon has one of its own."""
        return cls(socket.with_suffix(".pid" if socket.suffix != ".pid" else ".pid.pid"))

    def remove(self) -> None:
        """If it is still ours. Idempotent."""
        with contextlib.suppress(OSError, ValueError):
            if int(self.path.read_text(encoding="ascii")) == os.getpid():
                self.path.unlink()
