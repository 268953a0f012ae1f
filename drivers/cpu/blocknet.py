"""A model whose weights are kept in blocks of 4 to 8 bits, and a pass over it."""

from collections.abc import Callable

import numpy as np

from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.blockitems import BLOCK_TILES, UNIT
from tokenix.drivers.cpu.blocklayers import (
    HEAD_PHASES,
    PHASES,
    BlockActivations,
    Rows,
    run_blocks,
)
from tokenix.drivers.cpu.blockpack import pack_model
from tokenix.drivers.cpu.blockrows import Rows8
from tokenix.drivers.cpu.blocks import BLOCK, FACTORS, count_blocks
from tokenix.drivers.cpu.claims import new_claims, spent
from tokenix.drivers.cpu.jit import Float32, Int32
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import Batch, Shape
from tokenix.drivers.cpu.packcache import PackCache
from tokenix.drivers.cpu.team import helpers_of
from tokenix.drivers.cpu.workspace import Workspace, choose_tiles
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
        self._claims = new_claims(0, 1)
        self._sizes = (0, 0, 1)
        self._act = self._activations(*self._sizes)
        self._every = self._rows("every", 0)

    @property
    def weight_bytes(self) -> int:
        w = self._weights
        embedding = 0 if self._config.tied_embeddings else int(w.head[0] - w.embed[0])
        return len(w.blob) - embedding

    def run(
        self,
        ids: Int32,
        wanted: int,
        batch: Batch,
        shape: Shape,
        arena: FrameArena,
        workers: int,
    ) -> Float32:
        sizes = (len(ids), wanted, workers)
        if sizes != self._sizes:  # decode steps come in series
            self._act, self._sizes = self._activations(*sizes), sizes
            self._every = self._rows("every", len(ids))
        act, every = self._act, self._every
        last = every if wanted == len(ids) else self._rows("wanted", wanted)
        phases = self._config.layers * len(PHASES) + len(HEAD_PHASES)
        self._claims = claims = new_claims(phases, workers)
        pages, team = arena.shape.pages, helpers_of(workers)
        w = self._weights
        run_blocks(team, w, shape, act, ids, every, last, batch, arena.data, pages, claims)
        return act.logits[:wanted, : self._config.vocab_tokens]

    def phases(self) -> dict[str, int]:
        names = PHASES * self._config.layers + HEAD_PHASES
        return spent(self._claims, names)

    def _activations(self, rows: int, wanted: int, workers: int) -> BlockActivations:
        config, take, w = self._config, self._space.take, self._weights
        tiles, columns = choose_tiles(rows)
        padded, attended = tiles * columns, config.heads * config.head_dim
        last_tiles, last_columns = choose_tiles(wanted)
        return BlockActivations(
            qkv=take("qkv", padded, w.qkv.shape[1] * LANES),
            mixed=take("mixed", padded, count_blocks(attended) * BLOCK // LANES, 1, LANES),
            logits=take("logits", last_tiles * last_columns, (len(w.head) + 1) * LANES),
            both=take("both", workers, min(tiles, BLOCK_TILES) * columns, UNIT * LANES),
            parts=take("parts", workers, 2 * UNIT * BLOCK_TILES).view(np.int64),
        )

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
        blocks = count_blocks(width)
        codes = self._space.take(f"{name} codes", tiles, blocks, columns, BLOCK // 4)
        factors = self._space.take(f"{name} factors", tiles, blocks, columns, FACTORS)
        return Rows8(codes.view(np.int8), factors)
