"""CUDA C++ sources: each with what it includes, and the macros that make a variant of it."""

import re
from pathlib import Path

from tokenix.drivers.kvkind import KvKind

_HERE = Path(__file__).parent

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.M)

_KINDS: tuple[KvKind, ...] = ("f32", "f16", "bf16", "int8", "fp8", "int4")
"""In the order of the macros in prelude.cuh."""


def read_source(name: str) -> str:
    """`name`.cu as one text that includes nothing of this folder."""
    return _read(f"{name}.cu")


def _read(file: str) -> str:
    text = (_HERE / file).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _read(found[1]), text)


def defines(kv: KvKind, x: KvKind, group: int, dim: int, **others: int) -> list[str]:
    """KV, X, G, D and other macros, as NAME=value."""
    values = {"KV": _KINDS.index(kv), "X": _KINDS.index(x), "G": group, "D": dim, **others}
    return [f"{name}={int(value)}" for name, value in values.items()]
