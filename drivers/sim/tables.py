"""The device's block tables, and whether a forward's deltas and rows keep the contract."""

from dataclasses import dataclass

from tokenix.drivers.ops import Forward, Row
from tokenix.drivers.sim.fences import Fences, Flight, Queue


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A row with the block table it will see: later deltas do not change it."""

    row: Row
    table: tuple[int, ...]
    broken: str
    """Why the row cannot run, "" if it can."""


class Tables:
    def __init__(self, page_tokens: int, vocab: int, max_context_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._vocab = vocab
        self._max_context_tokens = max_context_tokens
        self._tables: dict[int, tuple[int, ...]] = {}

    def bind(self, command: Forward, fences: Fences) -> tuple[list[BoundRow], Flight]:
        """Apply drops and deltas, give each row its table, and report what breaks the rules."""
        name = f"Forward {command.ticket}"
        for pid in command.drop:
            self._tables.pop(pid, None)
        self._apply_deltas(name, command, fences)
        rows = [self._bind_row(name, row, fences) for row in command.all_rows()]
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
        return rows, Flight(name, Queue.COMPUTE, reads=reads, writes=writes.keys())

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

    def _bind_row(self, name: str, row: Row, fences: Fences) -> BoundRow:
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
        elif min(row.tokens) < 0 or max(row.tokens) >= self._vocab:
            broken = f"a token is outside the vocabulary of {self._vocab}"
        if broken:
            fences.report(f"{name}: pid {row.pid}: {broken}")
        return BoundRow(row, table[:pages], broken)
