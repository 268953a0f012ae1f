"""A model whose weights are kept as float16 or float32, and a pass over it."""

from collections import Counter
from collections.abc import Callable

from tokenix.drivers.cpu import dense, layers
from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.claims import new_claims, spent
from tokenix.drivers.cpu.dense import FloatKind
from tokenix.drivers.cpu.jit import Float32, Int32, Int64
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.layers import Activations, Batch, Shape
from tokenix.drivers.cpu.pack import pack_layers
from tokenix.drivers.cpu.team import helpers_of
from tokenix.drivers.cpu.workspace import Workspace
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
        self._embed = weights.float32("embed").astype(dense.DTYPES[kind])
        self._weights = pack_layers(config, weights, kind, progress)
        self._norm = weights.float32("norm")
        self._head = dense.empty_packed(1, config.vocab_tokens, config.hidden, kind)[0]
        head = weights.float32("embed" if config.tied_embeddings else "head")
        dense.pack_matrix([head], kind, self._head)

    @property
    def weight_bytes(self) -> int:
        matrices = [each for each in self._weights if each.ndim == 4]
        return int(sum(each.nbytes for each in matrices) + self._head.nbytes)

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
        act.x[: len(ids)] = self._embed[ids]
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
        columns, padded = dense.choose_tile(count), dense.pad_tokens(count)
        packed = self._space.take("head_x", padded // columns, self._config.hidden, columns)
        logits = self._space.take("logits", padded, len(self._head) * LANES)
        claims = new_claims(len(layers.HEAD_PHASES), workers)
        self._claims.append(claims)
        layers.run_head(
            helpers_of(workers),
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
        columns, padded = dense.choose_tile(count), dense.pad_tokens(count)
        tiles, w = padded // columns, self._weights
        return Activations(
            x=take("x", padded, config.hidden),
            packed_x=take("packed_x", tiles, config.hidden, columns),
            qkv=take("qkv", padded, w.qkv.shape[1] * LANES),
            packed_mixed=take("packed_mixed", tiles, config.heads * config.head_dim, columns),
            gate_up=take("gate_up", padded, w.gate_up.shape[1] * LANES),
            packed_ffn=take("packed_ffn", tiles, config.ffn, columns),
        )
