"""A small paged world for attention kernels: random pages, tables, queries."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.kernels.oracles import write_heads
from tokenix.drivers.cuda.kernels.pages import Page, layer_words

LOG2_E = np.log2(np.e)


@dataclass(frozen=True)
class World:
    """Rows with keys up to `positions`, each in a slot of its own, in frames of two layers of which
    the second is asked for. What no row may see is not-a-number."""

    page: Page
    group: int
    kv_heads: int
    positions: np.ndarray
    slots: np.ndarray
    tables: np.ndarray
    max_pages: int
    arena: np.ndarray
    layer_at: int
    frame_words: int
    q: np.ndarray

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    @property
    def scale(self) -> np.float32:
        return np.float32(LOG2_E / np.sqrt(self.page.dim))

    @property
    def attention(self) -> tuple[Any, ...]:
        """The arguments of `abi.DECODE` up to the positions."""
        return self.q, self.arena, self.tables, self.slots, self.positions

    @property
    def strides(self) -> tuple[Any, ...]:
        return self.layer_at, self.frame_words, self.kv_heads, self.max_pages


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def make_world(
    kind: Any, dim: int, group: int, kv_heads: int, positions: list[int], seed: int
) -> World:
    """Frames are given out in random order; frame 0 and the rest of last pages are poisoned."""
    random = np.random.default_rng(seed)
    page = Page(kind, dim)
    layer_at = layer_words(kind, dim, kv_heads)
    frame_words = 2 * layer_at
    pages = [position // PAGE_TOKENS + 1 for position in positions]
    max_pages, frames = max(pages) + 1, sum(pages) + 1
    slots = np.arange(1, len(positions) + 1, dtype=np.int32)  # no row has the slot of its number
    tables = np.zeros((len(positions) + 1, max_pages), np.int32)
    free = iter(random.permutation(np.arange(1, frames)))
    arena = np.full(frames * frame_words, 0xFFFFFFFF, np.uint32)
    for slot, position in zip(slots, positions, strict=True):
        for first in range(0, position + 1, PAGE_TOKENS):
            frame = tables[slot, first // PAGE_TOKENS] = next(free)
            for inside in range(min(PAGE_TOKENS, position + 1 - first)):
                at = frame * frame_words + layer_at + inside * page.token_words
                heads = random.standard_normal((2 * kv_heads, dim)) * 2
                write_heads(page, arena, int(at), inside, heads)
    rows, heads = len(positions), group * kv_heads
    return World(
        page, group, kv_heads, frozen(np.array(positions, np.int32)), frozen(slots),
        frozen(tables.reshape(-1)), max_pages, frozen(arena), layer_at, frame_words,
        frozen(random.standard_normal(rows * heads * dim).astype(np.float32) * 2),
    )  # fmt: skip


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, as a share of the largest number wanted; not-a-number if any is."""
    return float(np.abs(found - wanted).max() / max(1e-30, np.abs(wanted).max()))
