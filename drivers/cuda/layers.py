"""The layers of a model over rows of tokens: torch for what is dense, our kernels for the rest.

    embed                                                        torch   x [rows, hidden]
    each layer   norm, q k v                                     torch   qkv
                 (pages of this layer have come, if a load runs beside it)
                 bias, norm of heads, rotation, K and V to pages append  q, frames
                 attention over pages, split by split            decode  parts
                 the sum of the splits                           combine mixed
                 or, for chunks of a prompt, all at once         prefill mixed
                 o and its sum, norm, gate up                    torch   x, both
                 SwiGLU                                          gate    gated
                 down and its sum                                torch   x
    head         norm, logits of the rows that draw              torch   logits

All of it goes into one stream and touches fixed buffers only, so it can be captured as a graph.
Tokens of a prompt attend to what the rows before them have just written. Where there is no kernel
for `prefill` (float32), they are rows like others.
"""

import math
from functools import partial
from typing import TYPE_CHECKING

from tokenix.drivers.cuda.arena import FrameArena
from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.arrival import Arrival
from tokenix.drivers.cuda.buffers import Buffers, Field, Inputs
from tokenix.drivers.cuda.dense import Dense
from tokenix.drivers.cuda.devicetables import DeviceTables
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels.abi import (
    APPEND,
    COMBINE,
    DECODE,
    GATE,
    PREFILL,
    SPLIT_TOKENS,
)
from tokenix.drivers.cuda.kernels.gate import count_blocks
from tokenix.drivers.cuda.launcher import Launcher
from tokenix.drivers.cuda.matrix import Fp8Matrix, Matrix, multiply, multiply_wide
from tokenix.drivers.cuda.ranks.peers import Peers
from tokenix.drivers.cuda.weights import DeviceWeights, Layer
from tokenix.models.config import ModelConfig

if TYPE_CHECKING:
    import torch

PARTS_BYTES = 256 << 20
"""At most, for sums of splits. Rows that need more attend in turns."""


