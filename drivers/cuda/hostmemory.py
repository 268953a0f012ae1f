"""Host memory that the GPU copies from and to: locked in place once, never per request."""

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.swapfile import disk_memory


def pinned_address(memory: mmap.mmap) -> int:
    """Where a mapping begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Staging:
    """A pinned buffer of `size` bytes for one thread's small copies, and views of parts of it."""

    def __init__(self, driver: CudaDriver, size: int) -> None:
        self._driver = driver
        self._memory = disk_memory(size)
        self.address = pinned_address(self._memory)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8, size)
        driver.pin(self.address, len(self._memory))

    def close(self) -> None:
        self._driver.unpin(self.address)
