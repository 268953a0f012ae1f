"""One step of the model over a batch of token rows: the seam between the device and arithmetic.

`ModelStep.forward` is all the device knows of the model. A faster step (fused layers, weights kept
in 4 bits) replaces this class; faster dense layers alone replace `dense.multiply`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tokenix.drivers.cpu import attention, dense, rows
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.dense import DenseKind, PackedMatrix, multiply, pack_matrix
from tokenix.drivers.cpu.jit import PARALLEL, Float32, Int32, get_threads
from tokenix.drivers.cpu.tile import LANES
from tokenix.models.config import ModelConfig
from tokenix.models.rope import inv_freq
from tokenix.models.weights import Weights

MAX_PASS_TOKENS = 512
"""Longer batches run as several passes: bounds the activations, and changes no result."""


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


@dataclass(frozen=True, slots=True)
class _Layer:
    attn_norm: Float32
    qkv: PackedMatrix
    bias: Float32
    q_norm: Float32
    k_norm: Float32
    o: PackedMatrix
    ffn_norm: Float32
    gate_up: PackedMatrix
    down: PackedMatrix


@dataclass(frozen=True, slots=True)
class _Pass:
    """The token rows of one pass through the layers."""

    tokens: Int32
    positions: Int32
    frames: Int32
    blocks: Int32
    """[n, 4], see `attention.attend`."""
    sampled: Int32
    """Token rows whose logits are wanted."""


class ModelStep:
    """Weights packed for this machine, and the forward pass over them."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        arena: FrameArena,
        kind: DenseKind = "f16",
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        _check(config)
        self.config = config
        self._arena = arena
        self._embed = weights.float32("embed").astype(dense.DTYPES[kind])
        self._layers = []
        for i in range(config.layers):
            self._layers.append(_pack_layer(config, weights, i, kind))
            if progress is not None:
                progress("packing weights", (i + 1) / config.layers)
        self._norm = weights.float32("norm")
        head = weights.float32("embed" if config.tied_embeddings else "head")
        self._head = pack_matrix([head], kind)
        reach = min(config.max_context_tokens, arena.frames * arena.shape.page_tokens)
        self._cos, self._sin = rotary_tables(config, reach)
        self.max_position = reach

    def forward(self, tables: Int32, chunks: list[Chunk]) -> Float32:
        """Run the chunks; float32 [wanted rows, vocab] in their order.

        KV of all tokens is in the arena afterwards. Chunks must stay inside their tables, the
        vocabulary and `max_position`, and name each table once.
        """
        with PARALLEL:
            found = [self._run(part, tables) for part in self._passes(tables, chunks)]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else self._empty(0, self.config.vocab_tokens)

    def _passes(self, tables: Int32, chunks: list[Chunk]) -> Iterator[_Pass]:
        pending: list[Chunk] = []
        room = MAX_PASS_TOKENS
        for chunk in chunks:
            done = 0
            while done < len(chunk.tokens):
                count = min(room, len(chunk.tokens) - done)
                pending.append(chunk.split(done, done + count))
                done, room = done + count, room - count
                if room == 0:
                    yield self._gather(tables, pending)
                    pending, room = [], MAX_PASS_TOKENS
        if pending:
            yield self._gather(tables, pending)

    def _gather(self, tables: Int32, chunks: list[Chunk]) -> _Pass:
        """Flatten chunks into token rows and query blocks."""
        group = self.config.heads // self.config.kv_heads
        per_block = max(1, attention.MAX_SLOTS // group)
        positions, frames = [], []
        sampled: list[int] = []
        blocks: list[tuple[int, int, int, int]] = []
        at = 0
        for chunk in chunks:
            count = len(chunk.tokens)
            where = np.arange(chunk.start, chunk.start + count, dtype=np.int32)
            positions.append(where)
            frames.append(tables[chunk.table][where // self._arena.shape.page_tokens])
            for i in range(0, count, per_block):
                queries = min(per_block, count - i)
                blocks.append((chunk.table, at + i, chunk.start + i, queries))
            if chunk.logits:
                sampled += range(at, at + count)
            elif chunk.logits is None:
                sampled.append(at + count - 1)
            at += count
        return _Pass(
            np.array([t for chunk in chunks for t in chunk.tokens], np.int32),
            np.concatenate(positions),
            np.concatenate(frames),
            _deal(blocks, get_threads()),
            np.array(sampled, np.int32),
        )

    def _empty(self, *shape: int) -> Float32:
        return np.empty(shape, np.float32)

    def _run(self, work: _Pass, tables: Int32) -> Float32:
        count = len(work.tokens)
        columns = dense.choose_tile(count)
        padded = dense.pad_tokens(count)
        x = np.zeros((padded, self.config.hidden), np.float32)
        x[:count] = self._embed[work.tokens]
        for index, layer in enumerate(self._layers):
            self._attention(index, layer, x, work, tables, columns)
            self._mlp(layer, x, count, columns)
        return self._logits(x[work.sampled])

    def _attention(
        self, index: int, layer: _Layer, x: Float32, work: _Pass, tables: Int32, columns: int
    ) -> None:
        """x += o(attention(qkv(norm(x)))), writing K and V on the way."""
        config, arena = self.config, self._arena
        tiles, count = len(x) // columns, len(work.tokens)
        packed = self._empty(tiles, config.hidden, columns)
        qkv = self._empty(len(x), layer.qkv.padded_outputs)
        base = index * arena.shape.layer_elements * arena.data.itemsize
        rows.norm_pack(x[:count], layer.attn_norm, config.rms_eps, packed)
        multiply(layer.qkv, packed, qkv)
        rows.rotate_append(
            qkv,
            layer.bias,
            layer.q_norm,
            layer.k_norm,
            config.rms_eps,
            self._cos,
            self._sin,
            work.positions,
            work.frames,
            arena.data,
            base,
            arena.shape.page_tokens,
            config.heads,
            config.kv_heads,
            config.head_dim,
        )
        mixed = self._empty(count, config.heads * config.head_dim)
        attention.attend(
            arena.data,
            base,
            arena.shape.page_tokens,
            tables,
            work.blocks,
            qkv,
            mixed,
            config.kv_heads,
            config.heads // config.kv_heads,
            config.head_dim,
        )
        packed = self._empty(tiles, config.heads * config.head_dim, columns)
        rows.pack(mixed, count, packed)
        multiply(layer.o, packed, x, add=True)

    def _mlp(self, layer: _Layer, x: Float32, count: int, columns: int) -> None:
        """x += down(silu(gate(norm(x))) * up(norm(x)))."""
        tiles = len(x) // columns
        packed = self._empty(tiles, self.config.hidden, columns)
        rows.norm_pack(x[:count], layer.ffn_norm, self.config.rms_eps, packed)
        gate_up = self._empty(len(x), layer.gate_up.padded_outputs)
        multiply(layer.gate_up, packed, gate_up)
        packed = self._empty(tiles, self.config.ffn, columns)
        rows.swiglu_pack(gate_up, count, packed)
        multiply(layer.down, packed, x, add=True)

    def _logits(self, x: Float32) -> Float32:
        count = len(x)
        if count == 0:
            return self._empty(0, self.config.vocab_tokens)
        columns, padded = dense.choose_tile(count), dense.pad_tokens(count)
        packed = self._empty(padded // columns, self.config.hidden, columns)
        rows.norm_pack(x, self._norm, self.config.rms_eps, packed)
        logits = self._empty(padded, self._head.padded_outputs)
        multiply(self._head, packed, logits)
        return logits[:count, : self.config.vocab_tokens]


def _check(config: ModelConfig) -> None:
    """ValueError for shapes that the kernels do not cover."""
    for name, size in (
        ("hidden", config.hidden),
        ("head_dim", config.head_dim),
        ("ffn", config.ffn),
    ):
        if size % LANES:
            raise ValueError(f"model {config.name}: {name}={size} is not a multiple of {LANES}")
    if config.heads % config.kv_heads:
        raise ValueError(
            f"model {config.name}: {config.heads} heads do not share {config.kv_heads} kv heads"
        )


def _pack_layer(config: ModelConfig, weights: Weights, index: int, kind: DenseKind) -> _Layer:
    def tensor(name: str) -> Float32:
        return weights.float32(f"layers.{index}.{name}")

    def pack(*names: str) -> PackedMatrix:
        return pack_matrix([tensor(name) for name in names], kind)

    none = np.empty(0, np.float32)
    bias = [tensor("q_bias"), tensor("k_bias"), tensor("v_bias")] if config.qkv_bias else [none]
    return _Layer(
        attn_norm=tensor("attn_norm"),
        qkv=pack("q", "k", "v"),
        bias=np.concatenate(bias),
        q_norm=tensor("q_norm") if config.qk_norm else none,
        k_norm=tensor("k_norm") if config.qk_norm else none,
        o=pack("o"),
        ffn_norm=tensor("ffn_norm"),
        gate_up=pack("gate", "up"),
        down=pack("down"),
    )


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin, float32 [positions, rotated / 2]."""
    frequencies, factor = inv_freq(config.rope)
    angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    return cos.astype(np.float32), sin.astype(np.float32)


def _deal(blocks: list[tuple[int, int, int, int]], threads: int) -> Int32:
    """Order blocks so that contiguous shares of them cost every thread about the same."""
    by_cost = sorted(blocks, key=lambda block: -(block[2] + block[3]))
    hands: list[list[tuple[int, int, int, int]]] = [[] for _ in range(threads)]
    for i, block in enumerate(by_cost):
        turn = i % threads
        hands[turn if i // threads % 2 == 0 else threads - 1 - turn].append(block)
    return np.array([block for hand in hands for block in hand], np.int32)
