"""GPU threads simulated, a block at a time: the sources of kernels run as plain Python.

Each thread is a greenlet that runs until it must meet others: at a barrier of its block, or with
the lanes of its warp. Among those that can run, a seed chooses the order. What no run on a GPU
would tell, or not each time, is an error here:

- a lane that does not come to a shuffle or a vote, a thread that does not come to a barrier;
- two accesses of one cell, one of them a write, that no barrier orders, in shared memory or global;
- an index outside an array; memory that was never written holds not-a-number.

Memory of one launch is sequentially consistent, so what a GPU may reorder is found as a race only.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from greenlet import greenlet

WARP = 32
FULL = (1 << WARP) - 1


class SimulatedFault(AssertionError):
    """What a kernel must not do."""


class Dim3(NamedTuple):
    x: int = 1
    y: int = 1
    z: int = 1


class Stamp(NamedTuple):
    """When a thread did something, as far as barriers tell."""

    block: int
    thread: int
    barriers: int
    warp_barriers: int

    def is_before(self, now: "Stamp") -> bool:
        if self.block != now.block:
            return False
        if self.thread == now.thread or self.barriers < now.barriers:
            return True
        same_warp = self.thread // WARP == now.thread // WARP
        return same_warp and self.warp_barriers < now.warp_barriers


@dataclass(slots=True)
class Meeting:
    """What a thread waits for."""

    kind: str
    mask: int
    where: tuple[Any, int]
    value: Any = None
    lane: Any = None


@dataclass(slots=True)
class Thread:
    index: int
    run: greenlet | None = None
    waits: Meeting | None = None
    result: Any = None
    warp_barriers: int = 0


@dataclass(slots=True)
class Traffic:
    """Who touched each cell of a memory, as far as it still matters."""

    name: str
    writers: dict[int, Stamp] = field(default_factory=dict)
    readers: dict[int, list[Stamp]] = field(default_factory=dict)
    adders: dict[int, list[Stamp]] = field(default_factory=dict)

    def read(self, at: int, now: Stamp) -> None:
        self._order(at, now, [*self._writer(at), *self.adders.get(at, ())])
        self._note(self.readers, at, now)

    def write(self, at: int, now: Stamp) -> None:
        others = (*self.readers.pop(at, ()), *self.adders.pop(at, ()))
        self._order(at, now, [*self._writer(at), *others])
        self.writers[at] = now

    def add(self, at: int, now: Stamp) -> None:
        """Atomic, so in no one's way but of those who read or write."""
        self._order(at, now, [*self._writer(at), *self.readers.get(at, ())])
        self._note(self.adders, at, now)

    def _writer(self, at: int) -> list[Stamp]:
        return [self.writers[at]] if at in self.writers else []

    @staticmethod
    def _note(stamps: dict[int, list[Stamp]], at: int, now: Stamp) -> None:
        noted = stamps.setdefault(at, [])
        if not noted or noted[-1] != now:
            noted.append(now)

    def _order(self, at: int, now: Stamp, before: list[Stamp]) -> None:
        for stamp in before:
            if not stamp.is_before(now):
                raise SimulatedFault(f"race on {self.name}[{at}]: {stamp} and {now}")


class Array:
    """Memory as a kernel sees it: bounds are checked, integers are Python's, cells are watched if
    they may be written."""

    def __init__(self, machine: "Machine", name: str, cells: np.ndarray, watched: bool) -> None:
        self.cells = cells
        self.flat = cells.reshape(-1)
        self.shape = cells.shape
        self.integers = cells.dtype in (np.int32, np.int64)
        self.machine = machine
        self.traffic = Traffic(name) if watched else None
        self.name = name

    def _place(self, index: Any) -> int:
        indices = index if isinstance(index, tuple) else (index,)
        at = 0
        for i, size in zip(indices, self.shape, strict=True):
            if not 0 <= i < size:
                raise SimulatedFault(f"{self.name}[{index}] is outside of {self.shape}")
            at = at * size + int(i)
        return at

    def __getitem__(self, index: Any) -> Any:
        at = self._place(index)
        if self.traffic is not None:
            self.traffic.read(at, self.machine.stamp())
        value = self.flat[at]
        return int(value) if self.integers else value

    def __setitem__(self, index: Any, value: Any) -> None:
        at = self._place(index)
        if self.traffic is not None:
            self.traffic.write(at, self.machine.stamp())
        self.flat[at] = value

    def add(self, index: Any, value: Any) -> Any:
        """An atomic addition; what was there."""
        at = self._place(index)
        if self.traffic is not None:
            self.traffic.add(at, self.machine.stamp())
        before = self.flat[at]
        self.flat[at] = before + self.cells.dtype.type(value)
        return int(before) if self.integers else before


