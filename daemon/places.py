"""The directories that a daemon will write in, tried before it loads a model in vain."""

import errno
import os
import stat
import tempfile
from pathlib import Path

from tokenix.daemon.options import ServeOptions


def check_places(socket: Path, options: ServeOptions) -> None:
    """OSError: an option names a place where nothing can be written. The directory of the socket
    is made if it is missing, as that of images is; that of the swap file is not."""
    _check("socket", socket.parent, made=True)
    _check_path("socket", socket)
    if options.http.uds and not options.no_http:
        _check_path("http.uds", Path(options.http.uds).expanduser().absolute())
    if options.swap_dir is not None:
        _check("swap-dir", Path(options.swap_dir), made=False)
    if options.image_dir is not None:
        _check("image-dir", Path(options.image_dir), made=True)


def _check_path(option: str, path: Path) -> None:
    """What is no socket is somebody's file, and is not replaced by one."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:  # there is none, or it cannot be made either, which is said when it is tried
        return
    if not is_socket:
        what = f"--{option}: {path} is there and is no socket; remove it, or name another path"
        raise OSError(errno.EEXIST, what)


def _check(option: str, folder: Path, made: bool) -> None:
    try:
        if made:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room for what is small: the number of a process")
    except OSError as why:
        reason = os.strerror(why.errno or errno.EIO)
        what = f"--{option}: cannot write in {folder}: {reason}; name a directory that you may"
        raise OSError(why.errno or errno.EIO, f"{what} write in") from None
