"""Chunks of sequences, and the token rows that a pass makes of them.

chunks     | 7 9 4 | 5 | 8 |              of three sequences
rows         7 9 4   5   8                positions, frames, which of them want logits
blocks     | 7 9 4 | 5 | 8 |              query blocks: rows that attend together
halves     | 7 9 |  | 4 | 5 | 8 |         of a large pass, see `layers`
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from tokenix.drivers.cpu.jit import Float32, Int32, Int64, brief
from tokenix.drivers.cpu.layers import Batch


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

    @property
    def first_wanted(self) -> int:
        """The first token whose logits are asked for; they are to the end."""
        return 0 if self.logits else len(self.tokens) - (self.logits is None)


@dataclass(frozen=True, slots=True)
class Gathering:
    """What all passes of a model over an arena have in common."""

    page_tokens: int
    most_queries: int
    """Of a query block."""
    parts: int
    """Items of a query block, see `attention.count_parts`."""
    row_keys: int
    """Keys whose attention takes as long as a row's matrices, about."""
    cos: Float32
    sin: Float32

    def gather(self, chunks: list[Chunk], tables: Int32, weigh: bool, follows: bool) -> Batch:
        """Flatten chunks into token rows and query blocks. weigh: chunks that want the logits of
        their last token get a row of masses; follows: see `Batch`."""
        lines: list[int] = []
        ids: list[int] = []
        for chunk in chunks:
            asks = weigh and chunk.logits is None
            lines += (chunk.table, chunk.start, len(chunk.tokens), chunk.first_wanted, asks)
            ids += chunk.tokens
        table = np.array(lines, np.int64).reshape(-1, 5)
        rows = _flatten(table, len(ids), tables, self.page_tokens, self.most_queries)
        asking, pages = (int(table[:, 4].sum()), tables.shape[1]) if weigh else (0, 0)
        return Batch(
            np.array(ids, np.int32),
            *rows,
            follows=int(follows),
            masses=np.zeros((asking, self.parts, pages), np.float32),
            tables=tables,
            cos=self.cos,
            sin=self.sin,
        )

    def halve(self, chunks: list[Chunk]) -> tuple[list[Chunk], list[Chunk], bool]:
        """Two lists of about as much work each, in the order they are in; whether the second one
        begins in the middle of a chunk."""
        left = sum(self._work(chunk) for chunk in chunks) / 2
        for i, chunk in enumerate(chunks):
            work = self._work(chunk)
            if work < left:
                left -= work
                continue
            # The first k rows of a chunk are k * (start + row_keys) + k * k / 2 of work.
            begins = chunk.start + self.row_keys
            rows = round(sqrt(begins * begins + 2 * left) - begins)
            rows = max(rows, i == 0)  # the first half has some
            if rows <= 0 or rows >= len(chunk.tokens):
                cut = i + (rows > 0)
                return chunks[:cut], chunks[cut:], False
            first, second = chunk.split(0, rows), chunk.split(rows, len(chunk.tokens))
            return [*chunks[:i], first], [second, *chunks[i + 1 :]], True
        return chunks, [], False

    def _work(self, chunk: Chunk) -> float:
        """Of all its rows, in keys that are attended to."""
        count = len(chunk.tokens)
        return count * (self.row_keys + chunk.start + count / 2)


@brief
def _flatten(
    lines: Int64, rows: int, tables: Int32, page_tokens: int, most: int
) -> tuple[Int32, Int32, int, Int32, Int32, Int32, Int32]:
    """Positions, frames, wanted, kept, blocks, last_blocks and reads of a `Batch`; of lines
    [chunks, 5] = (table row, position of its first token, tokens, the first wanted one, whether it
    gets a row of masses)."""
    positions, frames = np.empty(rows, np.int32), np.empty(rows, np.int32)
    kept = np.full(rows, -1, np.int32)
    blocks, last_blocks = np.empty((rows, 6), np.int32), np.empty((rows, 6), np.int32)
    pages = 0
    for i in range(len(lines)):
        pages += (lines[i, 1] + lines[i, 2] + page_tokens - 1) // page_tokens
    reads = np.empty(pages, np.int32)
    at = wanted = mass = pages = every = last = 0
    for i in range(len(lines)):
        table, start, count, first, asks = lines[i]
        for t in range(count):
            positions[at + t] = start + t
            frames[at + t] = tables[table, (start + t) // page_tokens]
        for page in range((start + count + page_tokens - 1) // page_tokens):
            reads[pages] = tables[table, page]
            pages += 1
        own = mass if asks else -1
        every = _add_blocks(blocks, every, table, start, count, 0, at, at, own, most)
        out = wanted - first
        last = _add_blocks(last_blocks, last, table, start, count, first, at, out, own, most)
        for t in range(first, count):
            kept[at + t] = wanted
            wanted += 1
        at, mass = at + count, mass + asks
    return positions, frames, wanted, kept, blocks[:every], last_blocks[:last], reads


@brief
def _add_blocks(
    blocks: Int32,
    known: int,
    table: int,
    start: int,
    count: int,
    first: int,
    at: int,
    out: int,
    mass: int,
    most: int,
) -> int:
    """Query blocks of a chunk's tokens from `first` on, see `attention.attend_item`; how many
    there are then. Those that attend to most come first, so that all threads end at about the same
    time. at: the chunk's first row; out: what this is where attention writes to."""
    for t in range(first, count, most):
        queries, place = min(most, count - t), known
        while place > 0 and blocks[place - 1, 2] + blocks[place - 1, 3] < start + t + queries:
            blocks[place] = blocks[place - 1]
            place -= 1
        block, last = blocks[place], t + queries == count
        block[0], block[1], block[2], block[3] = table, at + t, start + t, queries
        block[4], block[5] = mass if last else -1, out + t
        known += 1
    return known


def split(chunks: Iterable[Chunk], most: int) -> list[list[Chunk]]:
    """Passes of at most so many tokens, in order."""
    passes: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        done = 0
        while done < len(chunk.tokens):
            if room == 0:
                passes.append([])
                room = most
            count = min(room, len(chunk.tokens) - done)
            passes[-1].append(chunk.split(done, done + count))
            done, room = done + count, room - count
    return passes
