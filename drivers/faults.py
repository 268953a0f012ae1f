"""Hooks for tests of real drivers: delay, fail or corrupt what they do."""

import numpy as np
import numpy.typing as npt

from tokenix.drivers.ops import Command, PageOut
from tokenix.drivers.swapfile import DiskIo


class Faults(DiskIo):
    """Does nothing: subclass and override. The hooks run on the thread of the command's queue, and
    DiskIo's, which move the bytes of the swap file and of images, on threads of the files."""

    def before(self, command: Command) -> str | None:
        """Called before a command is done; may block. A reason makes the command fail whole."""
        return None

    def published(self, page: PageOut, data: npt.NDArray[np.uint8]) -> None:
        """Called after a page was published; may change `data`, the bytes of its slot."""
