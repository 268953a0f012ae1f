"""The meters above the table as lines: panels with graphs, or a few lines where room is short."""

from collections.abc import Sequence
from functools import partial

from tokenix.cli.table import seconds
from tokenix.tui.model import frames, phrases
from tokenix.tui.model.columns import count
from tokenix.tui.model.frames import Panel
from tokenix.tui.model.gauges import Gauges
from tokenix.tui.model.graph import Graph
from tokenix.tui.model.history import WATCHED, History
from tokenix.tui.model.phrases import Pieces

Lines = Sequence[Pieces]


def full(gauges: Gauges, history: History, width: int, height: int) -> Lines:
    """Four panels."""
    return frames.beside(
        (
            Panel("Memory", 1.35, partial(_memory, gauges)),
            Panel("Tokens a second", 1.0, partial(_tokens, gauges, history)),
            Panel("First token", 1.0, partial(_first, gauges, history)),
            Panel("Processes", 1.0, partial(_processes, gauges, history)),
        ),
        width,
        height,
    )


def _memory(gauges: Gauges, width: int, height: int) -> Lines:
    lines: list[Pieces] = []
    for tier in gauges.tiers:
        lines.append(phrases.tier_line(tier, width, gauges.page_bytes))
        if height > 2 * len(gauges.tiers) + 4:
            lines.append(())
    return [
        *lines, phrases.legend(gauges.tiers, width), (), phrases.traffic(gauges),
        phrases.found(gauges), phrases.stalls(gauges),
    ]  # fmt: skip


def _tokens(gauges: Gauges, history: History, width: int, height: int) -> Lines:
    out = Graph("out", history.series["out_per_s"], count(gauges.out_per_s), ("success",), least=10)
    into = Graph(
        "prefill", history.series["in_per_s"], count(gauges.in_per_s), ("secondary",), least=10
    )
    return [*out.lines(width, height // 2), *into.lines(width, height - height // 2)]


def _first(gauges: Gauges, history: History, width: int, height: int) -> Lines:
    p95_s = history.first_token_s(0.95, *WATCHED)
    figure = "-" if p95_s is None else seconds(p95_s)
    target_s = min((each.target_s for each in gauges.first), default=1.0)
    graph = Graph(
        "P95", history.series["ttft_p95_s"], figure, ("success", "warning", "error"), "s",
        mark=target_s,
    )  # fmt: skip
    words = first(gauges, width)[:3]
    return [*graph.lines(width, height - len(words)), *words]


def first(gauges: Gauges, width: int) -> Lines:
    """Times to first token, beside their targets."""
    head = [(f"{'':<7}", "muted"), (f"{'P50':>6}{'P95':>7}", "muted")]
    if width >= phrases.TARGET_CELLS:
        head.append(("  target", "faint"))
    found = [phrases.first_token(each, width) for each in gauges.first]
    return [head, *found] if found else [[("nobody waited for a first token", "faint")]]


def _processes(gauges: Gauges, history: History, width: int, height: int) -> Lines:
    words = [phrases.states(gauges, width), phrases.levels(gauges, width), phrases.queue(gauges)]
    paused, waiting = (
        Graph(name, history.series[name], str(number), (role,), least=4)
        for name, number, role in (
            ("paused", gauges.states["paused"], "primary"),
            ("waiting", gauges.states["wait"], "warning"),
        )
    )
    room = height - len(words)
    return [*paused.lines(width, room // 2), *waiting.lines(width, room - room // 2), *words]


def brief(gauges: Gauges, width: int) -> Lines:
    """All of it on four lines."""
    tiers = gauges.tiers[:2]
    cells = (width - 2 * (len(tiers) - 1)) // max(1, len(tiers))
    memory: list[phrases.Piece] = []
    for tier in tiers:
        gap = [phrases.GAP] if memory else []
        memory += [*gap, *phrases.tier_line(tier, cells, gauges.page_bytes)]
    rates = phrases.rates(gauges)
    if gauges.first:
        room = width - sum(len(text) for text, _ in rates) - 10
        rates += [
            ("first P95 ", "muted"),
            *phrases.fitting([phrases.first_in_time(each) for each in gauges.first], room),
        ]
    return [
        memory, rates,
        [*phrases.states(gauges, 30), phrases.GAP, *phrases.levels(gauges, width - 32)],
        [*phrases.traffic(gauges), *phrases.found(gauges), *phrases.stalls(gauges)],
    ]  # fmt: skip
