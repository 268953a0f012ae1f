"""A model whose weights are kept in blocks of 4 to 8 bits, and a pass over it."""

from collections.abc import Callable

import numpy as np

from tokenix.drivers.cpu import layers
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.blockitems import BLOCK_TILES, LONE_UNITS, UNIT
from tokenix.drivers.cpu.blocklayers import (
    HEAD_PHASES,
    PHASES,
    Desks,
    Half,
    Head,
    Rows,
    run_blocks,
)
from tokenix.drivers.cpu.blockpack import pack_model
from tokenix.drivers.cpu.blockrows import Rows8
from tokenix.drivers.cpu.blocks import FACTORS, PAIR, count_pairs
from tokenix.drivers.cpu.claims import new_claims, spent
from tokenix.drivers.cpu.jit import Int64
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import Batch, Logits, Shape
from tokenix.drivers.cpu.packcache import PackCache
from tokenix.drivers.cpu.team import helpers_of
from tokenix.drivers.cpu.workspace import MAX_COLUMNS, Workspace, choose_tiles
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights


class BlockNet:
    """Keeps `step.Net`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        progress: Callable[[str, float], None] | None = None,
        keep: PackCache | None = None,
    ) -> None:
        self._config = config
        self._weights = pack_model(config, weights, progress, keep)
        self._space = Workspace()
        self._claims: list[Int64] = []
        self._halves: dict[str, Half] = {}

    @property
    def weight_bytes(self) -> int:
        w = self._weights
        embedding = 0 if self._config.tied_embeddings else int(w.head[0] - w.embed[0])
        return len(w.blob) - embedding

    def run(
        self,
        halves: tuple[Batch, Batch],
        desks: layers.Desks,
        shape: Shape,
        arena: FrameArena,
        workers: int,
    ) -> Logits:
        phases = self._config.layers * len(PHASES)
        first, second = (
            self._half(name, batch, new_claims(phases if len(batch.ids) else 1, workers))
            for name, batch in zip(("first", "second"), halves, strict=True)
        )
        head = self._head(first.batch.wanted + second.batch.wanted, workers)
        self._claims = [first.claims, second.claims, head.claims]
        widest = max(len(half.every.x) for half in (first, second))
        own = self._desks(desks, min(widest, BLOCK_TILES * MAX_COLUMNS), workers)
        pages, team = arena.shape.pages, helpers_of(workers)
        run_blocks(team, self._weights, shape, first, second, head, own, arena.data, pages)
        return Logits(head.logits[: head.tokens, : head.vocab_tokens], head.best)

    def phases(self) -> dict[str, int]:
        return spent(self._claims[:2], PHASES * self._config.layers, self._claims[2], HEAD_PHASES)

    def _half(self, name: str, batch: Batch, claims: Int64) -> Half:
        before, rows, wanted = self._halves.get(name), len(batch.ids), batch.wanted
        if before is None or (before.every.tokens, before.wanted.tokens) != (rows, wanted):
            self._halves[name] = half = self._new_half(name, batch, claims)
            return half
        return before._replace(batch=batch, claims=claims)  # decode steps come in series

    def _new_half(self, name: str, batch: Batch, claims: Int64) -> Half:
        config, take, rows = self._config, self._space.take, len(batch.ids)
        every = self._rows(f"{name} every", rows)
        wanted = every if batch.wanted == rows else self._rows(f"{name} wanted", batch.wanted)
        padded, attended = len(every.x), count_pairs(config.heads * config.head_dim) * PAIR
        qkv = take(f"{name} qkv", padded, self._weights.qkv.shape[1] * LANES)
        mixed = take(f"{name} mixed", padded, attended // LANES, 1, LANES)
        return Half(every, wanted, batch, qkv, mixed, claims)

    def _head(self, wanted: int, workers: int) -> Head:
        tiles, columns = choose_tiles(wanted)
        logits = self._space.take("logits", tiles * columns, (len(self._weights.head) + 1) * LANES)
        codes = self._codes("head", tiles, columns, self._config.hidden)
        best, claims = np.empty(wanted, np.int32), new_claims(len(HEAD_PHASES), workers)
        return Head(wanted, codes, logits, self._config.vocab_tokens, best, claims)

    def _desks(self, desks: layers.Desks, rows: int, workers: int) -> Desks:
        both = self._space.take("both", workers, max(rows, LONE_UNITS), UNIT * LANES)
        parts = self._space.take("parts", workers, 2 * UNIT * BLOCK_TILES).view(np.int64)
        return Desks(both, parts, *desks)

    def _rows(self, name: str, count: int) -> Rows:
        config, (tiles, columns) = self._config, choose_tiles(count)
        return Rows(
            tokens=count,
            x=self._space.take(f"{name} x", tiles * columns, config.hidden),
            narrow=self._codes(f"{name} narrow", tiles, columns, config.hidden),
            attended=self._codes(f"{name} mixed", tiles, columns, config.heads * config.head_dim),
            wide=self._codes(f"{name} wide", tiles, columns, config.ffn),
        )

    def _codes(self, name: str, tiles: int, columns: int, width: int) -> Rows8:
        pairs = count_pairs(width)
        codes = self._space.take(f"{name} codes", tiles, pairs, columns, PAIR // 4)
        factors = self._space.take(f"{name} factors", tiles, pairs, columns, FACTORS)
        return Rows8(codes.view(np.int8), factors)
