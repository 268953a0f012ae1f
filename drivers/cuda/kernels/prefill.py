"""Prefill attention (`prefill.cu`): tiles of rows, and how it is made."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

ROWS = 64
"""Of a tile; KEYS and padding as in prefill.cu."""
_KEYS, _PADDING = 64, 8
THREADS = 128


def shared_bytes(dim: int) -> int:
    """Queries, keys and values of 16 bits."""
    return 2 * (ROWS + 2 * _KEYS) * (dim + _PADDING)


def make_tiles(chunks: Iterable[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """int32 [tiles * 2] of chunks (first row, rows): what `abi.PREFILL` calls tiles. The rows of a
    chunk have one slot and consecutive positions."""
    tiles = [
        (first + at, min(ROWS, rows - at)) for first, rows in chunks for at in range(0, rows, ROWS)
    ]
    return np.array(tiles, np.int32).reshape(-1)
