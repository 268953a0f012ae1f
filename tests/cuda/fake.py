"""A GPU made of this process: a fake libcuda.so.1, twins of the kernels, torch of the CPU.

Loaded once in a process, before cuda.bindings looks for the real one. See fakecuda.c.
"""

import ctypes
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.arguments import unpack
from tokenix.drivers.cuda.dense import DenseKind, Work
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels.abi import OPS
from tokenix.drivers.cuda.launcher import Grid
from tokenix.models.config import ModelConfig
from tokenix.tests.cuda.twins import TWINS

LaunchHook = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint),
    ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip
HostHook = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)


class Fake:
    """The library's other side."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._works: dict[int, tuple[Work, bool]] = {}
        self._handles = 0
        self.recording = False
        self.failures: list[str] = []
        """What hooks have raised; the GPU is lost then."""
        self._watching: list[tuple[str, Grid, bytes]] | None = None
        self._hooks = LaunchHook(self._launched), HostHook(self._host)
        library.fake_hooks(*self._hooks)

    def draw(self, seed: int, eager_percent: int = 10) -> None:
        """The order of streams from now on. 0 %: nothing runs before something waits for it."""
        self._library.fake_draw(ctypes.c_uint64(seed), eager_percent)

    def reset(self) -> None:
        """A machine as it is when a process starts."""
        self._library.fake_reset()
        self.failures.clear()
        self._works.clear()
        self.recording = False

    def machine(
        self, result: int = 0, devices: int = 1, version: int = 13000, total_bytes: int = 1 << 30
    ) -> None:
        """What the driver finds. result: of cuInit."""
        self._library.fake_machine(result, devices, version, ctypes.c_size_t(total_bytes))

    def symbol(self, call: str) -> str:
        """By what name the library has a call of the driver API."""
        return next(f"{call}{end}" for end in ("_v2", "") if hasattr(self._library, call + end))

    def fail(self, call: str, code: int, after: int = 0) -> None:
        """A call by that name returns an error, after others of it."""
        self._library.fake_fail(call.encode(), after, code)

    def fault(self, code: int, after: int = 0) -> None:
        """The context is lost when so many more operations have run."""
        self._library.fake_fault(after, code)

    def __getattr__(self, name: str) -> int:
        """used_bytes, pinned_bytes, handles, copies, launches; in_bytes, out_bytes: moved over the
        link so far"""
        count: Any = getattr(self._library, f"fake_{name}")
        count.restype = ctypes.c_size_t
        return int(count())

    @contextmanager
    def watched(self) -> Iterator[list[tuple[str, Grid, bytes]]]:
        """Kernels that run inside do nothing but show with what they were started."""
        self._watching = []
        try:
            yield self._watching
        finally:
            self._watching = None

    def put(self, stream: Any, work: Work) -> None:
        """A function into a stream."""
        self._handles += 1
        self._works[self._handles] = work, self.recording
        self._library.fake_host(ctypes.c_void_p(int(stream)), ctypes.c_uint64(self._handles))

    def _host(self, handle: int) -> int:
        import torch

        work, again = self._works[handle]
        if not again:
            del self._works[handle]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                return self._guarded(work)
        finally:
            torch.set_num_threads(threads)

    def _launched(self, name: bytes, grid: Any, block: Any, data: int, size: int) -> int:
        symbol, blocks = name.decode(), (grid[0], grid[1], grid[2])
        packed = ctypes.string_at(data, size)
        if self._watching is not None:
            self._watching.append((symbol, blocks, packed))
            return 0
        twin = _SYMBOLS[symbol]
        values = unpack(OPS[twin.op], packed)
        return self._guarded(lambda: TWINS[twin.op](twin, blocks, values))

    def _guarded(self, work: Work) -> int:
        try:
            work()
        except BaseException:
            self.failures.append(traceback.format_exc())
            return 1
        return 0


@cache
def load() -> Fake:
    """The fake of this process. Skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler, which the fake libcuda needs")
    pytest.importorskip("cuda.bindings.driver")
    pytest.importorskip("torch")
    folder = Path(tempfile.mkdtemp(prefix="tokenix-fake-"))
    built = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fakecuda.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o", built, source]
    try:
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
        # Found by its name from now on, whoever looks for it.
        return Fake(ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL))
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class Twin:
    """A kernel of the fake: its op, and for which shapes it is."""

    op: str
    shape: FrameShape
    heads: int
    kind: DenseKind
    image: bytes = b"twin"
    threads: int = 128
    shared_bytes: int = 0

    @property
    def symbol(self) -> str:
        name = f"{self.op}-{hash(self)}"
        _SYMBOLS[name] = self
        return name

    def grid(self, rows: int, splits: int = 1) -> Grid:
        return rows, 1, splits


_SYMBOLS: dict[str, Twin] = {}


def twin_kernels(
    driver: CudaDriver, config: ModelConfig, shape: FrameShape, kind: DenseKind
) -> Mapping[str, Twin]:
    """A `device.MakeKernels`. Like the real ones they have no prefill of 32 bits."""
    ops = [op for op in TWINS if op != "prefill" or kind == shape.page.kind != "f32"]
    return {op: Twin(op, shape, config.heads, kind) for op in ops}


class CpuDense:
    """Keeps `dense.Dense` with torch of the CPU: its work is done when the stream comes to it."""

    def __init__(self, driver: CudaDriver, stream: Any) -> None:
        import torch

        self.device = torch.device("cpu")
        self._driver = driver
        self._stream = stream

    def enter(self) -> None:
        pass

    def view(self, address: int, size: int) -> Any:
        import torch

        return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)

    def run(self, work: Work) -> None:
        load().put(self._stream, work)

    def record(self, work: Work) -> Work:
        fake = load()
        self._driver.begin_capture(self._stream)
        fake.recording = True
        try:
            work()
        finally:
            fake.recording = False
            graph = self._driver.end_capture(self._stream)
        return lambda: self._driver.replay(graph, self._stream)
