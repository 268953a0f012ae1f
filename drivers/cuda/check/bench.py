"""A device by itself, without a kernel: commands are submitted and waited for."""

import threading
import time
from dataclasses import dataclass, field

from tokenix.drivers.cuda.device import CudaDevice
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyDone,
    CopyIn,
    CopyOut,
    Decodes,
    Forward,
    ForwardDone,
    Row,
    RowFault,
    TableDelta,
)
from tokenix.mm.ids import Ticket

PATIENCE_S = 120.0

NO_DECODES = Decodes()


@dataclass
class Bench:
    """A device, and a way to wait for it."""

    device: CudaDevice
    _woken: threading.Event = field(default_factory=threading.Event)
    _done: dict[Ticket, Completion] = field(default_factory=dict)
    _tickets: int = 0

    def __post_init__(self) -> None:
        self.device.set_wake(self._woken.set)

    def ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def start(self, command: Command) -> None:
        self.device.submit(command, 0.0)

    def wait(self, ticket: Ticket) -> Completion:
        until = time.monotonic() + PATIENCE_S
        while ticket not in self._done:
            self._woken.clear()
            for completion in self.device.poll(0.0):
                self._done[completion.ticket] = completion
            if ticket not in self._done and not self._woken.wait(until - time.monotonic()):
                raise TimeoutError(f"the GPU does not answer within {PATIENCE_S:g} s")
        return self._done.pop(ticket)

    def run(
        self,
        rows: tuple[Row, ...] = (),
        tables: tuple[TableDelta, ...] = (),
        decodes: Decodes = NO_DECODES,
    ) -> ForwardDone:
        """A pass. RuntimeError if it, or a row of it, fails."""
        ticket = self.ticket()
        self.start(Forward(ticket, rows, tables, decodes=decodes))
        return self.finish(ticket)

    def finish(self, ticket: Ticket) -> ForwardDone:
        """What a pass has drawn. RuntimeError if it, or a row of it, has failed."""
        done = self.wait(ticket)
        if not isinstance(done, ForwardDone):
            raise RuntimeError(f"a pass has failed: {done}")
        for result in done.results:
            if isinstance(result, RowFault):
                raise RuntimeError(f"a row has failed: {result.reason}")
        return done

    def copy(self, *commands: CopyIn | CopyOut) -> float:
        """Seconds of copies that begin together. RuntimeError if one fails."""
        began = time.perf_counter()
        for command in commands:
            self.start(command)
        for command in commands:
            done = self.wait(command.ticket)
            if not isinstance(done, CopyDone):
                raise RuntimeError(f"a copy has failed: {done}")
        return time.perf_counter() - began

    def forward(
        self, decodes: Decodes, rows: tuple[Row, ...] = (), tables: tuple[TableDelta, ...] = ()
    ) -> float:
        """Seconds of a pass."""
        began = time.perf_counter()
        self.run(rows, tables, decodes)
        return time.perf_counter() - began
