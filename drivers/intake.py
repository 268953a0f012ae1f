"""What a forward asks of a real device: block tables brought up to date, rows checked.

Kernels check no bounds; whatever would pass one is refused here, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tokenix.drivers.ops import Forward, ForwardDone, Row, RowFault, Sampled, drawn_by
from tokenix.drivers.tables import BlockTables
from tokenix.mm.ids import Pid


@dataclass(slots=True)
class Batch:
    """The rows of a forward, and what is known of their results."""

    rows: tuple[Row, ...]
    results: list[Sampled | RowFault | None]
    """Parallel to `rows`: the faults of those that cannot run."""

    def good(self) -> list[Row]:
        """Those that can run, in order."""
        return [row for row, fault in zip(self.rows, self.results, strict=True) if fault is None]

    def done(
        self,
        command: Forward,
        drawn: Sequence[Sampled | RowFault],
        masses: Sequence[Sequence[float]] = (),
        spoiled: Sequence[int] = (),
    ) -> ForwardDone:
        """The answer. drawn, masses (if any): one of each good row that asks for a sample. spoiled:
        places of rows that have read what was not there, whatever they have drawn."""
        asked = [
            i
            for i, row in enumerate(self.rows)
            if self.results[i] is None and row.sample is not None
        ]
        for i, result in zip(asked, drawn, strict=True):
            self.results[i] = result
        for i in spoiled:
            self.results[i] = RowFault(f"pid {self.rows[i].pid} reads a page that was not loaded")
        told: list[Sequence[float]] = [()] * len(self.rows) if masses else []
        for i, mass in zip(asked, masses, strict=False):
            if isinstance(self.results[i], Sampled):
                told[i] = mass
        return ForwardDone(command.ticket, tuple(self.results), tuple(told))


class Intake:
    """Block tables of all processes and the bounds of a device. Only its compute thread uses it."""

    def __init__(
        self, tables: BlockTables, page_tokens: int, vocab_tokens: int, max_position: int
    ) -> None:
        self.tables = tables
        self._page_tokens = page_tokens
        self._vocab_tokens = vocab_tokens
        self.max_position = max_position
        self._before = Batch((), [])
        """Of the forward before."""

    def take(self, command: Forward, running: bool = False) -> Batch:
        """Change the tables; the rows, with a fault for each one that cannot run. `running`: the
        tokens of the forward before are not known here, and what goes on with good rows of it finds
        them itself; else they are put in here."""
        for pid in command.drop:
            self.tables.drop(pid)
        bad: dict[Pid, str] = {}
        for delta in command.tables:
            wrong = self.tables.apply(delta)
            if wrong is not None:
                bad[delta.pid] = wrong
        rows = command.all_rows()
        if not running:
            rows = tuple(self._known(row) if _is_coming(row) else row for row in rows)
        pids = [row.pid for row in rows]
        assert len(set(pids)) == len(pids), "two rows of one process in a forward"
        results: list[Sampled | RowFault | None] = []
        for row in rows:
            wrong = bad.get(row.pid) or self._reject(row, running)
            results.append(RowFault(wrong) if wrong is not None else None)
        self._before = Batch(rows, results)
        return self._before

    def _known(self, row: Row) -> Row:
        """The row with its token in place of a `drawn_by`, if that is known."""
        at = self._find_before(row)
        drawn = None if at is None else self._before.results[at]
        if not isinstance(drawn, Sampled):
            return row
        return msgspec.structs.replace(row, tokens=(drawn.token,))

    def _find_before(self, row: Row) -> int | None:
        """Which row of the forward before draws the token of this one; None if none does."""
        before, at = self._before.rows, drawn_by(row.tokens[0])
        if at < len(before) and before[at].sample is not None:
            return at if (before[at].pid, before[at].end) == (row.pid, row.start) else None
        return None

    def _reject(self, row: Row, running: bool) -> str | None:
        """Why a row cannot run."""
        end = row.end
        covered = self.tables.length(row.pid) * self._page_tokens
        if not row.tokens or row.start < 0:
            return f"pid {row.pid} runs {len(row.tokens)} tokens from position {row.start}"
        if end > covered:
            return f"pid {row.pid} needs {end} positions, its block table covers {covered}"
        if end > self.max_position:
            return f"pid {row.pid} passes the context of {self.max_position} tokens"
        if _is_coming(row):
            at = self._find_before(row)
            if running and at is not None and not isinstance(self._before.results[at], RowFault):
                return None
            return f"pid {row.pid} goes on with row {drawn_by(row.tokens[0])}, which drew nothing"
        if min(row.tokens) < 0 or max(row.tokens) >= self._vocab_tokens:
            return f"pid {row.pid} has a token outside the vocabulary of {self._vocab_tokens}"
        return None


def _is_coming(row: Row) -> bool:
    """Whether its token is what the forward before draws."""
    return len(row.tokens) == 1 and row.tokens[0] < 0
