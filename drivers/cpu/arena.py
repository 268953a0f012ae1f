"""The frame arena: KV pages, block-major, so that a page of all layers is one run of bytes.

frame     [layer][K | V][kv head][page of one head], padded to a multiple of 64 bytes

What a page of one head looks like is in `kvformat`.
"""

import contextlib
import math
import mmap
from dataclasses import dataclass

import numpy as np

from tokenix.drivers.cpu.jit import Array
from tokenix.drivers.cpu.kvformat import FORMATS, PageLayout, layout_of
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.kvkind import KvKind
from tokenix.models.config import ModelConfig

LINE_BYTES = 64
HUGE_BYTES = 2 << 20


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array in zeroed, page-aligned memory that costs nothing until it is touched.

    In huge pages where the system has them: what is read from end to end in each step would
    otherwise wait for the page tables.
    """
    count = math.prod(shape)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=private)
    if len(memory) >= HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel that was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=dtype, count=count).reshape(shape)


@dataclass(frozen=True, slots=True)
class PageShape:
    """Sizes of one frame."""

    layers: int
    kv_heads: int
    kind: KvKind
    pages: PageLayout
    """Of one head, K or V."""

    @classmethod
    def of(cls, config: ModelConfig, page_tokens: int, kind: KvKind) -> "PageShape":
        if page_tokens % LANES or page_tokens < LANES:
            raise ValueError(
                f"page_tokens={page_tokens} is not a multiple of {LANES}: the CPU device "
                f"computes {LANES} keys at a time; use {LANES} or a multiple"
            )
        pages = layout_of(kind, page_tokens, config.head_dim)
        return cls(config.layers, config.kv_heads, kind, pages)

    @property
    def page_tokens(self) -> int:
        return self.pages.page_tokens

    @property
    def layer_bytes(self) -> int:
        return 2 * self.kv_heads * self.pages.head_bytes

    @property
    def frame_bytes(self) -> int:
        return -(-self.layers * self.layer_bytes // LINE_BYTES) * LINE_BYTES


class FrameArena:
    """`frames` page frames in one array [frames, elements], of the dtype that the format is stored
    in. The device's threads write it."""

    def __init__(self, shape: PageShape, frames: int) -> None:
        assert frames > 0
        self.shape = shape
        self.frames = frames
        stored = FORMATS[shape.kind].stored
        self.data = aligned_empty((frames, shape.frame_bytes // stored.itemsize), stored)

    def page_bytes(self, pfn: int) -> Array:
        """The bytes of a frame, uint8 [frame_bytes], a view."""
        self.check(pfn)
        page: Array = self.data[pfn].view(np.uint8)
        return page

    def check(self, pfn: int) -> None:
        if not 0 <= pfn < self.frames:
            raise IndexError(f"frame {pfn} outside the arena of {self.frames}")

    def copy_frame(self, src: int, dst: int) -> None:
        self.check(src)
        self.check(dst)
        self.data[dst] = self.data[src]

    def poison(self, pfn: int) -> None:
        """Fill with not-a-number (codes: their scales), which every sum that reads it passes on to
        the logits."""
        self.check(pfn)
        self.data[pfn] = FORMATS[self.shape.kind].poison
