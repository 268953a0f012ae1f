"""The pid file, beside the socket. The lock on the socket says who lives (`syscalls/wire`); this
says it to scripts."""

import contextlib
import os
from pathlib import Path


class PidFile:
    """`PATH` with our pid, whole at any time; what a dead daemon has left is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(f"{os.getpid()}\n", encoding="ascii")
        draft.replace(path)

    def remove(self) -> None:
        """If it is still ours. Idempotent."""
        with contextlib.suppress(OSError, ValueError):
            if int(self.path.read_text(encoding="ascii")) == os.getpid():
                self.path.unlink()
