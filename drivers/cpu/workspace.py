"""Working memory of passes, kept between them; the tiles in which rows of a pass lie."""

import math

import numpy as np

from tokenix.drivers.cpu.arena import aligned_empty
from tokenix.drivers.cpu.jit import Float32

MAX_COLUMNS = 8
"""Token rows of the widest tile: enough sums to hide the latency of each, and they just stay in
registers."""


def choose_tiles(rows: int) -> tuple[int, int]:
    """(tiles, rows in each) for a number of token rows: as few and as even as they can be. Results
    do not depend on it, time does."""
    tiles = -(-rows // MAX_COLUMNS)
    return tiles, -(-rows // tiles) if tiles else 1


class Workspace:
    """Grows to what the largest pass needed."""

    def __init__(self) -> None:
        self._buffers: dict[str, Float32] = {}

    def take(self, name: str, *shape: int) -> Float32:
        """An array of this shape with old or zero contents, valid until the name is taken again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = aligned_empty((size,), np.dtype(np.float32))
            self._buffers[name] = buffer
        return buffer[:size].reshape(shape)
