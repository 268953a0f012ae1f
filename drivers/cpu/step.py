"""One step of the model over a batch of token rows: the seam between the device and arithmetic.

`ModelStep.forward` is all the device knows of the model. It makes token rows of chunks (`chunks`);
what computes them is a `Net`: weights in the blocks of their file (`BlockNet`), or in float16
(`TileNet`).
"""

import copy
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tokenix.drivers.cpu import attention
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.blocknet import BlockNet
from tokenix.drivers.cpu.chunks import Chunk, Gathering, split
from tokenix.drivers.cpu.dense import DenseKind
from tokenix.drivers.cpu.jit import PARALLEL, Float32, Int32, check_processor
from tokenix.drivers.cpu.keytile import MAX_SLOTS
from tokenix.drivers.cpu.layers import Batch, Desks, Logits, Shape
from tokenix.drivers.cpu.pack import check_shapes, rotary_tables
from tokenix.drivers.cpu.packcache import PackCache
from tokenix.drivers.cpu.team import get_threads
from tokenix.drivers.cpu.tilenet import TileNet
from tokenix.drivers.cpu.workspace import Workspace
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights

SMALL_MACS = 2_000_000
"""Multiply-adds of a pass that one thread does: some 20 us."""

MAX_PASS_TOKENS = 512
"""Longer batches run as several passes: bounds the activations, and changes no result."""

HALVED_ROWS = 12
"""From so many on each thread has rows of its own."""
MATRIX_RATE = 2
"""Multiply-adds of matrices in the time of one of attention, about."""


class Net(Protocol):
    """Packed weights, and one pass of token rows over them. For one thread at a time."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, the head among them."""
        ...

    def run(
        self,
        halves: tuple[Batch, Batch],
        desks: Desks,
        shape: Shape,
        arena: FrameArena,
        workers: int,
    ) -> Logits:
        """Of the wanted rows; K and V of all rows into the arena.

        halves: the second may have no rows; workers: threads that take part, and have desks.
        """
        ...

    def phases(self) -> dict[str, int]:
        """Ticks of the last pass that asked for logits by what was done; see `claims.spent`."""
        ...


class ModelStep:
    """Weights packed for this machine, and the forward pass over them. For one thread at a time."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        arena: FrameArena,
        kind: DenseKind = "f16",
        progress: Callable[[str, float], None] | None = None,
        keep: PackCache | None = None,
    ) -> None:
        check_processor()
        check_shapes(config)
        self.config = config
        self._net: Net = (
            BlockNet(config, weights, progress, keep)
            if kind == "native"
            else TileNet(config, weights, kind, progress, keep)
        )
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self._macs_per_token = (
            config.layers * config.hidden * (2 * queries + 2 * keys + 3 * config.ffn)
        )
        self._use(arena)

    @property
    def weight_bytes(self) -> int:
        """That a pass of one token reads."""
        return self._net.weight_bytes

    @property
    def macs(self) -> tuple[int, int]:
        """Multiply-adds with weights for a token, and for one whose logits are wanted as well."""
        head = self.config.hidden * self.config.vocab_tokens
        return self._macs_per_token, self._macs_per_token + head

    def phases(self) -> dict[str, int]:
        """As of `Net`."""
        return self._net.phases()

    def over(self, arena: FrameArena) -> "ModelStep":
        """The same weights over another arena. The two share working memory: logits of one are
        valid until the next call of either."""
        twin = copy.copy(self)
        twin._use(arena)
        return twin

    def _use(self, arena: FrameArena) -> None:
        config = self.config
        self._space = Workspace()
        self._arena = arena
        self.max_position = min(config.max_context_tokens, arena.frames * arena.shape.page_tokens)
        cos, sin = rotary_tables(config, self.max_position)
        group = config.heads // config.kv_heads
        attended = 2 * config.layers * config.heads * config.head_dim
        self._gathering = Gathering(
            page_tokens=arena.shape.page_tokens,
            most_queries=max(1, MAX_SLOTS // group),
            # Asked once: a kernel lets go of the interpreter, and may have to wait for it.
            parts=attention.count_parts(config.kv_heads, group),
            row_keys=self._macs_per_token // (MATRIX_RATE * attended),
            cos=cos,
            sin=sin,
        )
        self._nobody = self._gathering.gather([], np.empty((0, 0), np.int32), False, follows=False)
        self._shape = Shape(
            eps=config.rms_eps,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            layer_bytes=arena.shape.layer_bytes,
        )

    def forward(
        self, tables: Int32, chunks: list[Chunk], masses: list[Float32] | None = None
    ) -> Logits:
        """Run the chunks; logits of the wanted rows in their order, valid until the next call.

        KV of all tokens is in the arena afterwards. Chunks must stay inside their tables, the
        vocabulary and `max_position`, and name each table once. masses: gets, for each chunk that
        wants the logits of its last token, in order, float32 [pages]: the attention mass of that
        token, see `drivers.ops.ForwardDone`.
        """
        found: list[Logits] = []
        with PARALLEL:
            passes = split(chunks, MAX_PASS_TOKENS)
            for i, part in enumerate(passes):
                logits = self._run(part, tables, masses)
                found.append(logits if i == len(passes) - 1 else _copy(logits))
        if len(found) == 1:
            return found[0]
        if not found:
            return Logits(np.empty((0, self.config.vocab_tokens), "f4"), np.empty(0, "i4"))
        rows, best = zip(*found, strict=True)
        return Logits(np.concatenate(rows), np.concatenate(best))

    def _run(self, chunks: list[Chunk], tables: Int32, masses: list[Float32] | None) -> Logits:
        """One pass through the layers and, for the wanted rows, the head."""
        rows = sum(len(chunk.tokens) for chunk in chunks)
        workers = self._choose_workers(rows)
        halves: tuple[list[Chunk], list[Chunk], bool] = (chunks, [], False)
        if workers > 1 and rows >= HALVED_ROWS:
            halves = self._gathering.halve(chunks)
        weigh, gather = masses is not None, self._gathering.gather
        first = gather(halves[0], tables, weigh, follows=False)
        second = gather(halves[1], tables, weigh, halves[2]) if halves[1] else self._nobody
        desks = self._desks(max(c.start + len(c.tokens) for c in chunks), workers)
        logits = self._net.run((first, second), desks, self._shape, self._arena, workers)
        if masses is not None:
            masses += self._masses(first, halves[0]) + self._masses(second, halves[1])
        return logits

    def _masses(self, batch: Batch, chunks: list[Chunk]) -> list[Float32]:
        """Of each chunk that asks, over the pages that its last token reads."""
        asking = [chunk for chunk in chunks if chunk.logits is None]
        means = batch.masses.sum(axis=1) / np.float32(self.config.heads * self.config.layers)
        size = self._arena.shape.page_tokens
        pages = [-(-(chunk.start + len(chunk.tokens)) // size) for chunk in asking]
        return [row[:count] for row, count in zip(means, pages, strict=True)]

    def _choose_workers(self, tokens: int) -> int:
        """One for work that is done before a second thread would have woken up."""
        return 1 if tokens * self._macs_per_token < SMALL_MACS else get_threads()

    def _desks(self, keys: int, workers: int) -> Desks:
        """For attention to at most so many keys."""
        floats = attention.count_scratch(self.config.head_dim, keys)
        places = self._space.take("places", workers, 2 * attention.count_places(keys))
        return Desks(self._space.take("scratch", workers, floats), places.view(np.int64))


def _copy(logits: Logits) -> Logits:
    return Logits(logits.rows.copy(), logits.best)
