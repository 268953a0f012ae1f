"""Working memory of a step: fixed buffers, so that captured graphs find them where they were.

    inputs    [tokens | positions | slots | picks | temperature | ...]     one copy brings them
    others    x, qkv, q, mixed, parts, ...

Inputs lie in a pinned buffer of the host as they lie on the device.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.dense import Dense
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.hostmemory import Staging

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256


class Field(NamedTuple):
    """A buffer to be."""

    dtype: "torch.dtype"
    shape: tuple[int, ...]


class Buffers:
    """Named tensors in one allocation."""

    def __init__(self, driver: CudaDriver, dense: Dense, fields: dict[str, Field]) -> None:
        self._driver = driver
        self._at: dict[str, int] = {}
        size = 0
        for name, field in fields.items():
            self._at[name] = size
            count = math.prod(field.shape) * field.dtype.itemsize
            size += -(-count // ALIGNMENT) * ALIGNMENT
        self.size = size
        self.base = driver.alloc(size)
        memory = dense.view(self.base, size)
        self._tensors = {
            name: memory[self._at[name] :][: math.prod(field.shape) * field.dtype.itemsize]
            .view(field.dtype)
            .view(field.shape)
            for name, field in fields.items()
        }

    def close(self) -> None:
        self._tensors.clear()
        self._driver.free(self.base)

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self._tensors[name]

    def address(self, name: str) -> int:
        return self.base + self._at[name]

    def offset(self, name: str) -> int:
        """From the first of them, in bytes."""
        return self._at[name]


_INPUTS: dict[str, tuple[type[np.generic], str]] = {
    "tokens": (np.int32, "tokens"),
    "sources": (np.int32, "tokens"),
    "positions": (np.int32, "tokens"),
    "slots": (np.int32, "tokens"),
    "tiles": (np.int32, "tokens"),
    "picks": (np.int32, "rows"),
    "ends": (np.int32, "rows"),
    "top_k": (np.int32, "rows"),
    "temperature": (np.float64, "rows"),
    "top_p": (np.float64, "rows"),
    "min_p": (np.float64, "rows"),
    "seeds": (np.uint64, "rows"),
}
"""What a step is given, and of what there is one: for each token, or for each row that draws.
sources: where among the tokens that the step before has drawn this one is; -1: in `tokens`;
tiles: pairs (first row, rows); picks: which tokens draw; ends: the positions that are drawn."""


class Inputs:
    """What the host gives a step: arrays here, and the same on the device after `upload`.

    `settle` waits until the last upload has run: only then may arrays be written again;
    `settle_spare` likewise for the spare room. Each has an event of its own: what a step puts into
    the stream before its arrays are written must not make it wait for the pass before.
    """

    def __init__(
        self, driver: CudaDriver, dense: Dense, tokens: int, rows: int, spare_words: int
    ) -> None:
        """spare_words: int32 room for what is copied elsewhere, once in each step."""
        import torch

        counts = {"tokens": tokens, "rows": rows}
        fields = {
            name: Field(torch.from_numpy(np.empty(0, dtype)).dtype, (counts[each],))
            for name, (dtype, each) in _INPUTS.items()
        }
        self.device = Buffers(driver, dense, fields)
        self._driver = driver
        self._staging = Staging(driver, self.device.size + 4 * spare_words)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        for name, (dtype, each) in _INPUTS.items():
            at = self.device.offset(name)
            size = counts[each] * np.dtype(dtype).itemsize
            self._arrays[name] = self._staging.data[at : at + size].view(dtype)
        self.spare: npt.NDArray[np.int32] = self._staging.data[self.device.size :].view(np.int32)
        self.spare_address = self._staging.address + self.device.size
        self._uploaded, self._spared = driver.event(), driver.event()

    def close(self) -> None:
        for event in (self._uploaded, self._spared):
            self._driver.destroy_event(event)
        self.device.close()
        self._staging.close()

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def upload(self, stream: Any) -> None:
        """Copy all arrays; what the stream gets from now on sees them."""
        self._driver.copy_in(self.device.base, self._staging.address, self.device.size, stream)
        self._driver.record(self._uploaded, stream)

    def settle(self) -> None:
        self._driver.sync_event(self._uploaded)

    def note_spare(self, stream: Any) -> None:
        """What the stream has by now reads the spare room."""
        self._driver.record(self._spared, stream)

    def settle_spare(self) -> None:
        self._driver.sync_event(self._spared)
