"""The device's block tables, and whether a forward's deltas and rows keep the contract."""

from dataclasses import dataclass

from tokenix.drivers.ops import Forward, Row, drawn_by
from tokenix.drivers.sim.fences import Fences, Flight, Queue
from tokenix.mm.ids import Pid


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A row with the block table it will see: later deltas do not change it."""

    row: Row
    table: tuple[int, ...]
    broken: str
    """Why the row cannot run, "" if it can."""
    goes_on: bool = False
    """Whether it begins where the row of its process in a forward that is running ends."""


class Tables:
    def __init__(self, page_tokens: int, vocab: int, max_context_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._vocab = vocab
        self._max_context_tokens = max_context_tokens
        self._tables: dict[int, tuple[int, ...]] = {}
        self._before: tuple[Row, ...] = ()
        """Rows of the forward before."""

    def bind(self, command: Forward, fences: Fences) -> tuple[list[BoundRow], Flight]:
        """Apply drops and deltas, give each row its table, and report what breaks the rules."""
        name = f"Forward {command.ticket}"
        for pid in command.drop:
            self._tables.pop(pid, None)
        self._apply_deltas(name, command, fences)
        all_rows = command.all_rows()
        running = fences.count_forwards() > 0  # else the kernel knows what became of its rows
        ends = {row.pid: row.end for row in self._before if running}
        rows = [self._bind_row(name, row, ends, fences) for row in all_rows]
        self._before = all_rows
        if len({bound.row.pid for bound in rows}) < len(rows):
            fences.report(f"{name}: two rows of one process")
        reads: set[int] = set()
        writes: dict[int, int] = {}
        for bound in rows:
            if bound.broken:
                continue
            first = bound.row.start // self._page_tokens
            reads.update(bound.table[:first])
            for pfn in bound.table[first:]:
                if pfn in writes:
                    fences.report(
                        f"{name}: frame {pfn} is written by pid {bound.row.pid}"
                        f" and by pid {writes[pfn]}"
                    )
                writes[pfn] = bound.row.pid
        for pfn in sorted(reads & writes.keys()):
            fences.report(f"{name}: frame {pfn} is written by pid {writes[pfn]} and read by others")
        return rows, Flight(
            name, Queue.COMPUTE, reads=reads, writes=writes.keys(), beside=command.beside
        )

    def _apply_deltas(self, name: str, command: Forward, fences: Fences) -> None:
        changed: set[int] = set()
        for delta in command.tables:
            if delta.pid in changed:
                fences.report(f"{name}: two table deltas for pid {delta.pid}")
            changed.add(delta.pid)
            old = self._tables.get(delta.pid, ())
            if not 0 <= delta.keep <= len(old):
                fences.report(
                    f"{name}: delta of pid {delta.pid} keeps {delta.keep} of {len(old)} pages"
                )
            table = old[: max(0, delta.keep)] + delta.frames
            if len(set(table)) < len(table):
                fences.report(f"{name}: table of pid {delta.pid} names a frame twice")
            if not fences.frames_in_range(f"{name}: table of pid {delta.pid}", delta.frames):
                table = ()
            self._tables[delta.pid] = table

    def _bind_row(self, name: str, row: Row, ends: dict[Pid, int], fences: Fences) -> BoundRow:
        end = row.end
        pages = -(-end // self._page_tokens)
        table = self._tables.get(row.pid, ())
        broken = ""
        if not row.tokens or row.start < 0:
            broken = f"row of {len(row.tokens)} tokens at position {row.start}"
        elif end > self._max_context_tokens:
            broken = f"position {end - 1} is outside the context of {self._max_context_tokens}"
        elif pages > len(table):
            broken = f"position {end - 1} is outside the block table of {len(table)} pages"
        elif max(row.tokens) >= self._vocab:
            broken = f"a token is outside the vocabulary of {self._vocab}"
        elif min(row.tokens) < 0:
            broken = self._check_drawn_by(row)
        if broken:
            fences.report(f"{name}: pid {row.pid}: {broken}")
        return BoundRow(row, table[:pages], broken, ends.get(row.pid) == row.start)

    def _check_drawn_by(self, row: Row) -> str:
        """What is wrong with a row whose token the forward before draws; "" if nothing."""
        at = drawn_by(row.tokens[0])
        if len(row.tokens) > 1 or at >= len(self._before):
            return f"token {row.tokens[0]} is none, and no row of the forward before draws it"
        before = self._before[at]
        if (before.pid, before.end) != (row.pid, row.start) or before.sample is None:
            return f"row {at} of the forward before does not draw its token"
        return "" if before.sample.plain else f"row {at} of the forward before is not plain"
