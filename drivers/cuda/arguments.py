"""Arguments of a kernel as the bytes that a launch hands over: packed once, changed in place.

    block   [argument 0][padding][argument 1] ...        with the alignment of C
    extra   BUFFER, address of block, BUFFER_SIZE, address of its size, END

Packing anew costs more than the launch itself (a step of 32 layers has some hundred launches), so a
block is kept for each launch of a step and only what differs is written.
"""

import ctypes
import struct
from collections.abc import Mapping

from tokenix.drivers.cuda.kernels.abi import Op

_CODES = {"f32": "f", "f64": "d", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}
_BUFFER, _BUFFER_SIZE, _END = 1, 2, 0


class Block:
    """The arguments of one launch of `op`; `values` by name, all of them. Not for two threads."""

    def __init__(self, op: Op, values: Mapping[str, float]) -> None:
        assert set(values) == {arg.name for arg in op.args}, (op.name, sorted(values))
        self.op = op
        self._fields: dict[str, tuple[struct.Struct, int]] = {}
        size = 0
        for name, kind in op.args:
            field = struct.Struct("<Q" if kind.endswith("*") else "<" + _CODES[kind])
            size = -(-size // field.size) * field.size
            self._fields[name] = (field, size)
            size += field.size
        self._bytes = ctypes.create_string_buffer(size)
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER,
            ctypes.addressof(self._bytes),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            _END,
        )
        self.address = ctypes.addressof(self._extra)
        """What a launch is given."""
        self.set(**values)

    def set(self, **values: float) -> None:
        """Change some of them. They are read when the launch is made, not when it runs."""
        for name, value in values.items():
            field, at = self._fields[name]
            field.pack_into(self._bytes, at, value)


def unpack(op: Op, data: bytes) -> dict[str, float]:
    """Values by name of a block's bytes."""
    values: dict[str, float] = {}
    at = 0
    for name, kind in op.args:
        field = struct.Struct("<Q" if kind.endswith("*") else "<" + _CODES[kind])
        at = -(-at // field.size) * field.size
        (values[name],) = field.unpack_from(data, at)
        at += field.size
    return values
