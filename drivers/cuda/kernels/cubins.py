"""Machine code kept in files, under names that say all it depends on.

    name   <op>-<technique>-<sha256 of sources, variant, architecture, compilers>.cubin
    file   [sha256 of the rest, 32 bytes] [cubin]

It is looked for in the package (`shipping.py`), then in a folder of the user; then it is compiled.
Of sources that have changed since, nothing is found. A file that is damaged or cut short counts for
nothing; where nothing can be written, nothing is kept.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenix.drivers.cuda.kernels.build import Arch, compiler_versions
from tokenix.drivers.usercache import cache_folder

_HERE = Path(__file__).parent

SHIPPED = _HERE / "shipped"
"""What an installed package brings. A checkout has it after `make cuda-aot`."""


@cache
def source_digest() -> bytes:
    """Of all sources of this folder: an edited callee changes what calls it."""
    digest = hashlib.sha256()
    for path in sorted([*_HERE.glob("*.py"), *_HERE.glob("*.cu*")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def default_folder() -> Path:
    """Of the user, beside the CPU's compiled code."""
    with contextlib.suppress(RuntimeError):
        return cache_folder() / "cubins"
    return Path(tempfile.gettempdir()) / f"tokenix-cubins-{os.getuid()}"


def file_name(name: str, variant: str, arch: Arch, compilers: str = "") -> str:
    """Where machine code is kept. Without `compilers` for what is shipped: it was compiled by
    the pinned ones, which a machine with a GPU need not have."""
    key = hashlib.sha256(source_digest())
    key.update(repr((name, variant, arch, compilers)).encode())
    return f"{name}-{key.hexdigest()[:32]}.cubin"


def read_cubin(path: Path) -> bytes | None:
    """What is kept there; None if nothing is, or not all of it."""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return data[32:]
    return None


def write_cubin(path: Path, cubin: bytes) -> None:
    """At once as a whole, whoever else writes it too. OSError if it cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(cubin).digest() + cubin)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Cubins:
    """Two folders of machine code: the user's, and what the package has brought."""

    def __init__(self, folder: Path, shipped: Path = SHIPPED) -> None:
        self.folder = folder
        self.shipped = shipped

    def find(self, name: str, variant: str, arch: Arch, build: Callable[[], bytes]) -> bytes:
        """What is shipped or kept, or what `build` gives, which is kept. Code of one minor version
        also runs on later ones of the same major."""
        for made_for in dict.fromkeys((arch, (arch[0], 0))):
            shipped = read_cubin(self.shipped / file_name(name, variant, made_for))
            if shipped is not None:
                return shipped
        path = self.folder / file_name(name, variant, arch, compiler_versions())
        kept = read_cubin(path)
        if kept is not None:
            return kept
        cubin = build()
        with contextlib.suppress(OSError):
            write_cubin(path, cubin)
        return cubin
