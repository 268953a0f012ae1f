"""A model whose weights are kept as bfloat16, float16 or float32, and a pass over it."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from tokenix.drivers.cpu import dense, layers
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.claims import new_claims, spent
from tokenix.drivers.cpu.dense import FloatKind
from tokenix.drivers.cpu.jit import Array, Float32, Int32, Int64
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import Activations, Batch, Shape
from tokenix.drivers.cpu.pack import pack_layers, pack_vocabulary
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
    ) -> None:
        self._config = config
        self._space = Workspace()
        self._claims: list[Int64] = []
        self._stored = dense.STORED[kind]
        self._weights = pack_layers(config, weights, kind, progress)
        self._norm = weights.float32("norm")
        self._embed = pack_vocabulary(config, weights, "embed", kind)
        self._head = self._embed
        if not config.tied_embeddings:
            self._head = pack_vocabulary(config, weights, "head", kind)

    @property
    def weight_bytes(self) -> int:
        w = self._weights
        return sum(each.nbytes for each in (w.qkv, w.o, w.gate_up, w.down, self._head))

    def run(
        self,
        ids: Int32,
        wanted: Int32,
        batch: Batch,
        shape: Shape,
        arena: FrameArena,
        workers: int,
    ) -> Float32:
        act = self._activations(len(ids))
        act.x[: len(ids)] = dense.read_rows(self._embed, ids)
        claims = new_claims(self._config.layers * len(layers.PHASES), workers)
        self._claims = [claims]
        pages = arena.shape.pages
        team = helpers_of(workers)
        layers.run_layers(team, self._weights, shape, act, batch, arena.data, pages, claims)
        return self._logits(act.x[wanted], workers)

    def phases(self) -> dict[str, int]:
        names = (layers.PHASES * self._config.layers, layers.HEAD_PHASES)
        ticks: Counter[str] = Counter()
        for claims, each in zip(self._claims, names, strict=True):
            ticks.update(spent(claims, each))
        return dict(ticks)

    def _logits(self, x: Float32, workers: int) -> Float32:
        count = len(x)
        tiles, columns = choose_tiles(count)
        packed = self._packed("head_x", count, self._config.hidden)
        # Rows that are a multiple of 4096 bytes apart would take each other's place in the caches.
        logits = self._space.take("logits", tiles * columns, (len(self._head) + 1) * LANES)
        claims = new_claims(len(layers.HEAD_PHASES), workers)
        self._claims.append(claims)
        layers.run_head(
            helpers_of(workers),
            self._weights.tile,
            self._norm,
            self._head,
            self._config.rms_eps,
            x,
            packed,
            logits,
            claims,
        )
        return logits[:count, : self._config.vocab_tokens]

    def _activations(self, count: int) -> Activations:
        config, take = self._config, self._space.take
        tiles, columns = choose_tiles(count)
        padded, w = tiles * columns, self._weights
        return Activations(
            x=take("x", padded, config.hidden),
            packed_x=self._packed("packed_x", count, config.hidden),
            qkv=take("qkv", padded, w.qkv.shape[1] * LANES),
            packed_mixed=self._packed("packed_mixed", count, config.heads * config.head_dim),
            gate_up=take("gate_up", padded, w.gate_up.shape[1] * LANES),
            packed_ffn=self._packed("packed_ffn", count, config.ffn),
        )

    def _packed(self, name: str, rows: int, width: int) -> Array:
        """Room for the packed input of a matrix."""
        tiles, columns = choose_tiles(rows)
        item = self._stored.itemsize if self._stored == dense.STORED["bf16"] else 4
        space = self._space.take(name, tiles, width // LANES, columns, LANES * item // 4)
        return space.view(np.uint16 if item == 2 else np.float32)
