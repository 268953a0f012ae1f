"""Hooks for tests of the real driver: delay, fail or corrupt what it does."""

from tokenix.drivers.cpu.jit import Array
from tokenix.drivers.ops import Command, PageOut
from tokenix.drivers.swapfile import DiskIo


class Faults(DiskIo):
    """Does nothing: subclass and override. The hooks run on the thread of the command's queue, and
    DiskIo's, which move the bytes of the swap file and of images, on threads of the files."""

    def before(self, command: Command) -> str | None:
        """Called before a command is done; may block. A reason makes the command fail whole."""
        return None

    def published(self, page: PageOut, data: Array) -> None:
        """Called after a page was published; may change `data`, the bytes of its slot."""
