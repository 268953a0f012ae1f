"""Where the socket of a kernel is, and whether a path can be one."""

import errno
import os
from pathlib import Path

VARIABLE = "TOKENIX_SOCKET"
MAX_PATH_BYTES = 107
"""Of the address of a Unix socket on Linux, which has 108 bytes with its NUL."""


def runtime_dir() -> Path:
    """The directory of a user's running things: $XDG_RUNTIME_DIR/tokenix, that of this user under
    /run/user, or ~/.cache/tokenix. It may not exist yet."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given:
        return Path(given) / "tokenix"
    usual = Path("/run/user") / str(os.getuid())
    base = usual if usual.is_dir() else Path.home() / ".cache"
    return base / "tokenix"


def socket_path(path: str | os.PathLike[str] | None = None) -> Path:
    """`path`, or what TOKENIX_SOCKET says, or `tokenix.sock` in the runtime directory. OSError
    ENAMETOOLONG: no Unix socket can have it; EINVAL: it is no path."""
    chosen = path if path is not None else os.environ.get(VARIABLE) or None
    found = runtime_dir() / "tokenix.sock" if chosen is None else Path(chosen)
    raw = os.fsencode(found)
    if len(raw) > MAX_PATH_BYTES:
        raise OSError(
            errno.ENAMETOOLONG,
            f"{found} has {len(raw)} bytes, the path of a Unix socket at most {MAX_PATH_BYTES}; "
            f"choose a shorter one with --socket or {VARIABLE}",
        )
    if b"\0" in raw or not found.name:
        raise OSError(errno.EINVAL, f"{str(found)!r} is no path of a socket")
    return found
