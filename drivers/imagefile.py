"""The file of a process image, as bytes. Whoever reads one either gets what was written or refuses.

    0    magic, version, pages, page_bytes, meta_bytes, digest      48 bytes, little-endian
    48   meta                                                       what the kernel says of it
         table                                                      a checksum for each page
         zeros, up to a multiple of 4096
         page 0, page 1, ...                                        each padded to such a multiple

The digest covers every byte before page 0 but itself: of a head in which any byte is wrong nothing
is used. The pages have the checksums of the device that wrote them, and may be missing from the
end: they are only what would have to be computed again.
"""

import errno
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"TKXIMAGE"
VERSION = 1
ALIGNMENT = 4096
DIGEST_BYTES = 16

_PREAMBLE = struct.Struct(f"<8sIIQQ{DIGEST_BYTES}s")
PREAMBLE_BYTES = _PREAMBLE.size
_CHECKSUM_BYTES = 8


class BadImage(Exception):
    """A file that is not served: an errno and why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.errno = number
        self.reason = reason


def head_bytes(meta_bytes: int, pages: int) -> int:
    """Where page 0 begins."""
    return _padded(PREAMBLE_BYTES + meta_bytes + pages * _CHECKSUM_BYTES)


def file_bytes(meta_bytes: int, pages: int, page_bytes: int) -> int:
    """Size of a whole file."""
    return head_bytes(meta_bytes, pages) + pages * _padded(page_bytes)


@dataclass(frozen=True, slots=True)
class Head:
    """All of an image but its pages."""

    meta: bytes
    checksums: tuple[int, ...]
    """Of each page, 64 bits."""
    page_bytes: int
    digest: bytes = b""
    """Set by `parse`: names exactly this head."""

    @property
    def pages(self) -> int:
        return len(self.checksums)

    @property
    def padded_page_bytes(self) -> int:
        return _padded(self.page_bytes)

    @property
    def file_bytes(self) -> int:
        return file_bytes(len(self.meta), self.pages, self.page_bytes)

    def offset(self, page: int) -> int:
        """Where a page begins."""
        return head_bytes(len(self.meta), self.pages) + page * self.padded_page_bytes

    def pack(self) -> bytes:
        """The bytes before page 0."""
        size = head_bytes(len(self.meta), self.pages)
        table = struct.pack(f"<{self.pages}Q", *self.checksums)
        body = (self.meta + table).ljust(size - PREAMBLE_BYTES, b"\0")
        return _preamble(self, _digest(_preamble(self, bytes(DIGEST_BYTES)), body)) + body


def measure(preamble: bytes, file_bytes: int) -> int:
    """Bytes before page 0 of a file that begins so; BadImage if it cannot be an image."""
    if len(preamble) < PREAMBLE_BYTES:
        raise BadImage(errno.EBADMSG, "it is too short for an image")
    magic, version, pages, page_bytes, meta_bytes, _ = _PREAMBLE.unpack(preamble[:PREAMBLE_BYTES])
    if magic != MAGIC:
        raise BadImage(errno.EBADMSG, "it is no process image, or its first bytes are damaged")
    if version != VERSION:
        raise BadImage(
            errno.EINVAL, f"it has version {version} of the format, this is version {VERSION}"
        )
    size = head_bytes(meta_bytes, pages)
    if size > file_bytes or (pages and page_bytes < 1):
        raise BadImage(errno.EBADMSG, "its head is damaged or cut off")
    return size


def parse(head: bytes) -> Head:
    """The head from as many bytes as `measure` says. BadImage if any of them is wrong."""
    if measure(head, len(head)) != len(head):
        raise BadImage(errno.EBADMSG, "its head is damaged")
    _, _, pages, page_bytes, meta_bytes, digest = _PREAMBLE.unpack(head[:PREAMBLE_BYTES])
    body = head[PREAMBLE_BYTES:]
    blank = head[: PREAMBLE_BYTES - DIGEST_BYTES] + bytes(DIGEST_BYTES)
    if _digest(blank, body) != digest:
        raise BadImage(errno.EBADMSG, "its head does not have the checksum it was written with")
    checksums = struct.unpack_from(f"<{pages}Q", body, meta_bytes)
    return Head(bytes(body[:meta_bytes]), checksums, page_bytes, digest)


def cut(checksums: Sequence[int | None]) -> tuple[int, ...]:
    """The checksums up to the first page that could not be read."""
    known: list[int] = []
    for checksum in checksums:
        if checksum is None:
            break
        known.append(checksum)
    return tuple(known)


def _preamble(head: Head, digest: bytes) -> bytes:
    return _PREAMBLE.pack(MAGIC, VERSION, head.pages, head.page_bytes, len(head.meta), digest)


def _digest(preamble: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(preamble, digest_size=DIGEST_BYTES)
    digest.update(body)
    return digest.digest()


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
