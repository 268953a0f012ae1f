"""Where the time of a decode step goes, on a machine whose every part is the production one.

    compute thread  | intake | rows | model            | draw |              | intake | ...
    kernel's thread  replies, reads of the last tokens          wake | step |  hand
                    |<------------------------- one step -------------------------->|

    with watch("smollm2", frames=512) as (k, anatomy):
        ...                             # streams that decode
        anatomy.steps(8)                # of all passes of eight decodes so far

`model` is the layers and the head: compiled code, and what calls it. `wake` is from the end of a
pass to the kernel's step, `hand` from the end of that to the beginning of the next pass.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from tokenix.drivers.ops import Forward, ForwardDone
from tokenix.kernel.boot import Machine
from tokenix.kernel.core import Kernel
from tokenix.kernel.event import Command, Event
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.port import LocalPort

PARTS = ("model", "intake", "rows", "draw", "wake", "step", "hand")


@dataclass(slots=True)
class Pass:
    """One forward pass; times by `time.perf_counter`, in seconds."""

    decodes: int
    begun_s: float
    """Its command is at the compute thread."""
    intake_s: float = 0.0
    forward_s: float = 0.0
    """The model and the making of its rows ..."""
    model_s: float = 0.0
    """... of which the model."""
    ended_s: float = 0.0
    step_begun_s: float = 0.0
    """The kernel's step that commits it, with the handing on of what it has drawn."""
    step_ended_s: float = 0.0


@dataclass(slots=True)
class Anatomy:
    """All passes that were watched."""

    passes: list[Pass] = field(default_factory=list)

    def steps(self, decodes: int, skip: int = 8) -> dict[str, float]:
        """Medians in seconds of each part, of the whole (`whole`) and of all but the model
        (`around`), over passes of `decodes` decodes and nothing else that follow one another; the
        first `skip` are left out. Empty if there are none."""
        found: list[dict[str, float]] = []
        for one, after in zip(self.passes, self.passes[1:], strict=False):
            if one.decodes == after.decodes == decodes and one.step_ended_s:
                found.append(_parts(one, after.begun_s))
        found = found[skip:]
        if not found:
            return {}
        return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _parts(one: Pass, next_s: float) -> dict[str, float]:
    computed_s, whole_s = one.ended_s - one.begun_s, next_s - one.begun_s
    return {
        "model": one.model_s,
        "intake": one.intake_s,
        "rows": one.forward_s - one.model_s,
        "draw": computed_s - one.forward_s - one.intake_s,
        "wake": one.step_begun_s - one.ended_s,
        "step": one.step_ended_s - one.step_begun_s,
        "hand": next_s - one.step_ended_s,
        "whole": whole_s,
        "around": whole_s - one.model_s,
    }


@contextmanager
def watch(
    model: str, frames: int, threads: int | None = None, weights: str | None = None
) -> Iterator[tuple[Syscalls, Anatomy]]:
    """Boot a machine on the CPU, without tiers below. `weights`: how they are stored, "native",
    "bf16" or "f16"; None: as the device likes. Errors as `boot`'s."""
    from tokenix.drivers.cpu.device import CpuDevice
    from tokenix.kernel.boot import make_kernel
    from tokenix.kernel.loop import Pump
    from tokenix.kernel.params import Params
    from tokenix.models.registry import load_image
    from tokenix.sched.tunables import Tunables, retune

    anatomy = Anatomy()

    class Watched(CpuDevice):
        def _forward(self, command: Forward) -> ForwardDone:
            decodes = 0 if command.rows else len(command.decodes.pids)
            one = Pass(decodes, time.perf_counter())
            anatomy.passes.append(one)
            done = super()._forward(command)
            one.ended_s = time.perf_counter()
            return done

    image = load_image(model)
    chosen: dict[str, Any] = {} if weights is None else {"dense": weights}
    device = Watched(
        image.config, image.weights, frames=frames, host_slots=0, threads=threads, **chosen
    )
    _time_inside(device, anatomy)
    patient = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
    kernel = make_kernel(
        device, "progress", Params(), retune(Tunables(), patient), image.config.eos_tokens
    )
    pump = Pump(cast("Kernel", _WatchedKernel(kernel, anatomy)), device)
    try:
        yield Syscalls(LocalPort(Machine(image, kernel, pump))), anatomy
    finally:
        pump.close()


class _WatchedKernel:
    """As much of a kernel as its pump needs."""

    def __init__(self, kernel: Kernel, anatomy: Anatomy) -> None:
        self._kernel = kernel
        self._anatomy = anatomy
        self.next_wake_s = kernel.next_wake_s
        self._ending: Pass | None = None
        """Whose end the kernel has been told of in this step."""

    def learn(self, now_s: float, inbox: Sequence[Event]) -> list[Command]:
        self._ending = None
        if any(isinstance(event, ForwardDone) for event in inbox):
            self._ending = self._anatomy.passes[-1]
            self._ending.step_begun_s = time.perf_counter()
        return self._kernel.learn(now_s, inbox)

    def decide(self) -> list[Command]:
        commands = self._kernel.decide()
        if self._ending is not None:
            self._ending.step_ended_s = time.perf_counter()
        return commands


def _time_inside(device: Any, anatomy: Anatomy) -> None:
    """Time the parts of its passes."""

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            before_s = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                if anatomy.passes:
                    one = anatomy.passes[-1]
                    setattr(one, part, getattr(one, part) + time.perf_counter() - before_s)

        return run

    intake, model = device._intake, device._step
    intake.take = timed("intake_s", intake.take)
    model.forward = timed("forward_s", model.forward)
    model._net.run = timed("model_s", model._net.run)
