"""A safetensors file, mapped: u64 header length, JSON header, tensor data.

Read without the `safetensors` package, because numpy has no bfloat16 to give the tensors in.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenix.models.image_error import EINVAL, image_error
from tokenix.models.mapped_file import map_file

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `start` counts bytes from the beginning of the mapped file."""

    data: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int

    def raw(self) -> npt.NDArray[np.uint8]:
        """The bytes, a read-only view of the file, uint8 [size_bytes]."""
        return np.frombuffer(self.data, np.uint8, self.size_bytes, self.start)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Map `path`; no tensor data is read. OSError: ENOENT no file, EINVAL damaged or cut."""
    data = map_file(path)
    size = len(data)
    if size < 8:
        raise _damaged(path, f"it has {size} bytes")
    length = int.from_bytes(data[:8], "little")
    if length > min(_MAX_HEADER_BYTES, size - 8):
        raise _damaged(path, f"a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _tensor(path, data, 8 + length, name, entry) for name, entry in header.items()}


def _tensor(path: Path, data: mmap.mmap, base: int, name: str, entry: Any) -> StoredTensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, f"tensor {name} is described wrongly") from None
    count = 1
    for n in shape:
        count *= n
    item = DTYPE_BYTES.get(dtype)
    if begin < 0 or end < begin or min(shape, default=0) < 0:
        raise _damaged(path, f"tensor {name} is described wrongly")
    if base + end > len(data):
        raise _damaged(
            path,
            f"it has {len(data)} bytes, but tensor {name} ends at byte {base + end}; "
            "download it again",
        )
    if item is not None and count * item != end - begin:
        raise _damaged(path, f"tensor {name} of shape {list(shape)} has {end - begin} bytes")
    return StoredTensor(data, dtype, shape, base + begin, end - begin)


def _damaged(path: Path, why: str) -> OSError:
    return image_error(EINVAL, f"{path}: damaged or cut off safetensors file: {why}")
