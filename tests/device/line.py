"""Processes whose forwards are in flight two at a time."""

import threading
from collections import deque
from collections.abc import Sequence

from tokenix.drivers.faults import Faults
from tokenix.drivers.ops import (
    Command,
    Decodes,
    Forward,
    ForwardDone,
    Row,
    RowFault,
    Sampled,
    SampleSpec,
    drawn_by,
)
from tokenix.mm.ids import Ticket
from tokenix.tests.device.machine import Machine, Proc


class Gate(Faults):
    """The first command after `shut` waits until `open`: what is behind it is there by then."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()

    def shut(self) -> None:
        self._free.clear()

    def open(self) -> None:
        self._free.set()

    def before(self, command: Command) -> str | None:
        assert self._free.wait(60.0)
        return None


class Line:
    """Launches forwards of a machine before it lands those before."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flights: deque[tuple[Ticket, Sequence[Proc]]] = deque()
        self._before: list[Proc] = []

    def launch(
        self, procs: Sequence[Proc], columns: bool = False, beside: Ticket | None = None
    ) -> None:
        """Whoever was in the forward before goes on with it."""
        rows, machine = [], self.machine
        for proc in procs:
            if proc in self._before:
                place = self._before.index(proc)
                spec = SampleSpec(proc.params, (), proc.prompt)
                rows.append(Row(proc.pid, proc.done, (drawn_by(place),), spec))
            else:
                rows.append(proc.row())
            proc.done = rows[-1].end
        deltas = tuple(delta for proc in procs for delta in proc.take_delta())
        forward = Forward(machine.ticket(), tuple(rows), deltas, beside=beside)
        if columns:
            by_row = [(row.pid, row.start, row.tokens[0], row.sample) for row in rows]
            decodes = Decodes(*(list(column) for column in zip(*by_row, strict=True)))
            forward = Forward(forward.ticket, (), deltas, (), decodes, beside=beside)
        self.flights.append((machine.submit(forward), procs))
        self._before = list(procs)

    def land(self) -> list[Sampled | RowFault | None]:
        """The oldest one's results."""
        ticket, procs = self.flights.popleft()
        done = self.machine.wait(ticket)
        assert isinstance(done, ForwardDone)
        for proc, result in zip(procs, done.results, strict=True):
            if isinstance(result, Sampled):
                proc.tokens.append(result.token)
                proc.drawn.append(result)
        return list(done.results)
