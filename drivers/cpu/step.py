"""One step of the model over a batch of token rows: the seam between the device and arithmetic.

`ModelStep.forward` is all the device knows of the model. It makes token rows of chunks; what
computes them is a `Net`: weights in the blocks of their file (`BlockNet`), or in float16
(`TileNet`).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenix.drivers.cpu import attention
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.blocknet import BlockNet
from tokenix.drivers.cpu.dense import DenseKind
from tokenix.drivers.cpu.jit import PARALLEL, Float32, Int32, check_processor
from tokenix.drivers.cpu.keytile import MAX_SLOTS
from tokenix.drivers.cpu.layers import Batch, Shape
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


QueryBlock = tuple[int, int, int, int, int, int]
"""See `attention.attend_item`."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence."""

    table: int
    """Row of the block tables."""
    start: int
    """Position of the first token."""
    tokens: tuple[int, ...]
    logits: bool | None
    """True: of every token; None: of the last one; False: none."""

    def split(self, first: int, last: int) -> "Chunk":
        """Tokens first..last-1 as a chunk of their own."""
        wants = self.logits
        if wants is None and last < len(self.tokens):
            wants = False
        return Chunk(self.table, self.start + first, self.tokens[first:last], wants)


class Net(Protocol):
    """Packed weights, and one pass of token rows over them. For one thread at a time."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, the head among them."""
        ...

    def run(
        self,
        ids: Int32,
        wanted: int,
        batch: Batch,
        shape: Shape,
        arena: FrameArena,
        workers: int,
    ) -> Float32:
        """Logits [wanted, vocab], valid until the next call; K and V of all rows into the arena.

        ids [rows]: tokens of the batch's rows; wanted: how many rows' logits are asked for;
        workers: threads that take part.
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
        self._cos, self._sin = rotary_tables(config, self.max_position)
        # Asked once: a kernel lets go of the interpreter, and may have to wait for it afterwards.
        self._parts = attention.count_parts(config.kv_heads, config.heads // config.kv_heads)
        self._shape = Shape(
            eps=config.rms_eps,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            layer_bytes=arena.shape.layer_bytes,
        )

    def forward(
        self, tables: Int32, chunks: list[Chunk], masses: list[Float32] | None = None
    ) -> Float32:
        """Run the chunks; float32 [wanted rows, vocab] in their order, valid until the next call.

        KV of all tokens is in the arena afterwards. Chunks must stay inside their tables, the
        vocabulary and `max_position`, and name each table once. masses: gets, for each chunk that
        wants the logits of its last token, in order, float32 [pages]: the attention mass of that
        token, see `drivers.ops.ForwardDone`.
        """
        found: list[Float32] = []
        with PARALLEL:
            passes = _split(chunks)
            for i, part in enumerate(passes):
                logits = self._run(part, tables, masses)
                found.append(logits if i == len(passes) - 1 else logits.copy())
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty((0, self.config.vocab_tokens), "f4")

    def _run(self, chunks: list[Chunk], tables: Int32, masses: list[Float32] | None) -> Float32:
        """One pass through the layers and, for the wanted rows, the head."""
        tokens = np.array([t for chunk in chunks for t in chunk.tokens], np.int32)
        count = len(tokens)
        asking = [] if masses is None else [c for c in chunks if c.logits is None]
        workers = self._choose_workers(count)
        batch, wanted = self._gather(tables, chunks, asking, workers)
        logits = self._net.run(tokens, wanted, batch, self._shape, self._arena, workers)
        if masses is not None:
            masses += self._masses(batch, asking)
        return logits

    def _masses(self, batch: Batch, asking: list[Chunk]) -> list[Float32]:
        """Of each asking chunk, over the pages that it reads."""
        means = batch.masses.sum(axis=1) / np.float32(self.config.heads * self.config.layers)
        return [row[: self._count_pages(chunk)] for row, chunk in zip(means, asking, strict=True)]

    def _count_pages(self, chunk: Chunk) -> int:
        """Pages that its last token reads."""
        return -(-(chunk.start + len(chunk.tokens)) // self._arena.shape.page_tokens)

    def _choose_workers(self, tokens: int) -> int:
        """One for work that is done before a second thread would have woken up."""
        return 1 if tokens * self._macs_per_token < SMALL_MACS else get_threads()

    def _gather(
        self, tables: Int32, chunks: list[Chunk], asking: list[Chunk], workers: int
    ) -> tuple[Batch, int]:
        """Flatten chunks into token rows and query blocks; also how many rows want logits. The
        last block of each of `asking` gets a row of masses."""
        wanted: list[int] = []
        blocks: list[QueryBlock] = []
        last: list[QueryBlock] = []
        pages = max((self._count_pages(chunk) for chunk in asking), default=0)
        positions, frames = self._place(tables, chunks)
        kept = np.full(len(positions), -1, np.int32)
        at = asks = 0
        keys = int(positions.max()) + 1
        floats = attention.count_scratch(self.config.head_dim, keys)
        places = self._space.take("places", workers, 2 * attention.count_places(keys))
        for chunk in chunks:
            count, mass = len(chunk.tokens), -1
            if asks < len(asking) and chunk is asking[asks]:
                mass, asks = asks, asks + 1
            first = 0 if chunk.logits else count - 1 if chunk.logits is None else count
            blocks += self._query_blocks(chunk, at, 0, mass, at)
            last += self._query_blocks(chunk, at, first, mass, len(wanted) - first)
            wanted += range(at + first, at + count)
            at += count
        kept[wanted] = range(len(wanted))
        batch = Batch(
            positions=positions,
            frames=frames,
            kept=kept,
            blocks=_longest_first(blocks),
            last_blocks=_longest_first(last),
            tables=tables,
            reads=np.concatenate([tables[c.table, : self._count_pages(c)] for c in chunks]),
            scratch=self._space.take("scratch", workers, floats),
            places=places.view(np.int64),
            masses=np.zeros((asks, self._parts, pages), np.float32),
            cos=self._cos,
            sin=self._sin,
        )
        return batch, len(wanted)

    def _query_blocks(
        self, chunk: Chunk, at: int, first: int, mass: int, out: int
    ) -> list[QueryBlock]:
        """Of a chunk's tokens from `first` on; at: row of its first token; mass: row of masses for
        its last token, or -1; out: what `at` is where attention writes to."""
        most = max(1, MAX_SLOTS // (self.config.heads // self.config.kv_heads))
        count = len(chunk.tokens)
        found = []
        for i in range(first, count, most):
            queries = min(most, count - i)
            own = mass if i + queries == count else -1
            found.append((chunk.table, at + i, chunk.start + i, queries, own, out + i))
        return found

    def _place(self, tables: Int32, chunks: list[Chunk]) -> tuple[Int32, Int32]:
        """Of each token row its position, and the frame that its K and V go to."""
        rows = np.array([chunk.table for chunk in chunks for _ in chunk.tokens])
        spans = (range(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks)
        positions = np.array([at for span in spans for at in span], np.int32)
        return positions, tables[rows, positions // self._arena.shape.page_tokens]


def _longest_first(blocks: list[QueryBlock]) -> Int32:
    """[n, 6]: so that all threads end at about the same time."""
    blocks.sort(key=lambda block: -(block[2] + block[3]))
    return np.array(blocks, np.int32).reshape(-1, 6)


def _split(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Passes of at most MAX_PASS_TOKENS tokens, in order."""
    passes: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        done = 0
        while done < len(chunk.tokens):
            if room == 0:
                passes.append([])
                room = MAX_PASS_TOKENS
            count = min(room, len(chunk.tokens) - done)
            passes[-1].append(chunk.split(done, done + count))
            done, room = done + count, room - count
    return passes