class Layers:
    """A model, or a shard of it with its peers. `rows` is the most that a pass may have, `drawing`
    the most that draw; logits are there on rank 0."""

    def __init__(
        self,
        driver: CudaDriver,
        dense: Dense,
        launcher: Launcher,
        config: ModelConfig,
        weights: DeviceWeights,
        arena: FrameArena,
        tables: DeviceTables,
        inputs: Inputs,
        rows: int,
        drawing: int,
        max_position: int,
        peers: Peers | None = None,
    ) -> None:
        import torch

        self._dense = dense
        self._peers = peers
        self._launcher = launcher
        self._config = config
        self._weights = weights
        self._inputs = inputs
        self._tables = tables
        dim, heads, every = config.head_dim, config.heads, config.heads + 2 * config.kv_heads
        self.most_splits = -(-max_position // SPLIT_TOKENS)
        split_bytes = 4 * heads * dim * self.most_splits
        self._turn = heads * self.most_splits * max(1, min(rows, PARTS_BYTES // split_bytes))
        x, single = weights.embed.dtype, torch.float32
        leading = peers is None or peers.index == 0
        self.buffers = Buffers(
            driver,
            dense,
            {
                "x": Field(x, (rows, config.hidden)),
                "qkv": Field(x, (rows, every * dim)),
                "q": Field(single, (rows, heads * dim)),
                "parts": Field(single, (self._turn, dim)),
                "stats": Field(single, (self._turn, 2)),
                "mixed": Field(x, (rows, heads * dim)),
                "both": Field(x, (rows, 2 * config.ffn)),
                "gated": Field(x, (rows, config.ffn)),
                "picked": Field(x, (drawing, config.hidden)),
                "logits": Field(single, (drawing if leading else 0, config.vocab_tokens)),
                "drawn": Field(torch.int32, (drawing,)),
            },
        )
        self._blocks = [self._make_blocks(i, arena) for i in range(config.layers)]

    def close(self) -> None:
        self.buffers.close()

    def _make_blocks(self, i: int, arena: FrameArena) -> dict[str, Block]:
        config, inputs, buffers = self._config, self._inputs.device, self.buffers
        layer, shape = self._weights.layers[i], arena.shape
        shared: dict[str, float] = {
            "arena": arena.address,
            "tables": self._tables.address,
            "slots": inputs.address("slots"),
            "positions": inputs.address("positions"),
            "layer_at": i * shape.layer_words,
            "frame_words": shape.stride_bytes // 4,
            "kv_heads": config.kv_heads,
            "max_pages": self._tables.max_pages,
            "q": buffers.address("q"),
        }
        append: dict[str, float] = {
            "qkv": buffers.address("qkv"),
            "bias": _address(layer.bias),
            "q_norm": _address(layer.q_norm),
            "k_norm": _address(layer.k_norm),
            "cos": _address(self._weights.cos),
            "sin": _address(self._weights.sin),
            "rows": 0,
            "heads": config.heads,
            "half": self._weights.cos.shape[1],
            "eps": config.rms_eps,
        }
        splits: dict[str, float] = {
            "parts": buffers.address("parts"),
            "stats": buffers.address("stats"),
            "split_tokens": SPLIT_TOKENS,
            "splits": 1,
        }
        scale = {"scale": math.log2(math.e) / math.sqrt(config.head_dim)}
        tiles = {"tiles": inputs.address("tiles"), "out": buffers.address("mixed")}
        gate: dict[str, float] = {
            "both": buffers.address("both"),
            "out": buffers.address("gated"),
            "rows": 0,
            "width": config.ffn,
        }
        combine: dict[str, float] = {
            "positions": inputs.address("positions"),
            "out": buffers.address("mixed"),
            "items": 0,
            "heads": config.heads,
        }
        return {
            "append": Block(APPEND, shared | append),
            "decode": Block(DECODE, shared | splits | scale),
            "combine": Block(COMBINE, splits | combine),
            "prefill": Block(PREFILL, shared | tiles | scale),
            "gate": Block(GATE, gate),
        }

    def find_tables(self) -> None:
        """The block tables are elsewhere now."""
        for blocks in self._blocks:
            for name in ("append", "decode", "prefill"):
                blocks[name].set(tables=self._tables.address, max_pages=self._tables.max_pages)

    # ---- a pass ----

    @property
    def has_prefill(self) -> bool:
        return "prefill" in self._launcher

    def run(
        self,
        rows: int,
        splits: int,
        tiles: int = 0,
        decoding: int | None = None,
        beside: Arrival | None = None,
    ) -> None:
        """K and V of the first `rows` tokens of the inputs into their pages, and x behind the last
        layer. The first `decoding` (None: all) attend one by one, and as many splits as the longest
        of them needs, or more; the others are in the first `tiles` tiles. `beside`: pages may still
        be on their way; each layer waits for its part of them before it writes or reads any."""
        dense, weights = self._dense, self._weights
        dense.run(partial(self._embed, rows))
        for i, (layer, blocks) in enumerate(zip(weights.layers, self._blocks, strict=True)):
            dense.run(partial(self._project, layer, rows))
            if beside is not None:
                beside.hold(self._launcher.stream, i)
            blocks["append"].set(rows=rows)
            self._launcher.launch(blocks["append"], rows)
            self._attend(blocks, rows if decoding is None else decoding, splits)
            self._launcher.launch(blocks["prefill"], tiles)
            dense.run(partial(self._widen, layer, rows))
            blocks["gate"].set(rows=rows)
            self._launcher.launch(blocks["gate"], count_blocks(rows, self._config.ffn))
            dense.run(partial(self._narrow, layer, rows))

    def pick(self, first: int, count: int) -> None:
        """Put the x of the tokens that draw behind the `first` ones that were picked before."""
        self._dense.run(partial(self._pick, first, count))

    def head(self, count: int, source: str = "picked") -> None:
        """Logits of the first `count` rows of that buffer."""
        self._dense.run(partial(self._head, self.buffers[source][:count]))

    def share(self, count: int) -> None:
        """The first `count` tokens that rank 0 has drawn, to where all ranks look for them."""
        if self._peers is not None:
            self._dense.run(partial(self._peers.share, self.buffers["drawn"][:count]))

    def _attend(self, blocks: dict[str, Block], rows: int, splits: int) -> None:
        """In turns of as many rows as have room for their splits."""
        config, inputs, buffers = self._config, self._inputs.device, self.buffers
        heads, dim = config.heads, config.head_dim
        turn = self._turn // (heads * splits)
        word = buffers["mixed"].element_size()
        for first in range(0, rows, turn):
            count = min(turn, rows - first)
            positions = inputs.address("positions") + 4 * first
            blocks["decode"].set(
                q=buffers.address("q") + 4 * first * heads * dim,
                slots=inputs.address("slots") + 4 * first,
                positions=positions,
                splits=splits,
            )
            blocks["combine"].set(
                positions=positions,
                out=buffers.address("mixed") + word * first * heads * dim,
                items=count * heads,
                splits=splits,
            )
            self._launcher.launch(blocks["decode"], count, splits)
            self._launcher.launch(blocks["combine"], count, splits)

    # ---- dense work, on the stream ----

    def _embed(self, rows: int) -> None:
        import torch

        inputs, drawn = self._inputs.device, self.buffers["drawn"]
        sources = inputs["sources"][:rows]
        known = drawn.index_select(0, sources.clamp(min=0)).clamp_(min=0)  # a fault is no token
        tokens = torch.where(sources < 0, inputs["tokens"][:rows], known)
        torch.index_select(self._weights.embed, 0, tokens, out=self.buffers["x"][:rows])

    def _pick(self, first: int, count: int) -> None:
        import torch

        picks, out = self._inputs.device["picks"][:count], self.buffers["picked"][first:][:count]
        torch.index_select(self.buffers["x"], 0, picks, out=out)

    def _project(self, layer: Layer, rows: int) -> None:
        normed = self._norm(self.buffers["x"][:rows], layer.attn_norm)
        multiply(normed, layer.qkv, self.buffers["qkv"][:rows])

    def _widen(self, layer: Layer, rows: int) -> None:
        x = self.buffers["x"][:rows]
        self._add(x, self.buffers["mixed"][:rows], layer.o)
        multiply(self._norm(x, layer.ffn_norm), layer.gate_up, self.buffers["both"][:rows])

    def _narrow(self, layer: Layer, rows: int) -> None:
        self._add(self.buffers["x"][:rows], self.buffers["gated"][:rows], layer.down)

    def _add(self, x: "torch.Tensor", source: "torch.Tensor", matrix: Matrix) -> None:
        """x += source @ matrix.T, over all ranks."""
        if self._peers is not None:
            x.add_(self._peers.sum(multiply(source, matrix)))
        elif isinstance(matrix, Fp8Matrix):
            x.add_(multiply(source, matrix))
        else:
            x.addmm_(source, matrix.t())

    def _head(self, x: "torch.Tensor") -> None:
        normed, head = self._norm(x, self._weights.norm), self._weights.head
        out, vocab = self.buffers["logits"][: len(x)], self._config.vocab_tokens
        if self._peers is None:
            multiply_wide(normed, head[:vocab], out)
            return
        logits = self._peers.gather(multiply_wide(normed, head))
        if logits is not None:
            out.copy_(logits[:, :vocab])

    def _norm(self, x: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional

        return functional.rms_norm(x, weight.shape, weight, self._config.rms_eps)


def _address(tensor: "torch.Tensor | None") -> int:
    return 0 if tensor is None else tensor.data_ptr()
