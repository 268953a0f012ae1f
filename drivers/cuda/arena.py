"""Page frames on the GPU: one allocation, a frame contiguous over all layers, K and V.

    arena   frame 0 | frame 1 | ...              at a stride that is a multiple of 4096 bytes
    frame   [layer][K | V][kv head][page]        see kernels/README.md

The stride is that of host slots too, so that neighbouring pages move in one copy.
"""

from dataclasses import dataclass

from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.kernels.pages import Page
from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.swapfile import ALIGNMENT
from tokenix.models.config import ModelConfig

_POISON: dict[KvKind, int] = {"f32": 0x7FC00000, "f16": 0x7E007E00, "bf16": 0x7FC07FC0}
_POISON_CODES = 0xFFFFFFFF
"""Scales that are not a number."""


@dataclass(frozen=True, slots=True)
class FrameShape:
    """Sizes of one frame."""

    layers: int
    kv_heads: int
    page: Page
    """Of one head, K or V."""

    @classmethod
    def of(cls, config: ModelConfig, page_tokens: int, kind: KvKind) -> "FrameShape":
        """ValueError for pages of another size than the kernels have."""
        if page_tokens != PAGE_TOKENS:
            raise ValueError(
                f"page_tokens={page_tokens}: the cuda driver has pages of {PAGE_TOKENS} tokens"
            )
        return cls(config.layers, config.kv_heads, Page(kind, config.head_dim))

    @property
    def layer_words(self) -> int:
        return 2 * self.kv_heads * self.page.words

    @property
    def frame_bytes(self) -> int:
        return 4 * self.layers * self.layer_words

    @property
    def stride_bytes(self) -> int:
        """From one frame to the next."""
        return -(-self.frame_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def poison(self) -> int:
        """A word that makes every number that is read not-a-number."""
        return _POISON.get(self.page.kind, _POISON_CODES)


class FrameArena:
    """`frames` frames. The compute and swap-in streams write them."""

    def __init__(self, driver: CudaDriver, shape: FrameShape, frames: int) -> None:
        assert frames > 0
        self.shape = shape
        self.frames = frames
        self._driver = driver
        self.address = driver.alloc(frames * shape.stride_bytes)

    def close(self) -> None:
        self._driver.free(self.address)

    def at(self, pfn: int) -> int:
        """Address of a frame. IndexError if there is no such frame."""
        if not 0 <= pfn < self.frames:
            raise IndexError(f"frame {pfn} outside the arena of {self.frames}")
        return self.address + pfn * self.shape.stride_bytes
