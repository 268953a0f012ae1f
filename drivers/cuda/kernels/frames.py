"""Whole frames copied or poisoned, and small pieces gathered: 16 bytes a thread and turn."""

from typing import Any

from tokenix.drivers.cuda.kernels.words import cuda, load4, store4

THREADS = 256
BLOCKS_PER_FRAME = 32
MOST_GATHER_BLOCKS = 16
"""A gather from host memory is bound by the link; more blocks would take more from others."""


def make_copy() -> Any:
    """The kernel `abi.COPY`."""

    def copy(arena: Any, pairs: Any, frame_words: Any) -> None:
        source = pairs[2 * cuda.blockIdx.y] * frame_words
        target = pairs[2 * cuda.blockIdx.y + 1] * frame_words
        at = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * 4
        while at < frame_words:
            store4(arena, target + at, load4(arena, source + at))
            at += cuda.gridDim.x * THREADS * 4

    return copy


def make_poison() -> Any:
    """The kernel `abi.POISON`."""

    def poison(arena: Any, frames: Any, frame_words: Any, word: Any) -> None:
        target = frames[cuda.blockIdx.y] * frame_words
        at = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * 4
        while at < frame_words:
            store4(arena, target + at, (word, word, word, word))
            at += cuda.gridDim.x * THREADS * 4

    return poison


def make_gather() -> Any:
    """The kernel `abi.GATHER`."""

    def gather(
        source: Any, target: Any, source_at: Any, target_at: Any, pieces: Any, piece_words: Any
    ) -> None:
        piece = cuda.blockIdx.x
        while piece < pieces:
            start, to = source_at[piece], target_at[piece]
            at = cuda.threadIdx.x * 4
            while at < piece_words:
                store4(target, to + at, load4(source, start + at))
                at += THREADS * 4
            piece += cuda.gridDim.x

    return gather
