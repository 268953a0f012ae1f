"""Drawing tokens: on the GPU where parameters alone decide, on the host where more is asked.

The GPU's kernel gives the tokens of `drivers/cpu/sampling.py`. Penalties, biases, bans, grammars
and log probabilities need the row itself: it is copied to the host, and drawn there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tokenix.drivers.cpu.sampling import NOT_FINITE, sample_rows
from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.buffers import Inputs
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.hostmemory import Staging
from tokenix.drivers.cuda.kernels.abi import FAULT, SAMPLE
from tokenix.drivers.cuda.kernels.sample import MOST_VOCAB
from tokenix.drivers.cuda.launcher import Launcher
from tokenix.drivers.ops import Row, RowFault, Sampled, SampleSpec

HOST_ROWS = 16
"""Rows of logits that the host has at a time."""

_SEED = (1 << 64) - 1


Take = Callable[[], list[Sampled | RowFault]]
"""Waits for what a pass has drawn. To be called before the pass after the next one is queued, and
before the next one unless all its rows are `is_plain`."""


def is_plain(row: Row) -> bool:
    """Whether its token, if it draws one, is drawn on the device."""
    return row.sample is None or row.sample.plain


class Drawing:
    """Tokens of up to `rows` rows of logits float32 [rows, vocab] at `logits`, drawn as int32 into
    `tokens` on the device."""

    def __init__(
        self,
        driver: CudaDriver,
        launcher: Launcher,
        inputs: Inputs,
        logits: int,
        tokens: int,
        rows: int,
        vocab: int,
    ) -> None:
        assert vocab <= MOST_VOCAB, "ids that the kernel does not tell apart"
        self._driver = driver
        self._launcher = launcher
        self._inputs = inputs
        self._logits = logits
        self._vocab = vocab
        self._tokens = tokens
        self._found = [Staging(driver, 4 * rows) for _ in range(2)]
        self._drawn = [driver.event() for _ in range(2)]
        self._turn = 0
        """Passes are told by turns, as two may be in flight."""
        self._rows = Staging(driver, 4 * vocab * HOST_ROWS)
        self._done = driver.event()
        self._block = Block(
            SAMPLE,
            {
                "logits": logits,
                **{name: inputs.device.address(name) for name in _PARAMETERS},
                "positions": inputs.device.address("ends"),
                "tokens": self._tokens,
                "vocab": vocab,
            },
        )

    def close(self) -> None:
        for event in (*self._drawn, self._done):
            self._driver.destroy_event(event)
        for staging in (*self._found, self._rows):
            staging.close()

    def write(self, rows: Sequence[Row], padded: int) -> None:
        """Parameters of all that draw into the inputs; rows up to `padded` draw nothing."""
        specs = [row.sample for row in rows]
        count = len(rows)
        for name in _PARAMETERS:
            self._inputs[name][:count] = [_value(spec, name) for spec in specs]
        self._inputs["ends"][:count] = [row.end for row in rows]
        self._inputs["ends"][count:padded] = -1

    def enqueue(self, rows: int) -> None:
        """Draw on the device."""
        self._launcher.launch(self._block, rows)

    def fetch(self, rows: Sequence[Row]) -> Take:
        """Bring what the pass has drawn."""
        stream, turn = self._launcher.stream, self._turn
        self._turn = 1 - turn
        found, drawn = self._found[turn], self._drawn[turn]
        self._driver.copy_out(found.address, self._tokens, 4 * max(1, len(rows)), stream)
        self._driver.record(drawn, stream)
        return partial(self._take, rows, found, drawn)

    def _take(self, rows: Sequence[Row], staging: Staging, drawn: Any) -> list[Sampled | RowFault]:
        self._driver.sync_event(drawn)
        found = staging.data.view(np.int32)[: len(rows)].tolist()
        results: list[Sampled | RowFault] = [
            NOT_FINITE if token == FAULT else Sampled(token) for token in found
        ]
        asking = [i for i, row in enumerate(rows) if not is_plain(row)]
        for first in range(0, len(asking), HOST_ROWS):
            some = asking[first : first + HOST_ROWS]
            drawn = self._draw_here(some, [rows[i] for i in some])
            for i, result in zip(some, drawn, strict=True):
                results[i] = result
        return results

    def _draw_here(self, places: Sequence[int], rows: Sequence[Row]) -> list[Sampled | RowFault]:
        size = 4 * self._vocab
        stream = self._launcher.stream
        for i, place in enumerate(places):
            to, source = self._rows.address + i * size, self._logits + place * size
            self._driver.copy_out(to, source, size, stream)
        self._driver.record(self._done, stream)
        self._driver.sync_event(self._done)
        logits = self._rows.data[: size * len(places)].view(np.float32).reshape(-1, self._vocab)
        specs = [row.sample for row in rows if row.sample is not None]
        return sample_rows(logits, specs, [row.end for row in rows])


class Undrawn:
    """What the other ranks have in place of it: their part of the logits is where tokens are drawn
    (`ranks/`), and what is drawn there comes to their device, or back as the next tokens."""

    def __init__(self, driver: CudaDriver, stream: Any) -> None:
        self._driver = driver
        self._stream = stream
        self._ends = [driver.event() for _ in range(2)]
        self._turn = 0

    def close(self) -> None:
        for event in self._ends:
            self._driver.destroy_event(event)

    def write(self, rows: Sequence[Row], padded: int) -> None:
        pass

    def enqueue(self, rows: int) -> None:
        pass

    def fetch(self, rows: Sequence[Row]) -> Take:
        """What it takes is the end of the pass."""
        end = self._ends[self._turn]
        self._turn = 1 - self._turn
        self._driver.record(end, self._stream)

        def take() -> list[Sampled | RowFault]:
            self._driver.sync_event(end)
            return [Sampled(0)] * len(rows)

        return take


_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "seeds")


def _value(spec: SampleSpec | None, name: str) -> float:
    assert spec is not None, "a row that draws nothing"
    if name == "seeds":
        return spec.params.seed & _SEED
    value: float = getattr(spec.params, name)
    return value
