"""The one way a program image fails to load: OSError with an errno and one line of text."""

import errno
from pathlib import Path

ENOENT = errno.ENOENT
EINVAL = errno.EINVAL
EIO = errno.EIO
ENOEXEC = errno.ENOEXEC


def image_error(code: int, message: str) -> OSError:
    """The OSError subclass of `code` (ENOENT gives FileNotFoundError); `message` in one line.

    ENOENT: a file or tensor is missing. EINVAL: the file is corrupt or contradicts itself.
    EIO: reading failed. ENOEXEC: the file is sound, but this engine does not run its kind.
    """
    return OSError(code, " ".join(message.split()))


def read_error(path: Path, error: OSError) -> OSError:
    """What the operating system said about `path`, as one line with the same errno."""
    code = error.errno or EIO
    if code == ENOENT:
        return image_error(code, f"{path}: no such file; give a model name or an existing path")
    return image_error(code, f"{path}: cannot be read: {error.strerror or error}")
