"""The life of a process as a strip of time: what it did when, how far it was ahead of its reader.

lead   ▂▄▆█▇▆▅▃▂▁▂▄▆█      a process that runs gains lead, one that is paused uses it up
state  ██████▁▁▁▁▁▁████    whole: it runs; low: it is paused; half: its pages move
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from tokenix.cli.table import seconds
from tokenix.syscalls.types import State, TraceEvent
from tokenix.tui.model import palette, plot
from tokenix.tui.model.phrases import GAP, Piece, Pieces
from tokenix.tui.model.tracks import Sample

SHAPES: Final[dict[str, str]] = {
    State.NEW.value: "░",
    State.READY.value: "█",
    State.RUNNING.value: "█",
    State.STOPPED.value: "┄",
    State.SWAPPING_OUT.value: "▄",
    State.SWAPPED.value: "▁",
    State.FETCHING.value: "▂",
    State.SWAPPING_IN.value: "▄",
    State.ZOMBIE.value: " ",
}
"""Of a cell of the strip, by state."""
NOTHING: Final = " "
STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Between two ticks of the time, of which each needs ..."""
TICK_CELLS: Final = 12
LEAST_SHARE_S: Final = 0.05
"""Shorter stays in a state are not worth a word."""
LEAST_LEAD_S: Final = 4.0
"""The upper edge of the graph of the lead is at least so high."""


class Span(NamedTuple):
    """A process was in a state from one time to another."""

    start_s: float
    end_s: float
    state: str


def spans_of_events(events: Iterable[TraceEvent], born_s: float, now_s: float) -> list[Span]:
    """From its changes of state, oldest first. What was before the first one that is known follows
    from it."""
    spans: list[Span] = []
    state, since_s = State.NEW.value, born_s
    for event in events:
        if event.kind != "state":
            continue
        detail = dict(event.detail)
        spans.append(Span(since_s, event.time_s, str(detail["old"])))
        state, since_s = str(detail["new"]), event.time_s
    spans.append(Span(since_s, max(since_s, now_s), state))
    return [span for span in spans if span.end_s > span.start_s]


def spans_of_samples(samples: Sequence[Sample], now_s: float) -> list[Span]:
    """As near as looks tell."""
    spans: list[Span] = []
    for state, group in groupby(samples, key=lambda sample: _merged(sample.state)):
        start_s = next(group).time_s
        if spans:
            spans[-1] = spans[-1]._replace(end_s=start_s)
        spans.append(Span(start_s, now_s, state))
    return spans


def states_at(spans: Sequence[Span], start_s: float, end_s: float, cells: int) -> list[str]:
    """Of each cell the state that most of it was spent in; "" where nothing is known."""
    width_s = max(end_s - start_s, 1e-9) / max(1, cells)
    most = [0.0] * cells
    found = [""] * cells
    for span in spans:
        first = max(0, int((span.start_s - start_s) / width_s))
        last = min(cells - 1, int((span.end_s - start_s) / width_s))
        for cell in range(first, last + 1):
            left_s = start_s + cell * width_s
            shared_s = min(span.end_s, left_s + width_s) - max(span.start_s, left_s)
            if shared_s > most[cell]:
                most[cell], found[cell] = shared_s, span.state
    return found


def strip(states: Sequence[str]) -> list[Piece]:
    """A line of the strip."""
    return [
        (SHAPES.get(state, NOTHING) * len(list(group)), _role(state))
        for state, group in groupby(states)
    ]


def leads_at(
    samples: Sequence[Sample], start_s: float, end_s: float, points: int
) -> list[float | None]:
    """The lead at so many moments; None where it is not known or nobody reads along."""
    times = [sample.time_s for sample in samples]
    found: list[float | None] = []
    for point in range(points):
        at_s = start_s + (end_s - start_s) * (point + 1) / points
        before = bisect_right(times, at_s + 1e-9) - 1
        found.append(samples[before].lead_s if before >= 0 else None)
    return found


def life(
    spans: Sequence[Span], samples: Sequence[Sample], window: tuple[float, float],
    width: int, height: int,
) -> list[Pieces]:  # fmt: skip
    """Lines: how the lead went, the strip below it, the time below that."""
    start_s, end_s = window
    states = states_at(spans, start_s, end_s, width)
    rows = height - 2
    lines: list[Pieces] = []
    if rows >= 2:
        leads = leads_at(samples, start_s, end_s, 2 * width)
        values = [max(0.0, lead or 0.0) for lead in leads]
        top = plot.ceiling(values, LEAST_LEAD_S)
        for at, line in enumerate(plot.braille(values, width, rows, top)):
            label = f"{top:g}s" if at == 0 else ""
            lines.append(_lead_line(line, states, label))
    elif rows == 1:
        lines.append(strip(states))
    return [*lines, strip(states), axis(start_s, end_s, width)][-height:]


def _lead_line(line: str, states: Sequence[str], label: str) -> list[Piece]:
    """Coloured by what the process did meanwhile; the label is at the left where nothing is."""
    pieces: list[Piece] = []
    at = 0
    if label and all(char == chr(plot.BLANK) for char in line[: len(label)]):
        pieces.append((label, "faint"))
        at = len(label)
    for state, group in groupby(range(at, len(line)), key=lambda cell: states[cell]):
        cells = list(group)
        pieces.append((line[cells[0] : cells[-1] + 1], _role(state)))
    return pieces


def axis(start_s: float, end_s: float, width: int) -> list[Piece]:
    """`-40s        -30s        -20s        -10s       now`: each where its moment is."""
    length_s = max(end_s - start_s, 1e-9)
    step_s = next((step for step in STEPS_S if length_s / step * TICK_CELLS <= width), STEPS_S[-1])
    text = ""
    for tick in range(int(length_s / step_s), 0, -1):
        at = round((1 - tick * step_s / length_s) * width)
        label = f"-{clock(tick * step_s)}"
        if at >= len(text) and at + len(label) < width - 3:
            text = text.ljust(at) + label
    return [(text.ljust(width - 3)[: width - 3] + "now", "faint")]


def clock(value_s: float) -> str:
    """`5s`, `1:30`, `2h00`: of whole seconds."""
    return f"{value_s:g}s" if value_s < 60 else seconds(value_s)


def shares(spans: Sequence[Span]) -> list[Piece]:
    """How long it was in which state: `█ ready 12s  ▁ paused 30s`."""
    sums: dict[str, float] = {}
    for span in spans:
        state = _merged(span.state)
        sums[state] = sums.get(state, 0.0) + span.end_s - span.start_s
    pieces: list[Piece] = []
    for state, sum_s in sums.items():
        if state != State.ZOMBIE.value and sum_s >= LEAST_SHARE_S:
            look = palette.STATES.get(state, palette.UNKNOWN)
            word = "runs" if state == State.READY.value else look.word
            shape = SHAPES.get(state, NOTHING)
            pieces += [(f"{shape} ", look.role), (f"{word} ", "muted"), (seconds(sum_s), "text")]
            pieces.append(GAP)
    return pieces


def _merged(state: str) -> str:
    """Whether it is in the pass of just now says nothing of a stretch of time."""
    return State.READY.value if state == State.RUNNING.value else state


def _role(state: str) -> str:
    return palette.STATES[state].role if state in palette.STATES else "faint"
