"""How quick a kernel is on this GPU: one launch as decode makes it, on memory that nobody needs.

Where an op has several kernels (`kernels/registry.py`) the quickest of them is taken at boot.
"""

import contextlib
import math

import numpy as np

from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.driver import CudaDriver, CudaError
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS, SPLIT_TOKENS
from tokenix.drivers.cuda.kernels.cubins import Cubins, default_folder
from tokenix.drivers.cuda.kernels.pages import layer_words
from tokenix.drivers.cuda.kernels.registry import Kernel, Shape, build_kernels
from tokenix.drivers.cuda.launcher import Launcher

ROWS, CONTEXT = 32, 1024
"""Of an 8B model's layer these are 128 MiB of keys and values: more than a GPU's cache holds."""

WARM, TIMES, ROUNDS = 2, 10, 3

PAGES, SPLITS = CONTEXT // PAGE_TOKENS, CONTEXT // SPLIT_TOKENS


class Trial:
    """Memory for launches of `append` and `decode`; give it back with `close`."""

    def __init__(self, driver: CudaDriver, shape: Shape) -> None:
        self._driver = driver
        self._stream = driver.stream()
        heads, dim, every = shape.heads, shape.dim, shape.heads + 2 * shape.kv_heads
        frame_words = layer_words(shape.kv, dim, shape.kv_heads)
        words = {
            "qkv": ROWS * every * dim,
            "bias": every * dim,
            "q_norm": dim,
            "k_norm": dim,
            "cos": CONTEXT * dim // 2,
            "sin": CONTEXT * dim // 2,
            "q": ROWS * heads * dim,
            "arena": ROWS * PAGES * frame_words,
            "parts": ROWS * heads * SPLITS * dim,
            "stats": ROWS * heads * SPLITS * 2,
        }
        tables = {
            "tables": np.random.default_rng(0).permutation(ROWS * PAGES),
            "slots": np.arange(ROWS),
            "positions": np.full(ROWS, CONTEXT - 1),
        }
        self._memory: dict[str, int] = {}
        try:
            for name, count in words.items():
                self._memory[name] = driver.alloc(4 * count)
                driver.fill(self._memory[name], 0, count, self._stream)
            for name, numbers in tables.items():
                array = numbers.astype(np.int32)
                self._memory[name] = driver.alloc(array.nbytes)
                driver.upload(self._memory[name], array.ctypes.data, array.nbytes)
        except BaseException:
            self.close()
            raise
        self._values: dict[str, float] = {
            **self._memory,
            "layer_at": 0,
            "frame_words": frame_words,
            "rows": ROWS,
            "heads": heads,
            "kv_heads": shape.kv_heads,
            "half": dim // 2,
            "max_pages": PAGES,
            "eps": 1e-5,
            "split_tokens": SPLIT_TOKENS,
            "splits": SPLITS,
            "scale": 0.1,
        }

    def close(self) -> None:
        self._driver.sync(self._stream)
        for address in self._memory.values():
            self._driver.free(address)
        self._driver.destroy_stream(self._stream)

    def seconds(self, kernel: Kernel) -> float:
        """Of one launch: the best of some rounds. Infinite if the GPU takes the kernel not at all
        (its shared memory is less, say), so that another one is taken."""
        try:
            return self._best_s(kernel)
        except CudaError as error:
            if error.lost:
                raise
            return math.inf

    def _best_s(self, kernel: Kernel) -> float:
        op, driver = kernel.op, self._driver
        block = Block(op, {name: self._values[name] for name, _ in op.args})
        launcher = Launcher(driver, self._stream, {op.name: kernel})
        try:
            for _ in range(WARM):
                launcher.launch(block, ROWS, SPLITS)
            rounds = []
            for _ in range(ROUNDS):
                with driver.timed(self._stream) as seconds:
                    for _ in range(TIMES):
                        launcher.launch(block, ROWS, SPLITS)
                rounds += seconds
            return min(rounds) / TIMES
        finally:
            launcher.close()


def choose_kernels(driver: CudaDriver, shape: Shape) -> dict[str, Kernel]:
    """The kernels of a shape that are quickest here, compiled now or kept from
    another time. RuntimeError if an op's are all refused by their compilers."""
    cubins = Cubins(default_folder())
    with contextlib.closing(Trial(driver, shape)) as trial:
        return build_kernels(shape, driver.gpu.capability, cubins, trial.seconds)
