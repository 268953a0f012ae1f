"""The socket file of a server: one owner at a time, and what a crash has left is replaced.

Whoever listens holds a lock on `PATH.lock` as long as it lives, so that a file without a live owner
is known for what it is, and two that start at once cannot both take it.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

BACKLOG = 512


class Listener:
    """A listening Unix socket at `path`, readable and writable as `mode` says; its directory is
    made (0700) if it is missing. OSError: EADDRINUSE (another kernel listens there), EEXIST (a
    file that is no socket), EACCES and what else the file system says."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _lock(path)
        try:
            self.socket = _bind(path, mode)
            self._inode = path.stat().st_ino
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Stop listening and remove the file, if it is still ours. Idempotent."""
        self.socket.close()
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock)
        self._lock = -1


def _lock(path: Path) -> int:
    """A descriptor that holds the lock. EADDRINUSE, with the pid of its holder."""
    descriptor = os.open(
        f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise OSError(
            errno.EADDRINUSE,
            f"a kernel (pid {holder or 'unknown'}) listens at {path} already; stop it, or choose "
            "another path with --socket",
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _bind(path: Path, mode: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, f"{path} is there and is no socket; it is not replaced")
        path.unlink()  # its owner is dead, or it would hold the lock
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode of a socket file is that of the descriptor when it is bound: it is never open to
        # others, not even for a moment.
        os.fchmod(bound.fileno(), mode)
        bound.bind(os.fspath(path))
        path.chmod(mode)  # less what umask has taken
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
