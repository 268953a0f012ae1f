"""A model whose weights are kept as bfloat16, float16 or float32, and a pass over it."""

from collections.abc import Callable

import numpy as np

from tokenix.drivers.cpu import dense
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.claims import new_claims, spent
from tokenix.drivers.cpu.dense import FloatKind
from tokenix.drivers.cpu.jit import Array, Int64
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import (
    HEAD_PHASES,
    PHASES,
    Batch,
    Desks,
    Half,
    Head,
    Logits,
    Rows,
    Shape,
    run_layers,
)
from tokenix.drivers.cpu.pack import pack_model
from tokenix.drivers.cpu.packcache import PackCache
from tokenix.drivers.cpu.team import helpers_of
from tokenix.drivers.cpu.workspace import Workspace, choose_tiles
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights


class TileNet:
    """Keeps `step.Net`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kind: FloatKind,
        progress: Callable[[str, float], None] | None = None,
        keep: PackCache | None = None,
    ) -> None:
        self._config = config
        self._space = Workspace()
        self._stored = dense.STORED[kind]
        self._weights = pack_model(config, weights, kind, progress, keep)
        self._claims: list[Int64] = []

    @property
    def weight_bytes(self) -> int:
        w = self._weights
        return sum(each.nbytes for each in (w.qkv, w.o, w.gate_up, w.down, w.head))

    def run(
        self,
        halves: tuple[Batch, Batch],
        desks: Desks,
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
        pages, team = arena.shape.pages, helpers_of(workers)
        run_layers(team, self._weights, shape, first, second, head, desks, arena.data, pages)
        return Logits(head.logits[: head.tokens, : head.vocab_tokens], head.best)

    def phases(self) -> dict[str, int]:
        return spent(self._claims[:2], PHASES * self._config.layers, self._claims[2], HEAD_PHASES)

    def _half(self, name: str, batch: Batch, claims: Int64) -> Half:
        w, count = self._weights, len(batch.ids)
        every = self._rows(f"{name} every", count)
        last = every if batch.wanted == count else self._rows(f"{name} wanted", batch.wanted)
        if count > 0:
            every.x[:count] = dense.read_rows(w.embed, batch.ids)
        qkv = self._space.take(f"{name} qkv", len(every.x), w.qkv.shape[1] * LANES)
        return Half(every, last, batch, qkv, claims)

    def _head(self, wanted: int, workers: int) -> Head:
        tiles, columns = choose_tiles(wanted)
        # Rows that are a multiple of 4096 bytes apart would take each other's place in the caches.
        logits = self._space.take("logits", tiles * columns, (len(self._weights.head) + 1) * LANES)
        packed = self._packed("head", wanted, self._config.hidden)
        best, claims = np.empty(wanted, np.int32), new_claims(len(HEAD_PHASES), workers)
        return Head(wanted, packed, logits, self._config.vocab_tokens, best, claims)

    def _rows(self, name: str, count: int) -> Rows:
        config, take = self._config, self._space.take
        tiles, columns = choose_tiles(count)
        padded = tiles * columns
        return Rows(
            tokens=count,
            x=take(f"{name} x", padded, config.hidden),
            packed_x=self._packed(f"{name} narrow", count, config.hidden),
            packed_mixed=self._packed(f"{name} mixed", count, config.heads * config.head_dim),
            gate_up=take(f"{name} gate_up", padded, self._weights.gate_up.shape[1] * LANES),
            packed_ffn=self._packed(f"{name} wide", count, config.ffn),
        )

    def _packed(self, name: str, rows: int, width: int) -> Array:
        """Room for the packed input of a matrix."""
        tiles, columns = choose_tiles(rows)
        item = self._stored.itemsize if self._stored == dense.STORED["bf16"] else 4
        space = self._space.take(name, tiles, width // LANES, columns, LANES * item // 4)
        return space.view(np.uint16 if item == 2 else np.float32)
