"""What a forward does at its end."""

from collections.abc import Set

from tokenix.drivers.ops import DeviceFault, ForwardDone, RowFault, Sampled
from tokenix.drivers.sim.fences import Fences
from tokenix.drivers.sim.model import SimModel
from tokenix.drivers.sim.store import BadRead, Memory
from tokenix.drivers.sim.swap import LayerLoad
from tokenix.drivers.sim.tables import BoundRow
from tokenix.mm.ids import Pid, Ticket

Results = dict[Pid, Sampled | RowFault | None]
"""Of a forward, by process; of nobody, if it failed as a whole."""


def run_forward(
    ticket: Ticket,
    rows: list[BoundRow],
    before: Results,
    model: SimModel,
    memory: Memory,
    fences: Fences,
    weigh: bool,
    load: LayerLoad | None,
    fails: bool,
    failing_pids: Set[int],
) -> ForwardDone | DeviceFault:
    """Run all rows, or fail as a whole (`fails`) and leave what they would write undefined.
    `before`: results of the forward before; becomes those of this one. `load`: what it ran beside;
    a row that reads what that did not bring fails, and what it would write is undefined too."""
    known = dict(before)
    before.clear()
    if fails:
        for bound in rows:
            memory.unwrite(bound.table, bound.row.start, len(bound.row.tokens))
        return DeviceFault(ticket, "planned device fault")
    bad = load.bad if load is not None else frozenset[int]()
    results: list[Sampled | RowFault | None] = []
    for bound in rows:
        if not bad.isdisjoint(bound.table):
            memory.unwrite(bound.table, bound.row.start, len(bound.row.tokens))
            results.append(RowFault("a page that it reads was not loaded"))
        elif bound.row.pid in failing_pids:
            results.append(RowFault("planned row fault"))
        else:
            results.append(_run_row(ticket, bound, known, model, memory, fences))
    before.update((bound.row.pid, result) for bound, result in zip(rows, results, strict=True))
    masses = [
        _mass(bound, memory.page_tokens) if isinstance(result, Sampled) else ()
        for bound, result in zip(rows, results, strict=True)
    ]
    return ForwardDone(ticket, tuple(results), masses if weigh else ())


def _mass(bound: BoundRow, page_tokens: int) -> tuple[float, ...]:
    """A cell takes part in the draw as all others do."""
    end = bound.row.end
    return tuple(min(page_tokens, end - at) / end for at in range(0, end, page_tokens))


def _run_row(
    ticket: Ticket,
    bound: BoundRow,
    before: Results,
    model: SimModel,
    memory: Memory,
    fences: Fences,
) -> Sampled | RowFault | None:
    row, tokens = bound.row, bound.row.tokens
    if bound.broken:
        return RowFault(bound.broken)
    if bound.goes_on:
        drawn = before.get(row.pid, RowFault("its forward failed"))
        if isinstance(drawn, RowFault):
            return RowFault(f"it goes on with a row that failed: {drawn.reason}")
        if tokens[0] < 0 and drawn is not None:
            tokens = (drawn.token,)
    try:
        fold = memory.read(bound.table, row.start)
    except BadRead as bad:
        fences.report(f"Forward {ticket}: pid {row.pid}: {bad}")
        return RowFault(str(bad))
    if memory.foreign:
        for line in memory.foreign:
            fences.report(f"Forward {ticket}: pid {row.pid}: {line}")
        memory.foreign.clear()
    fold = memory.write(bound.table, row.start, tokens, fold)
    try:
        return None if row.sample is None else model.draw(fold, row.sample, row.end)
    except ValueError as why:
        return RowFault(str(why))
