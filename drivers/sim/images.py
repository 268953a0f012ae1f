"""Images in virtual time: real file bytes in a dictionary, which outlives the device.

A save appears at its end, whole, as a rename makes it. Two devices that are given the same
`ImageFiles` are a kernel before and after a restart.
"""

import errno
import os
import struct
from dataclasses import dataclass, field

from tokenix.drivers.imagefile import PREAMBLE_BYTES, BadImage, Head, cut, measure, parse
from tokenix.drivers.ops import (
    ImageCommand,
    ImageDone,
    LoadImage,
    OpenImages,
    PageLoad,
    ReadImage,
    SaveImage,
    UnlinkImage,
)
from tokenix.drivers.sim.faults import Fault, struck
from tokenix.drivers.sim.store import PageImage
from tokenix.drivers.sim.swap import Tier


@dataclass(slots=True)
class ImageFiles:
    """A directory of images. Tests look into it and spoil it."""

    capacity_bytes: int = 1 << 40
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return sum(len(data) for data in self.files.values())

    def flip(self, path: str, place: int, bit: int = 1) -> None:
        """Damage one byte."""
        data = bytearray(self.files[path])
        data[place] ^= bit
        self.files[path] = bytes(data)


class ImageWork:
    """One command on the image queue; `start` and `finish` are called when it begins and ends."""

    def __init__(
        self, command: ImageCommand, files: ImageFiles, host: Tier, page_tokens: int,
        faults: list[Fault],
    ) -> None:  # fmt: skip
        self._command = command
        self._files = files
        self._host = host
        self._cells = page_tokens
        self._page = struct.Struct(f"<{page_tokens + 2}Q")
        self._faults = faults

    def start(self) -> None:
        if isinstance(self._command, LoadImage):
            for page in self._command.pages:
                self._host.unpublish(page.slot)

    def finish(self) -> ImageDone:
        command = self._command
        if any(fault.kind.startswith("fail_") for fault in self._faults):
            bad = range(len(command.pages)) if isinstance(command, LoadImage) else ()
            return ImageDone(command.ticket, errno.EIO, "planned image fault", bad=tuple(bad))
        try:
            match command:
                case OpenImages():
                    files = sorted(self._files.files.items())
                    known = tuple((path, len(data)) for path, data in files)
                    return ImageDone(command.ticket, files=known)
                case SaveImage():
                    return self._save(command)
                case ReadImage():
                    head = self._head(command.path)
                    return ImageDone(
                        command.ticket, meta=head.meta, digest=head.digest, pages=head.pages
                    )
                case LoadImage():
                    return self._load(command)
                case UnlinkImage():
                    self._data(command.path)
                    del self._files.files[command.path]
                    return ImageDone(command.ticket)
        except BadImage as why:
            bad = range(len(command.pages)) if isinstance(command, LoadImage) else ()
            return ImageDone(command.ticket, why.errno, why.reason, bad=tuple(bad))

    def _data(self, path: str) -> bytes:
        data = self._files.files.get(path)
        if data is None:
            raise BadImage(errno.ENOENT, os.strerror(errno.ENOENT))
        return data

    def _head(self, path: str) -> Head:
        data = self._data(path)
        return parse(data[: measure(data[:PREAMBLE_BYTES], len(data))])

    def _save(self, command: SaveImage) -> ImageDone:
        images: list[PageImage | None] = []
        for page in command.pages:
            image = self._host.load(page.slot, page.generation)
            images.append(None if isinstance(image, str) or image.junk else image)
        checksums = cut([None if image is None else image.checksum() for image in images])
        head = Head(command.meta, checksums, self._page.size)
        whole = [image for image in images[: head.pages] if image is not None]
        data = head.pack() + b"".join(self._bytes(i).ljust(head.padded_page_bytes) for i in whole)
        old = len(self._files.files.get(command.path, b""))
        if self._files.used_bytes - old + len(data) > self._files.capacity_bytes:
            raise BadImage(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._files.files[command.path] = data
        for index in struck(self._faults, "corrupt_", head.pages):
            self._files.flip(command.path, head.offset(index) + 8)
        return ImageDone(command.ticket, size_bytes=len(data), pages=head.pages)

    def _load(self, command: LoadImage) -> ImageDone:
        head, data = self._head(command.path), self._data(command.path)
        if head.digest != command.digest:
            raise BadImage(errno.EBADMSG, "it is another image than before")
        bad = tuple(i for i, page in enumerate(command.pages) if not self._read(head, data, page))
        return ImageDone(command.ticket, bad=bad)

    def _read(self, head: Head, data: bytes, page: PageLoad) -> bool:
        if page.index >= head.pages or head.page_bytes != self._page.size:
            return False
        start = head.offset(page.index)
        image = self._image(data[start : start + head.page_bytes])
        if image is None or image.checksum() != head.checksums[page.index]:
            return False
        self._host.publish(page.slot, page.generation, image)
        return True

    # ---- pages as bytes ----

    def _bytes(self, image: PageImage) -> bytes:
        cells = image.cells + (0,) * (self._cells - len(image.cells))
        return self._page.pack(len(image.cells), image.entry, *cells)

    def _image(self, data: bytes) -> PageImage | None:
        if len(data) != self._page.size:
            return None
        count, entry, *cells = self._page.unpack(data)
        return PageImage("", entry, tuple(cells[:count])) if count <= self._cells else None
