"""The header of a GGUF file: metadata and where each tensor lies.

    magic "GGUF", version u32, tensor count u64, metadata count u64
    metadata:  key string, type u32, value            (string = length u64, bytes)
    tensors:   name string, dims u32, size u64 each, type u32, offset u64
    padding to general.alignment, then the tensor data

The `gguf` package reads the same, but takes seconds over the arrays of a vocabulary.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenix.models.ggml_types import BY_ID, GgmlType
from tokenix.models.image_error import EINVAL, ENOEXEC, image_error
from tokenix.models.mapped_file import map_file

Field = int | float | bool | str | list["Field"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_MAX_DIMS, _MAX_NESTING, _MAX_NAME_BYTES = 4, 4, 65535


class Malformed(Exception):
    """The bytes are not a GGUF header; becomes an OSError with the file's name."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in the file. `shape` is [out, in] (slowest dimension first)."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    start: int
    """Bytes from the beginning of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A mapped GGUF file. Getters raise OSError EINVAL if a field has another type."""

    path: Path
    fields: dict[str, Field]
    tensors: dict[str, TensorInfo]
    data: mmap.mmap

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer field; a list of equal integers counts as one."""
        value = self.fields.get(key, default)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "a boolean", value)
        return value

    def strings(self, key: str) -> list[str]:
        value = self.fields.get(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(key, "a list of strings", value)
        return [v for v in value if isinstance(v, str)]

    def numbers(self, key: str) -> list[float]:
        value = self.fields.get(key)
        if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value):
            raise self._wrong(key, "a list of numbers", value)
        return [v for v in value if isinstance(v, int | float)]

    def _wrong(self, key: str, kind: str, value: Field | None) -> OSError:
        if value is None:
            return image_error(EINVAL, f"{self.path}: the GGUF metadata lacks {key}")
        return image_error(EINVAL, f"{self.path}: GGUF metadata {key} is not {kind}")


def read_header(path: Path) -> GgufHeader:
    """Map `path` and parse its header; no tensor data is read.

    Errors: OSError; ENOENT no file, EINVAL not GGUF, corrupt or cut, ENOEXEC a version or tensor
    type that is not supported.
    """
    data = map_file(path)
    if data[:4] != b"GGUF":
        raise image_error(
            EINVAL, f"{path}: not a GGUF file (it begins with {data[:4]!r}, not b'GGUF')"
        )
    try:
        return _Parser(path, data).header()
    except Malformed as error:
        raise image_error(EINVAL, f"{path}: damaged or cut off GGUF file: {error}") from None


class _Parser:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 4

    def header(self) -> GgufHeader:
        version = self.scalar("I")
        if version not in (2, 3):
            raise image_error(
                ENOEXEC,
                f"{self.path}: GGUF version {version} is not supported; supported: 2 and 3, "
                "little-endian",
            )
        tensor_count, field_count = int(self.scalar("Q")), int(self.scalar("Q"))
        # Each takes at least 24 or 13 bytes, so larger counts cannot be true.
        if tensor_count * 24 + field_count * 13 > self.size:
            raise Malformed(f"{tensor_count} tensors and {field_count} fields do not fit in it")
        fields: dict[str, Field] = {}
        for _ in range(field_count):
            key = self.string(_MAX_NAME_BYTES)
            fields[key] = self.value(int(self.scalar("I")), 0)
        raw = [self.tensor() for _ in range(tensor_count)]
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise Malformed(f"alignment {alignment!r} is not a power of two")
        start = -(-self.at // alignment) * alignment
        tensors = {info.name: info for info in (self.placed(info, start) for info in raw)}
        return GgufHeader(self.path, fields, tensors, self.data)

    def take(self, count: int) -> int:
        """Advance by `count` bytes; the position before."""
        before = self.at
        if count > self.size - before:
            raise Malformed(
                f"it ends at byte {self.size}, inside the header (needs {before + count})"
            )
        self.at = before + count
        return before

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(
            f"<{code}", self.data, self.take(struct.calcsize(code))
        )[0]
        return value

    def string(self, limit: int) -> str:
        length = int(self.scalar("Q"))
        if length > limit:
            raise Malformed(f"a name of {length} bytes")
        return self.decode(self.take(length), length)

    def decode(self, start: int, length: int) -> str:
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError:
            raise Malformed(f"the string at byte {start} is not UTF-8") from None

    def value(self, kind: int, nesting: int) -> Field:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string(self.size)
        if kind != _ARRAY or nesting == _MAX_NESTING:
            raise Malformed(f"unknown metadata type {kind} before byte {self.at}")
        item, count = int(self.scalar("I")), int(self.scalar("Q"))
        if item in _SCALARS:
            code = _SCALARS[item]
            start = self.take(count * struct.calcsize(code))
            if not count:
                return []
            values = np.frombuffer(self.data, np.dtype(f"<{code}"), count, start)
            listed: list[Field] = values.tolist()
            return listed
        if count * 8 > self.size - self.at:
            raise Malformed(f"an array of {count} items does not fit in it")
        if item == _STRING:
            return self.string_array(count)
        return [self.value(item, nesting + 1) for _ in range(count)]

    def string_array(self, count: int) -> list[Field]:
        """Vocabularies: the one loop here that is hot."""
        out: list[Field] = []
        at, data, size = self.at, self.data, self.size
        length_at: Callable[[mmap.mmap, int], tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            end = at + 8
            if end > size or (end := end + length_at(data, at)[0]) > size:
                raise Malformed(f"it ends at byte {size}, inside a string array")
            out.append(self.decode(at + 8, end - at - 8))
            at = end
        self.at = at
        return out

    def tensor(self) -> TensorInfo:
        name = self.string(_MAX_NAME_BYTES)
        dims = int(self.scalar("I"))
        if not 1 <= dims <= _MAX_DIMS:
            raise Malformed(f"tensor {name!r} has {dims} dimensions")
        sizes = [int(self.scalar("Q")) for _ in range(dims)]
        kind, offset = int(self.scalar("I")), int(self.scalar("Q"))
        if kind not in BY_ID:
            raise image_error(
                ENOEXEC, f"{self.path}: tensor {name} has the unknown ggml type {kind}"
            )
        ggml = BY_ID[kind]
        if sizes[0] % ggml.block or 0 in sizes:
            raise Malformed(f"tensor {name!r} of type {ggml.name} has impossible sizes {sizes}")
        count = 1
        for size in sizes:
            count *= size
        size_bytes = count // ggml.block * ggml.block_bytes
        return TensorInfo(name, ggml, tuple(reversed(sizes)), offset, size_bytes)

    def placed(self, info: TensorInfo, start: int) -> TensorInfo:
        begin = start + info.start
        if begin + info.size_bytes > self.size:
            raise Malformed(
                f"it has {self.size} bytes, but tensor {info.name} ends at byte "
                f"{begin + info.size_bytes}; download it again"
            )
        return TensorInfo(info.name, info.type, info.shape, begin, info.size_bytes)
