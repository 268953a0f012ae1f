"""One step of the model over a batch of rows: inputs, passes or a captured graph, drawn tokens.

    all rows of one token that draw     a graph of their bucket: one launch for the whole step
    anything else                       passes of at most MAX_PASS_TOKENS tokens, then the head

A step is queued, and its tokens are taken later: by the host, which waits for them, and by the next
step, which finds them where they were drawn.

Buckets are padded with rows of position -1, which no kernel does anything for. A graph is captured
when its bucket comes for the second time: the first time warms libraries up, which must not load
anything while they are captured. A step that the GPU refuses to capture stays as it is, launch by
launch: slower, and `make gpu-check` tells.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.arrival import Arrival
from tokenix.drivers.cuda.buffers import Inputs
from tokenix.drivers.cuda.dense import Dense, Work
from tokenix.drivers.cuda.devicetables import DeviceTables
from tokenix.drivers.cuda.drawing import Drawing, Take, Undrawn, is_plain
from tokenix.drivers.cuda.kernels.abi import NOTHING, SPLIT_TOKENS
from tokenix.drivers.cuda.kernels.prefill import make_tiles
from tokenix.drivers.cuda.launcher import Launcher
from tokenix.drivers.cuda.layers import Layers
from tokenix.drivers.ops import Row
from tokenix.mm.ids import Pid

Ints = npt.NDArray[np.int64]

MAX_PASS_TOKENS = 2048
"""Of one pass: bounds the buffers, and changes no result."""

MAX_ROWS = 256
"""Rows of one pass that draw: bounds the logits, and changes no result."""

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


class ModelStep:
    """The forward pass. For one thread at a time."""

    def __init__(
        self,
        dense: Dense,
        launcher: Launcher,
        tables: DeviceTables,
        inputs: Inputs,
        layers: Layers,
        drawing: Drawing | Undrawn,
    ) -> None:
        self._dense = dense
        self._stream = launcher.stream
        self._tables = tables
        self._inputs = inputs
        self._layers = layers
        self._drawing = drawing
        self._graphs: dict[tuple[int, int], Work | None] = {}
        """By (bucket, splits); None: seen once."""
        self.refused = ""
        """Why a step could not be captured, if one could not."""

    def forget_graphs(self) -> None:
        """What they were captured with is elsewhere now."""
        self._graphs.clear()

    def launch(
        self, rows: Sequence[Row], before: Mapping[Pid, int], beside: Arrival | None = None
    ) -> Take:
        """Queue rows that `Intake` has found good. What is returned waits for what those that ask
        for it have drawn, in order; K and V of all tokens are in their pages then. `before`: of the
        step before, the place of the token that each process has drawn; `beside`: the load that
        brings pages of some rows, layer by layer. A graph waits for all of it."""
        if not rows:
            return self._drawing.fetch(())
        groups = _groups(rows)
        drawn = [result for group in groups[:-1] for result in self._queue(group, before, beside)()]
        take = self._queue(groups[-1], before, beside)
        return lambda: drawn + take()

    def is_sure(self, rows: Sequence[Row]) -> bool:
        """Whether the next step may be queued before these were taken, and find their tokens."""
        return len(rows) <= MAX_ROWS and all(map(is_plain, rows))

    def _queue(
        self, rows: Sequence[Row], before: Mapping[Pid, int], beside: Arrival | None
    ) -> Take:
        if all(len(row.tokens) == 1 and row.sample is not None for row in rows):
            if beside is not None:
                beside.hold_all(self._stream)
            return self._decode(rows, before)
        return self._mixed(rows, before, beside)

    # ---- one token each ----

    def _decode(self, rows: Sequence[Row], before: Mapping[Pid, int]) -> Take:
        count = len(rows)
        bucket = next(bucket for bucket in BUCKETS if bucket >= count)
        longest = max(row.start for row in rows) + 1
        splits = min(_power(-(-longest // SPLIT_TOKENS)), self._layers.most_splits)
        inputs = self._inputs
        inputs.settle()
        inputs["tokens"][:count] = [row.tokens[0] for row in rows]
        inputs["sources"][:count] = [_source(row, before) for row in rows]
        inputs["positions"][:count] = [row.start for row in rows]
        inputs["slots"][:count] = [self._tables.host.row_of(row.pid) for row in rows]
        for name, padding in (("sources", -1), ("positions", NOTHING), ("slots", 0)):
            inputs[name][count:bucket] = padding
        self._drawing.write(rows, bucket)
        inputs.upload(self._stream)
        self._replay(bucket, splits)
        return self._drawing.fetch(rows)

    def _replay(self, bucket: int, splits: int) -> None:
        key = (bucket, splits)

        def work() -> None:
            self._layers.run(bucket, splits)
            self._layers.head(bucket, "x")
            self._drawing.enqueue(bucket)
            self._layers.share(bucket)

        if key not in self._graphs:
            self._graphs[key] = None
            work()
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._capture(work)
        graph()

    def _capture(self, work: Work) -> Work:
        try:
            return self._dense.record(work)
        except RuntimeError as error:  # of CUDA, or of torch
            if getattr(error, "lost", False):
                raise
            self.refused = str(error).split("\n")[0]
            return work

    # ---- prefill, and whatever else ----

    def _mixed(
        self, rows: Sequence[Row], before: Mapping[Pid, int], beside: Arrival | None
    ) -> Take:
        tokens = np.concatenate([np.array(row.tokens, np.int32) for row in rows])
        positions = np.concatenate([np.arange(row.start, row.end, dtype=np.int32) for row in rows])
        lengths = np.array([len(row.tokens) for row in rows], np.int64)
        sources = np.repeat([_source(row, before) for row in rows], lengths)
        slots = np.repeat([self._tables.host.row_of(row.pid) for row in rows], lengths)
        ends: Ints = np.cumsum(lengths)
        asking = [row for row in rows if row.sample is not None]
        wanted = [int(ends[i]) - 1 for i, row in enumerate(rows) if row.sample is not None]
        decoding = len(tokens)
        if self._layers.has_prefill:
            decoding = next((i for i, row in enumerate(rows) if len(row.tokens) > 1), len(rows))
        picked = 0
        for first in range(0, len(tokens), MAX_PASS_TOKENS):
            part = slice(first, first + MAX_PASS_TOKENS)
            count = len(tokens[part])
            picks = [at - first for at in wanted if first <= at < first + count]
            single = min(count, max(0, decoding - first))
            tiles = make_tiles(_chunks(ends - lengths - first, ends - first, single, count))
            self._inputs.settle()
            for name, values in (
                ("tokens", tokens[part]), ("sources", sources[part]), ("slots", slots[part]),
                ("positions", positions[part]), ("picks", picks), ("tiles", tiles),
            ):  # fmt: skip
                self._inputs[name][: len(values)] = values
            self._drawing.write(asking, len(asking))
            self._inputs.upload(self._stream)
            longest = int(positions[part][:single].max(initial=0)) + 1
            splits = -(-longest // SPLIT_TOKENS)
            self._layers.run(count, splits, len(tiles) // 2, single, beside)
            if picks:
                self._layers.pick(picked, len(picks))
            picked += len(picks)
        if asking:
            self._layers.head(len(asking))
            self._drawing.enqueue(len(asking))
            self._layers.share(len(asking))
        return self._drawing.fetch(asking)


def _source(row: Row, before: Mapping[Pid, int]) -> int:
    """Where among the tokens drawn before a row's token is; -1: it is known."""
    return before[row.pid] if row.tokens[0] < 0 else -1


def _chunks(starts: Ints, ends: Ints, least: int, most: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of what lies in rows least..most-1 of a pass."""
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last = max(start, least), min(end, most)
        if first < last:
            yield first, last - first


def _groups(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """In order, each with at most MAX_ROWS."""
    return [rows[first : first + MAX_ROWS] for first in range(0, len(rows), MAX_ROWS)]


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
