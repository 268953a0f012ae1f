"""A swap file with pages of known bytes, on a disk that fails, stalls and shortens on demand."""

import random
import threading
import zlib

from tokenix.drivers.swapfile import ALIGNMENT, BlockIo, DiskIo, SwapFile, disk_memory

PAGE = 5000
PADDED = 2 * ALIGNMENT
PATIENCE_S = 60.0


class Scripted(DiskIo):
    """Fails reads and writes that touch given blocks, shortens and holds them, and notes them."""

    def __init__(self):
        self.fails = {}
        self.short = {}
        """Block -> how many of its bytes are moved."""
        self.reads_pass = threading.Event()
        self.writes_pass = threading.Event()
        self.reads_pass.set()
        self.writes_pass.set()
        self.reached = threading.Event()
        self.calls = []

    def preadv(self, fd, buffers, offset):
        return self.move(super().preadv, fd, buffers, offset, self.reads_pass)

    def pwritev(self, fd, buffers, offset):
        return self.move(super().pwritev, fd, buffers, offset, self.writes_pass)

    def move(self, done, fd, buffers, offset, may_pass):
        self.calls.append((offset // PADDED, len(buffers)))
        if not may_pass.is_set():
            self.reached.set()
            assert may_pass.wait(PATIENCE_S)
        for i, block in enumerate(range(offset // PADDED, offset // PADDED + len(buffers))):
            if block in self.fails:
                raise self.fails[block]
            if block in self.short:
                buffers = [*buffers[:i], buffers[i][: self.short[block]]]
                break
        return done(fd, buffers, offset)


class Store:
    """A swap file with pages of known bytes, and memory for them."""

    def __init__(self, directory, blocks=8, io=None):
        self.io = io or Scripted()
        self.file = SwapFile(str(directory), blocks, PAGE, zlib.crc32, self.io)
        self.memory = memoryview(disk_memory(2 * blocks * PADDED))
        self.blocks = blocks
        for i in range(blocks):
            self.source(i)[:] = random.Random(i).randbytes(PADDED)
        self.io.calls.clear()

    def source(self, i):
        return self.memory[i * PADDED : (i + 1) * PADDED]

    def target(self, i):
        return self.source(self.blocks + i)

    def store(self, *blocks, generation=1):
        """Page i to the i-th of `blocks`. What was wrong, by block."""
        pages = [
            BlockIo(block, generation, self.source(i), zlib.crc32(self.source(i)))
            for i, block in enumerate(blocks)
        ]
        self.file.store(pages)
        return {page.block: page.wrong for page in pages if page.wrong}

    def fetch(self, *blocks, generation=1):
        """The i-th of `blocks` to target i. What was wrong; the rest are the bytes of page i."""
        pages = [BlockIo(block, generation, self.target(i)) for i, block in enumerate(blocks)]
        self.file.fetch(pages)
        for i, page in enumerate(pages):
            assert page.wrong or self.target(i) == self.source(i), "something else was served"
        return {page.block: page.wrong for page in pages if page.wrong}
