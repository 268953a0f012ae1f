"""Starting kernels: machine code loaded once, launches with argument blocks that are kept."""

from collections.abc import Mapping
from typing import Any, Protocol

from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.driver import CudaDriver

Grid = tuple[int, int, int]


class Kernel(Protocol):
    """What the registry chose for an op."""

    @property
    def image(self) -> bytes:
        """Machine code (a cubin)."""
        ...

    @property
    def symbol(self) -> str: ...

    @property
    def threads(self) -> int:
        """Of a block."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        ...

    def grid(self, rows: int, splits: int = 1) -> Grid:
        """Blocks for so many rows."""
        ...


class Launcher:
    """Kernels by op, on one stream. Which thread calls does not matter; one at a time."""

    SHARED_BYTES = 48 << 10
    """What a kernel may use without being allowed more."""

    def __init__(self, driver: CudaDriver, stream: Any, kernels: Mapping[str, Kernel]) -> None:
        self._driver = driver
        self.stream = stream
        self._kernels = dict(kernels)
        self._modules: list[Any] = []
        self._functions: dict[str, Any] = {}
        try:
            for name, kernel in kernels.items():
                module = driver.load(kernel.image)
                self._modules.append(module)
                function = self._functions[name] = driver.function(module, kernel.symbol)
                if kernel.shared_bytes > self.SHARED_BYTES:
                    driver.allow_shared(function, kernel.shared_bytes)
        except BaseException:
            self.close()  # trials of kernels go on with the driver
            raise

    def __contains__(self, op: str) -> bool:
        return op in self._functions

    def close(self) -> None:
        for module in self._modules:
            self._driver.unload(module)

    def launch(self, block: Block, rows: int, splits: int = 1) -> None:
        """Start the op of an argument block for so many rows (pieces, whatever it has one of for
        each), if there are any."""
        if rows > 0:
            name = block.op.name
            kernel = self._kernels[name]
            self._driver.launch(
                self._functions[name],
                kernel.grid(rows, splits),
                kernel.threads,
                kernel.shared_bytes,
                block.address,
                self.stream,
            )
