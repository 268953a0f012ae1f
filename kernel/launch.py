"""From a plan to a forward pass: rows, pages for them, what the device must be told, the command.

    plan.decodes --> columns of one token each \\
    plan.chunks  --> rows of several tokens     +--> Forward, InFlight

A device that takes a second pass while the first one runs is given it (README.md): rows of who is
in the first begin where those end.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Decodes, Forward, Poison, Row, TableDelta, drawn_by
from tokenix.kernel.commit import count_to_go, is_void
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.params import Params
from tokenix.kernel.process import STALE, Process
from tokenix.kernel.state import State
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pid, Ticket
from tokenix.sched.plan import Plan, Run
from tokenix.sched.scheduler import Scheduler


class InFlight(msgspec.Struct, frozen=True):
    """A forward pass that the device is running, or runs next."""

    ticket: Ticket
    decodes: list[Process]
    chunks: list[tuple[Process, int]]
    """(process, tokens). Both parallel to the command's rows."""
    starts: list[int]
    """Of all rows, the position at which each begins."""
    places: dict[Pid, int]
    """Which row each process has."""
    started_s: float
    prefill_tokens: int

    def processes(self) -> Iterator[Process]:
        """Everybody in it."""
        yield from self.decodes
        for process, _ in self.chunks:
            yield process

    def count_tokens(self, row: int) -> int:
        """Of a row."""
        decodes = len(self.decodes)
        return 1 if row < decodes else self.chunks[row - decodes][1]


class Stand(msgspec.Struct, frozen=True):
    """Where a process is when its next row begins."""

    computed: int
    """Tokens whose KV there is."""
    todo: int
    """Tokens whose KV there is not; 0: it has no next row now."""


REST: Final = Stand(0, 0)
NOBODY: Final[Mapping[Pid, Stand]] = MappingProxyType({})


