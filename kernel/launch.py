"""From a plan to a forward pass: rows, pages for them, what the device must be told, the command.

    plan.decodes --> columns of one token each \\
    plan.chunks  --> rows of several tokens     +--> Forward, InFlight
"""

from collections.abc import Iterator, Sequence

import msgspec

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Decodes, Forward, Poison, Row, TableDelta
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.params import Params
from tokenix.kernel.process import STALE, Process
from tokenix.kernel.state import State
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pid, Ticket
from tokenix.sched.plan import Plan, Run
from tokenix.sched.scheduler import Scheduler


class InFlight(msgspec.Struct, frozen=True):
    """The forward pass that the device is running."""

    ticket: Ticket
    decodes: list[Process]
    chunks: list[tuple[Process, int]]
    """(process, tokens). Both parallel to the command's rows."""
    started_s: float
    prefill_tokens: int

    def processes(self) -> Iterator[Process]:
        """Everybody in it."""
        yield from self.decodes
        for process, _ in self.chunks:
            yield process


class Launch(Lifecycle):
    """The process table, and the pass that is in flight."""

    def __init__(
        self,
        info: DeviceInfo,
        scheduler: Scheduler,
        params: Params | None,
        eos_tokens: Sequence[int],
    ) -> None:
        super().__init__(info, scheduler, params, eos_tokens)
        self.in_flight: InFlight | None = None

    def launch(self, plan: Plan) -> None:
        decodes, chunks = plan.decodes, plan.chunks
        suspect = self._find_suspect(plan)
        if suspect is not None:
            decodes, chunks = (), (suspect,)
        tables: list[TableDelta] = []
        streams, rest = self._take_decodes(decodes, tables)
        rows: list[Row] = []
        work: list[tuple[Process, int]] = []
        prefill = 0
        for run in (*rest, *chunks):
            process = self.processes[run.pid]
            todo = process.todo_tokens
            if process.state is not State.READY or todo == 0:
                continue
            space = process.space
            tokens = min(run.tokens, todo)
            if space.gap:
                tokens = min(tokens, space.gap * space.page_tokens - space.computed)
            if not self._map(process, tokens, tables):
                continue
            prefill += tokens if todo > 1 else 0
            start = space.computed
            spec = process.sample_spec() if tokens == todo and process.max_tokens > 0 else None
            piece = tuple(process.tokens[start : start + tokens])
            rows.append(Row(process.pid, start, piece, spec))
            work.append((process, tokens))
        if not streams and not rows:
            return
        self.memory.frames.raise_fence()
        self._poison()
        ticket, dropped = self.new_ticket(), tuple(self.dropped)
        columns = _columns(streams)
        weigh = self.memory.index.weighs and self.counters.steps % self.params.attention_every == 0
        self.commands.append(Forward(ticket, tuple(rows), tuple(tables), dropped, columns, weigh))
        self.dropped.clear()
        self.in_flight = InFlight(ticket, streams, work, self.now_s, prefill)
        running = State.RUNNING
        for process in streams:
            process.state = running
        for process, _ in work:
            process.state = running

    def _take_decodes(
        self, pids: Sequence[Pid], tables: list[TableDelta]
    ) -> tuple[list[Process], list[Run]]:
        """Streams that draw their next token, with a page for it; and who is to go as a row."""
        page_tokens = self.info.page_tokens
        taken = [self.processes[pid] for pid in pids]
        others: dict[Pid, Run | None] = {}
        for process in [
            process
            for process in taken
            if process.spec is STALE or process.table_known * page_tokens <= process.space.computed
        ]:
            if not process.max_tokens:  # computes a segment: draws nothing
                others[process.pid] = Run(process.pid, 1)
            elif self._map(process, 1, tables):
                process.sample_spec()
            else:
                others[process.pid] = None
        if others:
            taken = [process for process in taken if process.pid not in others]
        return taken, [run for run in others.values() if run is not None]

    def _map(self, process: Process, tokens: int, tables: list[TableDelta]) -> bool:
        """Pages for its next tokens, and the device told of them; False: memory is short."""
        self.charge(process)
        if not self.memory.grow(process, tokens):
            self.counters.plan_misses += 1
            return False
        delta = self.memory.table_delta(process)
        if delta is not None:
            tables.append(delta)
        return True

    def _find_suspect(self, plan: Plan) -> Run | None:
        """One who may be the cause of device faults runs alone, so that no one else suffers."""
        for run in plan.run if self.counters.device_faults else ():
            if self.processes[run.pid].faults >= self.params.max_faults:
                return run
        return None

    def _poison(self) -> None:
        """Junk-fill what was freed, ordered before the forward that is about to be submitted. The
        frames are held back until it has retired: copies have queues of their own."""
        frames = self.memory.frames
        freed = frames.take_freed_log()
        if self.params.poison:
            still = [pfn for pfn in dict.fromkeys(freed) if frames.state(pfn) is FrameState.FREE]
            if still:
                self.commands.append(Poison(tuple(still)))
                frames.hold_back(still)


def _columns(streams: list[Process]) -> Decodes:
    return Decodes(
        [process.pid for process in streams],
        [process.space.computed for process in streams],
        [process.tokens[-1] for process in streams],
        [process.spec for process in streams],
    )