def _poisoned(shape: Any, dtype: Any) -> np.ndarray:
    cells = np.empty(shape, np.dtype(str(dtype)))
    if cells.dtype.kind == "f":
        cells.fill(np.nan)
    else:
        cells.view(np.uint8).fill(0xA5)
    return cells


class _Shared:
    """`cuda.shared`: an array for each place that asks for one."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    def array(self, shape: Any, dtype: Any) -> Array:
        frame = sys._getframe(1)
        key = (frame.f_code, frame.f_lasti)
        arrays = self._machine.shared_arrays
        if key not in arrays:
            name = f"shared@{frame.f_lineno}"
            arrays[key] = Array(self._machine, name, _poisoned(shape, dtype), True)
        return arrays[key]


class _Local:
    @staticmethod
    def array(shape: Any, dtype: Any) -> np.ndarray:
        return _poisoned(shape, dtype)


class _Atomic:
    @staticmethod
    def add(array: Array, index: Any, value: Any) -> Any:
        return array.add(index, value)


class Machine:
    """Stands for the module `numba.cuda` inside of kernels."""

    def __init__(self, seed: int, grid: Dim3, threads: int) -> None:
        self.random = random.Random(seed)
        self.gridDim = grid
        self.blockDim = Dim3(threads)
        self.blockIdx = Dim3(0, 0, 0)
        self.shared, self.local, self.atomic = _Shared(self), _Local(), _Atomic()
        self.shared_arrays: dict[Any, Array] = {}
        self.block = self.barriers = 0
        self.threads: list[Thread] = []
        self.now: Thread = Thread(0)

    @property
    def threadIdx(self) -> Dim3:  # as numba.cuda calls it
        return Dim3(self.now.index, 0, 0)

    def stamp(self) -> Stamp:
        now = self.now
        return Stamp(self.block, now.index, self.barriers, now.warp_barriers)

    def syncthreads(self) -> None:
        self._meet("syncthreads", 0)

    def syncwarp(self) -> None:
        self._meet("syncwarp", FULL)

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._meet("shfl", mask, value, lambda mine: lane % WARP)

    def shfl_xor_sync(self, mask: int, value: Any, bits: int) -> Any:
        return self._meet("shfl_xor", mask, value, lambda mine: mine ^ bits)

    def shfl_up_sync(self, mask: int, value: Any, by: int) -> Any:
        return self._meet("shfl_up", mask, value, lambda mine: mine - by if mine >= by else mine)

    def ballot_sync(self, mask: int, predicate: Any) -> Any:
        return self._meet("ballot", mask, bool(predicate))

    def _meet(self, kind: str, mask: int, value: Any = None, lane: Any = None) -> Any:
        frame = sys._getframe(2)
        thread = self.now
        thread.waits = Meeting(kind, int(mask), (frame.f_code, frame.f_lasti), value, lane)
        greenlet.getcurrent().parent.switch()
        return thread.result

    def run_block(self, kernel: Callable[..., None], index: Dim3, args: list[Any]) -> None:
        self.blockIdx, self.block, self.shared_arrays = index, self.block + 1, {}
        self.threads = [Thread(i) for i in range(self.blockDim.x)]

        def body() -> None:
            with np.errstate(all="ignore"):
                kernel(*args)

        for thread in self.threads:
            thread.run = greenlet(body)
        try:
            while any(thread.run is not None for thread in self.threads):
                self._run_all()
                self._let_meet()
        finally:
            for thread in self.threads:
                if thread.run is not None and not thread.run.dead:
                    thread.run.throw()

    def _run_all(self) -> None:
        """Let each thread that does not wait run until it does, or ends."""
        ready = [
            thread for thread in self.threads if thread.run is not None and thread.waits is None
        ]
        self.random.shuffle(ready)
        for thread in ready:
            self.now = thread
            thread.run.switch()
            if thread.run.dead:
                thread.run = None

    def _let_meet(self) -> None:
        """All that runs now waits: let go those whose meeting is complete."""
        running = [thread for thread in self.threads if thread.run is not None]
        if not running:
            return
        met = False
        for first in range(0, len(self.threads), WARP):
            met |= self._let_warp_meet(self.threads[first : first + WARP])
        at_barrier = [t for t in running if t.waits and t.waits.kind == "syncthreads"]
        if len(at_barrier) == len(running):
            self._let_block_meet(running)
        elif not met:
            waits = {(t.waits.kind, t.waits.where[0].co_name) for t in running if t.waits}
            raise SimulatedFault(f"threads wait for each other: {sorted(waits)}")

    def _let_block_meet(self, running: list[Thread]) -> None:
        if len(running) < len(self.threads):
            raise SimulatedFault(f"a barrier reached by {len(running)} of {len(self.threads)}")
        if len({thread.waits.where for thread in running}) > 1:
            raise SimulatedFault("threads of a block wait at different barriers")
        self.barriers += 1
        for thread in running:
            thread.waits = None

    def _let_warp_meet(self, warp: list[Thread]) -> bool:
        met = False
        groups: dict[Any, dict[int, Thread]] = {}
        for lane, thread in enumerate(warp):
            if thread.waits is not None and thread.waits.mask:
                waits = thread.waits
                groups.setdefault((waits.kind, waits.mask, waits.where), {})[lane] = thread
        for (kind, mask, _), lanes in groups.items():
            named = {lane for lane in range(len(warp)) if mask >> lane & 1}
            if gone := {lane for lane in named if warp[lane].run is None}:
                raise SimulatedFault(f"{kind} waits for lanes {sorted(gone)} that have ended")
            if set(lanes) == named:
                _exchange(kind, lanes)
                met = True
        return met


def _exchange(kind: str, lanes: dict[int, Thread]) -> None:
    values = {lane: thread.waits.value for lane, thread in lanes.items()}
    for lane, thread in lanes.items():
        if kind == "syncwarp":
            thread.warp_barriers += 1
        elif kind == "ballot":
            thread.result = sum(1 << other for other, value in values.items() if value)
        else:
            source = thread.waits.lane(lane)
            if source not in values:
                raise SimulatedFault(f"{kind} reads lane {source}, which is not in its mask")
            thread.result = values[source]
    for thread in lanes.values():
        thread.waits = None


@contextlib.contextmanager
def _standing_for_cuda(machine: Machine) -> Iterator[None]:
    from numba import cuda

    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            ours = name.startswith("tokenix.drivers.cuda.kernels")
            if ours and getattr(module, "cuda", None) is cuda:
                stack.enter_context(mock.patch.object(module, "cuda", machine))
        yield


def launch(
    kernel: Callable[..., None], grid: tuple[int, ...], threads: int, *args: Any, seed: int = 0
) -> None:
    """Run a kernel's Python source over a grid, one block after another, in seeded order.

    Arrays that cannot be written are inputs; all others are watched for races and may be written.
    """
    machine = Machine(seed, Dim3(*grid), threads)
    names = kernel.__code__.co_varnames
    wrapped = [
        Array(machine, name, arg.reshape(-1), arg.flags.writeable)
        if isinstance(arg, np.ndarray)
        else arg
        for name, arg in zip(names, args, strict=False)
    ]
    x, y, z = machine.gridDim
    blocks = [Dim3(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    machine.random.shuffle(blocks)
    with _standing_for_cuda(machine):
        for block in blocks:
            machine.run_block(kernel, block, wrapped)
