"""Images of a driver: pages between its host slots and files. On the image thread."""

import errno

from tokenix.drivers.imagefile import BadImage, Head, cut
from tokenix.drivers.imagestore import ImageStore
from tokenix.drivers.ops import (
    ImageCommand,
    ImageDone,
    LoadImage,
    OpenImages,
    PageLoad,
    PageSave,
    ReadImage,
    SaveImage,
    UnlinkImage,
)
from tokenix.drivers.slots import HostSlots
from tokenix.drivers.swapfile import DiskIo


class ImageTier:
    """Image files for the pages in `slots`."""

    def __init__(self, slots: HostSlots, io: DiskIo) -> None:
        self._slots = slots
        self._store = ImageStore(io)

    def close(self) -> None:
        self._store.close()

    def done(self, command: ImageCommand, failed: str | None = None) -> ImageDone:
        """Do a command. `failed`: why it is not to be done."""
        if isinstance(command, LoadImage):
            for page in command.pages:
                self._slots.invalidate(page.slot)
        try:
            if failed is not None:
                raise OSError(errno.EIO, failed)
            match command:
                case OpenImages():
                    found = self._store.open(command.directory)
                    return ImageDone(command.ticket, files=found.images, strays=found.strays)
                case SaveImage():
                    return self._save(command)
                case ReadImage():
                    head = self._store.read(command.path)
                    return ImageDone(
                        command.ticket, meta=head.meta, digest=head.digest, pages=head.pages
                    )
                case LoadImage():
                    return self._load(command)
                case UnlinkImage():
                    self._store.unlink(command.path)
                    return ImageDone(command.ticket)
        except (BadImage, OSError) as why:
            reason = why.reason if isinstance(why, BadImage) else why.strerror or str(why)
            number = why.errno or errno.EIO
        except Exception as why:
            number, reason = errno.EIO, f"{type(why).__name__}: {why}"
        bad = range(len(command.pages)) if isinstance(command, LoadImage) else ()
        return ImageDone(command.ticket, number, reason, bad=tuple(bad))

    def _save(self, command: SaveImage) -> ImageDone:
        checksums = cut([self._verified(page) for page in command.pages])
        head = Head(command.meta, checksums, self._slots.page_bytes)
        data = [self._slots.peek_padded(page.slot) for page in command.pages[: head.pages]]
        size = self._store.save(command.path, head, data)
        return ImageDone(command.ticket, size_bytes=size, pages=head.pages)

    def _verified(self, page: PageSave) -> int | None:
        """The checksum of a slot that holds what was published there; None if it does not."""
        published = self._slots.peek_checksum(page.slot, page.generation)
        return published if published == self._checksum(page.slot) else None

    def _load(self, command: LoadImage) -> ImageDone:
        wanted = [(page.index, self._slots.peek_padded(page.slot)) for page in command.pages]
        head, whole = self._store.load(command.path, command.digest, wanted)
        fits = head.page_bytes == self._slots.page_bytes
        bad = [
            i
            for i, page in enumerate(command.pages)
            if not (fits and whole[i] and self._publish(head, page))
        ]
        return ImageDone(command.ticket, bad=tuple(bad))

    def _publish(self, head: Head, page: PageLoad) -> bool:
        if self._checksum(page.slot) != head.checksums[page.index]:
            return False
        self._slots.publish_filled(page.slot, page.generation, head.checksums[page.index])
        return True

    def _checksum(self, slot: int) -> int:
        return self._slots.checksum_of(self._slots.peek_padded(slot))
