"""The disk tier of a driver: pages between its host slots and the swap file.

The store thread opens and closes the file and stores; the fetch thread fetches. A slot is invalid
from the start of a fetch into it until its page was read and verified.
"""

import errno

from tokenix.drivers.ops import Fetch, Store, SwapChanged, SwapOff, SwapOn
from tokenix.drivers.slots import HostSlots
from tokenix.drivers.swapfile import BlockIo, DiskIo, SwapFile

Wrong = dict[int, str]
"""Index of a page in its command -> what was wrong with it."""


class DiskTier:
    """The swap file, if there is one, for the pages in `slots`."""

    def __init__(self, slots: HostSlots, io: DiskIo) -> None:
        self._slots = slots
        self._io = io
        self._file: SwapFile | None = None

    def change(self, command: SwapOn | SwapOff) -> SwapChanged:
        """Close the file there is; open and measure another one if asked to."""
        self.close()
        if isinstance(command, SwapOff):
            return SwapChanged(command.ticket, 0)
        try:
            slots = self._slots
            file = SwapFile(
                command.directory, command.blocks, slots.page_bytes, slots.checksum_of, self._io
            )
            try:
                rates = file.measure()
            except BaseException:
                file.close()
                raise
        except OSError as error:
            reason, number = error.strerror or str(error), error.errno or errno.EIO
            return SwapChanged(command.ticket, 0, reason=reason, error=number)
        self._file = file
        return SwapChanged(command.ticket, command.blocks, *rates)

    def close(self) -> None:
        """Wait for what is under way and give the file back. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def store(self, command: Store) -> Wrong:
        file = self._file
        if file is None:
            return dict.fromkeys(range(len(command.pages)), "there is no swap file")
        wrong: Wrong = {}
        pages: dict[int, BlockIo] = {}
        for i, page in enumerate(command.pages):
            try:
                found = self._slots.peek_checksum(page.slot, page.slot_generation)
                data = self._slots.peek_padded(page.slot)
            except IndexError as error:
                found = str(error)
            if isinstance(found, str):
                wrong[i] = found
            else:
                pages[i] = BlockIo(page.block, page.generation, data, found)
        file.store(list(pages.values()))
        return wrong | _failed(pages)

    def fetch(self, command: Fetch) -> Wrong:
        file = self._file
        if file is None:
            return dict.fromkeys(range(len(command.pages)), "there is no swap file")
        wrong: Wrong = {}
        pages: dict[int, BlockIo] = {}
        for i, page in enumerate(command.pages):
            try:
                self._slots.invalidate(page.slot)
                data = self._slots.peek_padded(page.slot)
                pages[i] = BlockIo(page.block, page.generation, data)
            except IndexError as error:
                wrong[i] = str(error)
        file.fetch(list(pages.values()))
        wrong |= _failed(pages)
        for i, page in enumerate(command.pages):
            if i not in wrong:
                self._slots.publish_filled(page.slot, page.slot_generation, pages[i].checksum)
        return wrong


def _failed(pages: dict[int, BlockIo]) -> Wrong:
    return {i: page.wrong for i, page in pages.items() if page.wrong is not None}
