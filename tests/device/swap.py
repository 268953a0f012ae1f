"""A swap file's bytes, reached around the driver."""

import os
from pathlib import Path

from tokenix.drivers.swapfile import SwapFile


def reopen(file: SwapFile) -> int:
    """A second descriptor of a file that has no name, through the page cache."""
    return os.open(Path("/proc/self/fd") / str(file._file.fileno()), os.O_RDWR)


def flip_bit(file: SwapFile, block: int) -> None:
    fd = reopen(file)
    try:
        offset = block * file.block_bytes + 100
        (byte,) = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte ^ 4]), offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def truncate(file: SwapFile, blocks: int) -> None:
    """Somebody shortens the file while it is in use."""
    fd = reopen(file)
    try:
        os.ftruncate(fd, blocks * file.block_bytes)
    finally:
        os.close(fd)
