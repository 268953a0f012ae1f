"""The CUDA driver API as far as this driver needs it: one context, one place that checks results.

Handles are those of cuda.bindings; addresses are ints. The context is the device's primary one,
which torch uses too. Calls let go of the GIL.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tokenix.drivers.cuda.probe import Gpu, find_gpu, load_driver

OUT_OF_MEMORY = 2

LOST = frozenset(
    (
        214, 220, 226,  # uncorrectable errors of memory and of NVLink, and what was contained
        700, 702, 714, 715, 716, 717, 718, 719,  # addresses, time, instructions, launches
        709, 710, 721,  # a context that is destroyed, assertions, leaks of tensor memory
        999,
    )
)  # fmt: skip
"""Results after which the context serves nothing any more."""

_NON_BLOCKING, _NO_TIMING, _PORTABLE = 1, 2, 1

_END_STREAM = "cuStreamDestroy"


class CudaError(RuntimeError):
    """A call failed. `lost`: so will all others until the process is restarted."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.code = code
        self.lost = code in LOST
        after = "; the GPU is lost to this process: restart it" if self.lost else ""
        super().__init__(f"{name} ({code}) in {call}{after}")


class OutOfDeviceMemory(CudaError):
    """The GPU has too little memory left."""


class CudaDriver:
    """The API of one GPU. Any thread may call, after `enter` in it. OSError ENODEV if there is
    none; CudaError for what fails."""

    def __init__(self, ordinal: int = 0) -> None:
        self.gpu: Gpu = find_gpu(ordinal)
        self._api: Any = load_driver()
        self._device = self._check("cuDeviceGet", ordinal)
        self._context = self._check("cuDevicePrimaryCtxRetain", self._device)
        self._held: dict[tuple[str, int], Any] = {}
        """What is to be given back, by the call that does it."""
        self.enter()

    def enter(self) -> None:
        """Make the context the calling thread's. Once in each thread."""
        self._check("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        """Let go of the context, and before that of what was made of it and not given back: by a
        constructor that has failed, say. Nothing may be in use any more."""
        left = [(call, made) for (call, _), made in reversed(self._held.items())]
        running = [("cuStreamSynchronize", made) for call, made in left if call == _END_STREAM]
        for call, made in (*running, *left):
            with suppress(CudaError):  # of a lost GPU
                self._check(call, made)
        self._held.clear()
        self._check("cuDevicePrimaryCtxRelease", self._device)

    def _hold(self, call: str, made: Any) -> Any:
        """`made`, to be given back by that call."""
        self._held[call, int(made)] = made
        return made

    def _give_back(self, call: str, made: Any) -> None:
        self._check(call, made)
        self._held.pop((call, int(made)), None)

    def _check(self, call: str, *args: Any) -> Any:
        result, *values = getattr(self._api, call)(*args)
        if int(result):
            self._raise(call, result)
        return values[0] if len(values) == 1 else values

    def _raise(self, call: str, result: Any) -> None:
        kind = OutOfDeviceMemory if int(result) == OUT_OF_MEMORY else CudaError
        raise kind(call, int(result), result.name)

    # ---- memory ----

    def alloc(self, size: int) -> int:
        """Address of `size` bytes on the device, aligned to 256."""
        return int(self._hold("cuMemFree", int(self._check("cuMemAlloc", size))))

    def free(self, address: int) -> None:
        self._give_back("cuMemFree", address)

    def free_bytes(self) -> int:
        left, _ = self._check("cuMemGetInfo")
        return int(left)

    def pin(self, address: int, size: int) -> None:
        """Lock host memory in place, so that copies run beside everything else."""
        self._check("cuMemHostRegister", address, size, _PORTABLE)
        self._hold("cuMemHostUnregister", address)

    def unpin(self, address: int) -> None:
        self._give_back("cuMemHostUnregister", address)

    # ---- streams and events ----

    def stream(self) -> Any:
        """A queue of work on the device; unordered with all others."""
        return self._hold(_END_STREAM, self._check("cuStreamCreate", _NON_BLOCKING))

    def destroy_stream(self, stream: Any) -> None:
        self._give_back(_END_STREAM, stream)

    def sync(self, stream: Any) -> None:
        """Wait until the stream is empty."""
        self._check("cuStreamSynchronize", stream)

    def event(self, timed: bool = False) -> Any:
        """timed: `elapsed_s` can tell when it was done; that makes the others slower."""
        flags = 0 if timed else _NO_TIMING
        return self._hold("cuEventDestroy", self._check("cuEventCreate", flags))

    def destroy_event(self, event: Any) -> None:
        self._give_back("cuEventDestroy", event)

    def record(self, event: Any, stream: Any) -> None:
        """The event is done when what the stream has so far is done."""
        self._check("cuEventRecord", event, stream)

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream gets from now on runs after the event."""
        self._check("cuStreamWaitEvent", stream, event, 0)

    def sync_event(self, event: Any) -> None:
        """Wait for an event."""
        self._check("cuEventSynchronize", event)

    def elapsed_s(self, first: Any, last: Any) -> float:
        """Seconds of the device between two timed events that are done."""
        return float(self._check("cuEventElapsedTime", first, last)) / 1e3

    # ---- work ----

    def copy_in(self, to: int, source: int, size: int, stream: Any) -> None:
        """Pinned host memory to the device."""
        self._check("cuMemcpyHtoDAsync", to, source, size, stream)

    def copy_in_rows(
        self, to: int, source: int, width: int, rows: int, pitch: int, stream: Any
    ) -> None:
        """Likewise, `width` bytes of each of `rows` rows that are `pitch` apart on both sides."""
        kinds, part = self._api.CUmemorytype, self._api.CUDA_MEMCPY2D()
        part.srcMemoryType, part.srcHost, part.srcPitch = kinds.CU_MEMORYTYPE_HOST, source, pitch
        part.dstMemoryType, part.dstDevice, part.dstPitch = kinds.CU_MEMORYTYPE_DEVICE, to, pitch
        part.WidthInBytes, part.Height = width, rows
        self._check("cuMemcpy2DAsync", part, stream)

    def copy_out(self, to: int, source: int, size: int, stream: Any) -> None:
        """The device to pinned host memory."""
        self._check("cuMemcpyDtoHAsync", to, source, size, stream)

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        """Within the device."""
        self._check("cuMemcpyDtoDAsync", to, source, size, stream)

    def upload(self, to: int, source: int, size: int) -> None:
        """Any host memory to the device; returns when it is there. Not ordered with streams."""
        self._check("cuMemcpyHtoD", to, source, size)
        # That returns when the source is staged; streams of ours do not wait for the rest.
        self._check("cuStreamSynchronize", 0)

    def download(self, to: int, source: int, size: int) -> None:
        """The device to any host memory, likewise."""
        self._check("cuMemcpyDtoH", to, source, size)

    def fill(self, address: int, word: int, words: int, stream: Any) -> None:
        """`words` times the same uint32."""
        self._check("cuMemsetD32Async", address, word, words, stream)

    def load(self, image: bytes) -> Any:
        """The module of machine code."""
        return self._hold("cuModuleUnload", self._check("cuModuleLoadData", image))

    def function(self, module: Any, symbol: str) -> Any:
        return self._check("cuModuleGetFunction", module, symbol.encode())

    def unload(self, module: Any) -> None:
        self._give_back("cuModuleUnload", module)

    def allow_shared(self, function: Any, size: int) -> None:
        """Let a function use so many bytes of dynamic shared memory."""
        kind = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._check("cuFuncSetAttribute", function, kind, size)

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        block: int,
        stream: Any,
    ) -> None:
        """Start a kernel. block: address of an argument block (`arguments.Block`)."""
        self._check(
            "cuLaunchKernel", function, *grid, threads, 1, 1, shared_bytes, stream, 0, block
        )

    # ---- graphs ----

    def begin_capture(self, stream: Any) -> None:
        """What this thread gives the stream from now on is recorded, not run."""
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._check("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: Any) -> Any:
        """The recording, ready for `replay`."""
        graph = self._check("cuStreamEndCapture", stream)
        made = self._check("cuGraphInstantiate", graph, 0)
        self._check("cuGraphDestroy", graph)
        return self._hold("cuGraphExecDestroy", made)

    def replay(self, graph: Any, stream: Any) -> None:
        self._check("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: Any) -> None:
        self._give_back("cuGraphExecDestroy", graph)

    @contextmanager
    def timed(self, stream: Any) -> Iterator[list[float]]:
        """The list gets the seconds that the device spent on what the stream is given inside."""
        events = [self.event(timed=True) for _ in range(2)]
        seconds: list[float] = []
        self.record(events[0], stream)
        yield seconds
        self.record(events[1], stream)
        self.sync_event(events[1])
        seconds.append(self.elapsed_s(*events))
        for event in events:
            self.destroy_event(event)
