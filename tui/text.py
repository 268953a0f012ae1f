"""A look as text or as JSON, for scripts."""

from typing import Any

import msgspec

from tokenix.tui.model import phrases
from tokenix.tui.model.gauges import Gauges, gauges
from tokenix.tui.model.history import History
from tokenix.tui.model.listing import Listing, fitted
from tokenix.tui.snapshot import Snapshot

WIDTH = 160
"""Of the text where there is no terminal."""


def as_text(look: Snapshot, history: History, listing: Listing, width: int) -> str:
    """Meters and the whole table. `history` and `listing` have taken the look."""
    figures = gauges(look, history)
    lines = [f"{look.machine}  {look.controls.get('policy', '')}  up {look.time_s:.0f} s"]
    lines += [_plain(phrases.tier_line(t, width // 2, figures.page_bytes)) for t in figures.tiers]
    lines += [_plain(phrases.rates(figures)), _plain(phrases.traffic(figures))]
    lines += [_plain(phrases.states(figures, width)), _plain(phrases.queue(figures))]
    lines += ["first token  " + _plain(phrases.first_token(each)) for each in figures.first]
    lines += [_plain(phrases.stalls(figures)), ""]
    shown = listing.fitting(width)
    lines.append(" ".join(fitted(column.title, cells, column.left) for column, cells in shown))
    lines += [" ".join(listing.cells(line, shown)) for line in listing.lines]
    return "".join(line.rstrip() + "\n" for line in lines)


def as_record(look: Snapshot, history: History, prompts: bool) -> dict[str, Any]:
    """The look, and `gauges` that follow from it and the one before."""
    record: dict[str, Any] = msgspec.to_builtins(look)
    record["gauges"] = _gauges(gauges(look, history))
    for process in record["processes"]:
        process["tokens_per_s"] = round(history.tokens_per_s(process["pid"]), 2)
        if not prompts:
            del process["name"]
    return record


def _gauges(figures: Gauges) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(figures)
    record["tiers"] = {
        tier.name: {"total": tier.total, **dict(tier.parts)} for tier in figures.tiers
    }
    return record


def _plain(pieces: phrases.Pieces) -> str:
    return "".join(text for text, _ in pieces)
