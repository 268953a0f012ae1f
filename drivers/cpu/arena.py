"""The frame arena: KV pages, block-major, so that a page of all layers is one run of bytes.

frame     [layer][K | V][kv head][page of one head]
K page    [tokens / 16][head_dim][16 tokens]                 lanes are keys
V page    [tokens / 16][head_dim / 16][16 tokens][16 dims]   lanes are dimensions
"""

import mmap
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokenix.drivers.cpu.jit import Array
from tokenix.drivers.cpu.tile import LANES
from tokenix.models.config import ModelConfig

KvKind = Literal["f16", "bf16", "f32"]
KV_DTYPES: dict[KvKind, np.dtype[np.generic]] = {
    "f16": np.dtype(np.int16),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
}
"""What a key or value is stored as; int16 and uint16 hold the bits, see `tile`."""

_NAN: dict[KvKind, np.generic] = {
    "f16": np.int16(0x7E00),
    "bf16": np.uint16(0x7FC0),
    "f32": np.float32(np.nan),
}


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array in zeroed, page-aligned memory that costs nothing until it is touched."""
    count = int(np.prod(shape))
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=private)
    return np.frombuffer(memory, dtype=dtype, count=count).reshape(shape)


@dataclass(frozen=True, slots=True)
class PageShape:
    """Sizes of one frame, in elements of the KV dtype."""

    layers: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    kind: KvKind

    @classmethod
    def of(cls, config: ModelConfig, page_tokens: int, kind: KvKind) -> "PageShape":
        if page_tokens % LANES or page_tokens < LANES:
            raise ValueError(
                f"page_tokens={page_tokens} is not a multiple of {LANES}: the CPU device "
                f"computes {LANES} keys at a time; use {LANES} or a multiple"
            )
        return cls(config.layers, config.kv_heads, config.head_dim, page_tokens, kind)

    @property
    def head_elements(self) -> int:
        return self.page_tokens * self.head_dim

    @property
    def layer_elements(self) -> int:
        return 2 * self.kv_heads * self.head_elements

    @property
    def frame_elements(self) -> int:
        return self.layers * self.layer_elements

    @property
    def frame_bytes(self) -> int:
        return self.frame_elements * KV_DTYPES[self.kind].itemsize


class FrameArena:
    """`frames` page frames in one array [frames, frame_elements]. The device's threads write it."""

    def __init__(self, shape: PageShape, frames: int) -> None:
        assert frames > 0
        self.shape = shape
        self.frames = frames
        self.data = aligned_empty((frames, shape.frame_elements), KV_DTYPES[shape.kind])

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
        """Fill with not-a-number, which every sum that reads it passes on to the logits."""
        self.check(pfn)
        self.data[pfn] = _NAN[self.shape.kind]
