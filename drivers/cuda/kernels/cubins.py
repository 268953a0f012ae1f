"""Machine code kept in files, under names that say all it depends on.

    name   <op>-<technique>-<sha256 of sources, variant, architecture, compilers>.cubin
    file   [sha256 of the rest, 32 bytes] [cubin]

A file that is damaged or cut short is made again; where nothing can be written, nothing is kept.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenix.drivers.cuda.kernels.build import Arch, compiler_versions

_HERE = Path(__file__).parent


@cache
def source_digest() -> bytes:
    """Of all sources of this folder: an edited callee changes what calls it."""
    digest = hashlib.sha256()
    for path in sorted([*_HERE.glob("*.py"), *_HERE.glob("*.cu*")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def default_folder() -> Path:
    """Of the user, beside the CPU's compiled code."""
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):
        return Path(shared).expanduser() / "tokenix" / "cubins"
    return Path(tempfile.gettempdir()) / f"tokenix-cubins-{os.getuid()}"


class Cubins:
    """A folder of machine code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str, variant: str, arch: Arch, build: Callable[[], bytes]) -> bytes:
        """What is kept, or what `build` gives, which is kept."""
        key = hashlib.sha256(source_digest())
        key.update(repr((name, variant, arch, compiler_versions())).encode())
        path = self.folder / f"{name}-{key.hexdigest()[:32]}.cubin"
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if hashlib.sha256(data[32:]).digest() == data[:32]:
                return data[32:]
        cubin = build()
        with contextlib.suppress(OSError):
            self._write(path, hashlib.sha256(cubin).digest() + cubin)
        return cubin

    def _write(self, path: Path, data: bytes) -> None:
        """At once as a whole, whoever else writes it too."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