class Launch(Lifecycle):
    """The process table, and the passes that are in flight."""

    def __init__(
        self,
        info: DeviceInfo,
        scheduler: Scheduler,
        params: Params | None,
        eos_tokens: Sequence[int],
    ) -> None:
        super().__init__(info, scheduler, params, eos_tokens)
        assert info.depth in (1, 2), "a row goes on with one of the pass before"
        self.flights: deque[InFlight] = deque()
        """In the order in which they run; at most `info.depth`."""
        self.ahead_due = False
        """Something has been launched or has retired since a pass was planned ahead."""
        self.short = False
        """There was no frame for something under a fence: the device must come to rest first, for
        then there may be."""

    @property
    def in_flight(self) -> InFlight | None:
        """The pass that the device is running."""
        return self.flights[0] if self.flights else None

    # ---- ahead of what runs ----

    def look_ahead(self, plan: Plan) -> Mapping[Pid, Stand] | None:
        """Where those of a plan who are in the running pass will stand when it has retired. None:
        the plan has to wait for that. It takes memory from somebody, or refuses what may fit then,
        or somebody's next row needs a token that the host must see first."""
        if not self.flights:
            return NOBODY
        if plan.pause or plan.refuse or self._find_suspect(plan) is not None:
            return None
        ahead: dict[Pid, Stand] = {}
        for pid in (*plan.decodes, *(run.pid for run in plan.chunks)):
            process = self.processes[pid]
            if process.state is State.RUNNING:
                stand = ahead[pid] = self._stand_behind(self.flights[-1], process)
                if stand.computed == process.length and not process.sample_spec().plain:
                    return None
        return ahead

    def _stand_behind(self, flight: InFlight, process: Process) -> Stand:
        """Where a process of a pass will stand when that has retired and all went well."""
        row, space = flight.places[process.pid], process.space
        start, length = flight.starts[row], len(process.tokens)
        if process.hold or space.gap or is_void(process, start):
            return REST
        end = start + flight.count_tokens(row)
        if end < length:
            return Stand(end, length - end)
        if end < process.quiet_until:
            return Stand(end, 1)
        bounds = self.info.max_context_tokens, self.params.pipe_tokens
        ends = not process.in_turn or count_to_go(process, *bounds) <= 1
        return REST if ends else Stand(end, 1)

    # ---- a pass ----

    def launch(self, plan: Plan, ahead: Mapping[Pid, Stand] = NOBODY) -> None:
        """`ahead`: of those who are in the running pass, where each will stand behind it."""
        decodes, chunks = plan.decodes, plan.chunks
        suspect = self._find_suspect(plan)
        if suspect is not None:
            decodes, chunks = (), (suspect,)
        tables: list[TableDelta] = []
        streams, rest = self._take_decodes(decodes, ahead, tables)
        rows: list[Row] = []
        work: list[tuple[Process, int]] = []
        prefill = 0
        for run in (*rest, *chunks):
            process = self.processes[run.pid]
            space, stand = process.space, _stand(process, ahead)
            start, tokens = stand.computed, min(run.tokens, stand.todo)
            if space.gap:
                tokens = min(tokens, space.gap * space.page_tokens - start)
            if tokens == 0 or not self._map(process, start + tokens, tables):
                continue
            prefill += tokens if stand.todo > 1 else 0
            draws = tokens == stand.todo and process.max_tokens > 0
            spec = process.sample_spec() if draws else None
            rows.append(Row(process.pid, start, self._tokens(process, start, tokens), spec))
            work.append((process, tokens))
        if not streams and not rows:
            return
        columns = self._columns(streams)
        ticket = self._submit(rows, columns, tables)
        members = [*streams, *(process for process, _ in work)]
        starts = [*columns.starts, *(row.start for row in rows)]
        places = {process.pid: row for row, process in enumerate(members)}
        self.flights.append(InFlight(ticket, streams, work, starts, places, self.now_s, prefill))
        self.ahead_due = True
        running = State.RUNNING
        for process in members:
            process.state = running

    def _submit(self, rows: list[Row], columns: Decodes, tables: list[TableDelta]) -> Ticket:
        self.memory.frames.raise_fence()
        self._poison()
        ticket, dropped = self.new_ticket(), tuple(self.dropped)
        step = self.counters.steps + len(self.flights)
        weigh = self.memory.index.weighs and step % self.params.attention_every == 0
        covered = self.memory.copies.covered
        inside = covered is not None and any(row.pid == covered.pid for row in rows)
        beside = covered.ticket if covered is not None and inside else None
        self.commands.append(
            Forward(ticket, tuple(rows), tuple(tables), dropped, columns, weigh, beside)
        )
        self.dropped.clear()
        return ticket

    def _take_decodes(
        self, pids: Sequence[Pid], ahead: Mapping[Pid, Stand], tables: list[TableDelta]
    ) -> tuple[list[Process], list[Run]]:
        """Streams that draw their next token, with a page for it; and who is to go as a row."""
        page_tokens = self.info.page_tokens
        taken = [self.processes[pid] for pid in pids]
        if self.flights:
            taken = [process for process in taken if _stand(process, ahead).todo]
        others: dict[Pid, Run | None] = {}
        more = len(self.flights)
        for process in [
            process
            for process in taken
            if process.spec is STALE
            or process.table_known * page_tokens <= process.space.computed + more
        ]:
            if not process.max_tokens:  # computes a segment: draws nothing
                others[process.pid] = Run(process.pid, 1)
            elif self._map(process, _stand(process, ahead).computed + 1, tables):
                process.sample_spec()
            else:
                others[process.pid] = None
        if others:
            taken = [process for process in taken if process.pid not in others]
        return taken, [run for run in others.values() if run is not None]

    def _map(self, process: Process, end: int, tables: list[TableDelta]) -> bool:
        """Pages for its tokens up to `end`, and the device told of them; False: memory is short."""
        self.charge(process)
        if not self.memory.grow(process, end - process.space.computed):
            self.counters.plan_misses += 1
            self.short = True
            return False
        delta = self.memory.table_delta(process)
        if delta is not None:
            tables.append(delta)
        return True

    def _tokens(self, process: Process, start: int, tokens: int) -> tuple[int, ...]:
        """From position `start` on; one that is behind what is known is being drawn."""
        if start == process.length:
            return (drawn_by(self.flights[-1].places[process.pid]),)
        return tuple(process.tokens[start : start + tokens])

    def _columns(self, streams: list[Process]) -> Decodes:
        pids, specs = [process.pid for process in streams], [process.spec for process in streams]
        starts = [process.space.computed for process in streams]
        tokens = [process.tokens[-1] for process in streams]
        if self.flights:
            places = self.flights[-1].places
            for i, process in enumerate(streams):
                if process.state is State.RUNNING:
                    starts[i] += 1
                    tokens[i] = drawn_by(places[process.pid])
        return Decodes(pids, starts, tokens, specs)

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


def _stand(process: Process, ahead: Mapping[Pid, Stand]) -> Stand:
    if process.state is State.READY:
        return Stand(process.space.computed, process.todo_tokens)
    return ahead[process.pid] if process.state is State.RUNNING else REST
