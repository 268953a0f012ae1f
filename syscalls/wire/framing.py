"""Frames: a length of 4 bytes, little-endian, then that many bytes of MessagePack."""

import errno
import struct

from msgspec import msgpack

LENGTH_BYTES = 4

_length = struct.Struct("<I").unpack_from
_encoder = msgpack.Encoder()


class FrameError(Exception):
    """The other side has sent what is no frame; `args` is errno and message."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, message)
        self.errno = number
        self.message = message


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._wanted = LENGTH_BYTES
        self.held_bytes = 0
        """Of a frame that has begun and is not complete."""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that these bytes complete. FrameError: of a length that no frame may have."""
        if self.held_bytes:
            self._parts.append(data)
            self.held_bytes += len(data)
            if self.held_bytes < self._wanted:
                return []
            data = b"".join(self._parts)
        frames, at, end = [], 0, len(data)
        self._wanted = LENGTH_BYTES
        while end - at >= LENGTH_BYTES:
            (size,) = _length(data, at)
            if not 0 < size <= self._limit_bytes:
                raise FrameError(
                    errno.EMSGSIZE, f"a frame of {size} bytes; it may have 1 to {self._limit_bytes}"
                )
            begin = at + LENGTH_BYTES
            if end - begin < size:
                self._wanted = LENGTH_BYTES + size
                break
            at = begin + size
            frames.append(data[begin:at])
        self.held_bytes = end - at
        self._parts = [data[at:]] if end > at else []
        return frames


def append_frame(
    out: bytearray, message: object, limit_bytes: int, encoder: msgpack.Encoder = _encoder
) -> bool:
    """Add a message to what is to be sent; False, and nothing added, if it is too large. Raises
    what msgspec does for values that cannot be sent, with nothing added either."""
    start = len(out)
    out += b"\0\0\0\0"
    try:
        encoder.encode_into(message, out, -1)
    except BaseException:
        del out[start:]
        raise
    size = len(out) - start - LENGTH_BYTES
    if size > limit_bytes:
        del out[start:]
        return False
    out[start : start + LENGTH_BYTES] = size.to_bytes(LENGTH_BYTES, "little")
    return True
