"""A machine on a GPU that tells when it was idle: the production kernel, pump and device, a model
of random weights, and the GPU's own clock at both ends of each decode step.

    compute stream   inputs | ^ step ... | ^ tokens out | inputs | ^ step ... | ^
                              first       last            first
                                         |---- idle ------|            and small copies

    with open_gpu(frames=1024, host_slots=4096) as gpu:
        ...                             # streams that decode, by gpu.k
        gpu.clock.gaps(32)              # of all steps of 32 rows that follow one another
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.port import LocalPort
from tokenix.syscalls.rehearsal import InventedConfig, InventedImage

if TYPE_CHECKING:
    from tokenix.drivers.cuda.device import CudaDevice
    from tokenix.models.image import ProgramImage

MakeDevice = Callable[[int, int], "CudaDevice"]
"""(frames, host slots) -> a device."""

PATIENT = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
"""Nobody is refused."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Of steps of one number of rows that follow one another."""

    steps: int
    step_s: float
    """Mean, from the beginning of one to that of the next."""
    idle_share: float
    """Of that: between the end of one and the beginning of the next."""


class Clock:
    """When the GPU has begun and ended each decode step of a device, by its own events."""

    def __init__(self, device: Any) -> None:
        self._driver = driver = device._driver
        self._steps: list[tuple[int, Any, Any] | None] = []
        """(bucket, first event, last event); None: another kind of pass."""
        step = device._step
        replay, mixed = step._replay, step._mixed

        def timed_replay(bucket: int, splits: int) -> None:
            first, last = driver.event(timed=True), driver.event(timed=True)
            driver.record(first, device._stream)
            replay(bucket, splits)
            driver.record(last, device._stream)
            self._steps.append((bucket, first, last))

        def noted_mixed(*arguments: Any) -> Any:
            self._steps.append(None)
            return mixed(*arguments)

        step._replay, step._mixed = timed_replay, noted_mixed

    def gaps(self, rows: int, skip: int = 8) -> Gaps | None:
        """Of the steps of so many rows (a bucket) so far, but for the first ones, which warm up and
        are captured; None if there are too few. Nothing may be under way. They are forgotten."""
        self._driver.enter()
        steps, self._steps = self._steps, []
        whole_s, idle_s, count = 0.0, 0.0, -skip
        for one, after in pairwise(steps):
            if one is not None and after is not None and one[0] == after[0] == rows:
                count += 1
                if count > 0:
                    whole_s += self._driver.elapsed_s(one[1], after[1])
                    idle_s += self._driver.elapsed_s(one[2], after[1])
        for found in steps:
            for event in found[1:] if found is not None else ():
                self._driver.destroy_event(event)
        return Gaps(count, whole_s / count, idle_s / whole_s) if count > 0 else None


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A machine, and what it is measured by."""

    k: Syscalls
    clock: Clock
    vocab_tokens: int
    page_bytes: int
    link_s: float
    """Seconds of a plain copy of one page to the GPU, in a copy of many."""


def open_random(frames: int, host_slots: int) -> "CudaDevice":
    """A model in the shape of Llama 3.1 8B."""
    from tokenix.drivers.cuda.check.model import Noise
    from tokenix.drivers.cuda.check.setup import LLAMA_8B
    from tokenix.drivers.cuda.device import CudaDevice

    return CudaDevice(LLAMA_8B, Noise(LLAMA_8B), frames=frames, host_slots=host_slots)


@contextmanager
def open_gpu(frames: int, host_slots: int, make: MakeDevice = open_random) -> Iterator[GpuMachine]:
    """Boot it. OSError ENODEV without a GPU; MemoryError if pages do not fit."""
    from tokenix.drivers.cuda.check.model import measure_link
    from tokenix.kernel.boot import Machine, make_kernel
    from tokenix.kernel.loop import Pump
    from tokenix.kernel.params import Params
    from tokenix.sched.tunables import Tunables, retune

    device = make(frames, host_slots)
    try:
        device._driver.enter()
        info, pages = device.info(), min(frames, host_slots)
        _, link_s = measure_link(device, 0, pages * device._arena.shape.stride_bytes)
        clock = Clock(device)
        kernel = make_kernel(device, "progress", Params(), retune(Tunables(), PATIENT))
        pump = Pump(kernel, device)
    except BaseException:
        device.close()
        raise
    image = InventedImage(config=InventedConfig(max_context_tokens=info.max_context_tokens))
    try:
        yield GpuMachine(
            Syscalls(LocalPort(Machine(cast("ProgramImage", image), kernel, pump))),
            clock, info.vocab_tokens, info.frame_bytes, link_s / pages,
        )  # fmt: skip
    finally:
        pump.close()
