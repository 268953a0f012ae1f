"""The process of a rank: python -m tokenix.drivers.cuda.ranks.process FD

It builds its part of the device and does what the kernel's process says over the socket FD, in the
order in which that says it. It ends when the socket does, whatever it is doing: a thread that does
nothing but read sees that.
"""

import errno
import mmap
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from tokenix.drivers.cuda.dense import Dense
from tokenix.drivers.cuda.device import CudaDevice
from tokenix.drivers.cuda.ranks.lanes import MemberLanes
from tokenix.drivers.cuda.ranks.messages import (
    Answer,
    Failed,
    Join,
    Loaded,
    Loading,
    Report,
    Request,
    command_of,
    encode,
    read_request,
)
from tokenix.drivers.cuda.ranks.peers import Peers
from tokenix.drivers.cuda.ranks.rank import Rank
from tokenix.drivers.cuda.ranks.shard import ShardWeights
from tokenix.drivers.cuda.ranks.spec import MemberSpec
from tokenix.drivers.cuda.rates import Rates
from tokenix.drivers.cuda.swap import SwapLanes
from tokenix.drivers.intake import Batch
from tokenix.drivers.ops import Completion, CopyFailed, DeviceFault, Forward


class Member(CudaDevice):
    """The device's part on another rank than the first."""

    def __init__(
        self, spec: MemberSpec, meet: Callable[[Dense], Peers], alive: Callable[[], None]
    ) -> None:
        super().__init__(
            spec.shard.config(spec.config), ShardWeights(spec.open_weights(), spec.shard),
            frames=spec.frames, host_slots=spec.host_slots, page_tokens=spec.page_tokens,
            kv_dtype=spec.kv_dtype, dense=spec.dense, fp8=spec.fp8, ordinal=spec.index,
            progress=lambda stage, part: alive(),
            rank=Rank(spec.shard, mmap.mmap(spec.slots_fd, 0), meet),
            dense_by=spec.dense_by, kernels_by=spec.kernels_by,
        )  # fmt: skip

    def _open_lanes(self, offset_bytes: int) -> SwapLanes:
        return MemberLanes(self._driver, self._arena, self._slots, self._computed, offset_bytes)

    def _tell(self, command: Forward, batch: Batch) -> Callable[[], None]:
        for row, fault in zip(batch.rows, batch.results, strict=True):
            assert (fault is None) == bool(row.tokens), f"rank 0 has seen another row: {fault}"
        return super()._tell(command, batch)

    def _find_rates(self) -> Rates:
        return Rates(0.0, 0.0, 0.0, 0.0)  # rank 0 measures all together


class Line:
    """The socket to the kernel's process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.spec: MemberSpec = pickle.loads(connection.recv_bytes())
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="tokenix-line", daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.requests.put(read_request(self._connection.recv_bytes()))
            except (EOFError, OSError):
                os._exit(0)

    def say(self, report: Report) -> None:
        """Any thread may."""
        with self._lock:
            self._connection.send_bytes(encode(report))


def main() -> None:
    line = Line(Connection(int(sys.argv[1])))
    spec = line.spec

    def meet(dense: Dense) -> Peers:
        line.say(Loaded())
        first = line.requests.get()
        assert isinstance(first, Join), first
        return Peers(
            spec.backend, spec.meeting, spec.index, spec.count, spec.patience_s, dense.device
        )

    try:
        device = Member(spec, meet, lambda: line.say(Loading()))
    except Exception as error:
        line.say(_failure(error))
        return
    telling = threading.Lock()

    def tell() -> None:
        with telling:
            for done in device.poll(0.0):
                line.say(_answer(done))

    device.set_wake(tell)
    while True:
        device.submit(command_of(line.requests.get()), 0.0)


def _answer(done: Completion) -> Answer:
    wrong = done.reason if isinstance(done, DeviceFault | CopyFailed) else ""
    return Answer(done.ticket, wrong)


def _failure(error: Exception) -> Failed:
    text = str(error).split("\n")[0]
    if isinstance(error, MemoryError):
        return Failed(errno.ENOMEM, text)
    if isinstance(error, OSError) and error.errno is not None:
        return Failed(error.errno, error.strerror or text)
    return Failed(errno.EIO, f"{type(error).__name__}: {text}")


if __name__ == "__main__":
    main()
