"""Matrices of a model cut into pieces of rows, which all threads pack.

    rows of q   |0 ...... 127|128 ..... 255| ...     packed by whoever comes, each into its place

A piece is read where its file is mapped, and expanded to codes or numbers by itself: packing takes
the memory of its result and of the few pieces that are in work.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from tokenix.drivers.cpu.jit import Array
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.team import get_threads
from tokenix.models.weights import RowWeights, Weights

PIECE_NUMBERS = 1 << 19
"""About. Each takes some ten bytes meanwhile, and a few thousandths of a second."""


class Piece(NamedTuple):
    """Rows of a matrix as they are in its file."""

    name: str
    kind: str
    """Ggml type, or that of floats."""
    raw: Array
    """uint8 [rows, bytes of a row]; 16 rows or a multiple, but for the last ones."""

    @property
    def groups(self) -> int:
        """Of 16 rows, the last one perhaps not full."""
        return -(-len(self.raw) // LANES)


def cut(weights: Weights, name: str, inputs: int) -> Iterator[Piece]:
    """A matrix [out, inputs] from its first row to its last."""
    take = partial(weights.rows, name) if isinstance(weights, RowWeights) else _whole(weights, name)
    rows = max(1, PIECE_NUMBERS // inputs // LANES) * LANES
    first = 0
    while len((piece := Piece(name, *take(first, first + rows))).raw):
        yield piece
        first += rows


def _whole(weights: Weights, name: str) -> Callable[[int, int], tuple[str, Array]]:
    """`RowWeights.rows` of weights that have matrices at hand."""
    kind, raw = weights.quantized(name)
    return lambda first, last: (kind, raw[first:last])


def pack_all(jobs: Iterable[Callable[[], None]]) -> None:
    """Call them all, on as many threads as passes use; each is taken when a thread is free for it,
    or soon will be. What the first one raises that fails, is raised."""
    threads = get_threads()
    begun: deque[Future[None]] = deque()
    with ThreadPoolExecutor(threads, "tokenix-pack") as pool:
        for job in jobs:
            begun.append(pool.submit(job))
            if len(begun) > 2 * threads:
                begun.popleft().result()
        for each in begun:
            each.result()
