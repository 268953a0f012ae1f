"""A comparison as a page of Markdown: figures are medians over rounds, with their range."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokenix.bench.compare.scenarios import Scenario

OURS = "tokenix"
DISTURBED = 0.15
"""Cores that others used; a run with more is marked."""

INTRODUCTION = f"""\
The same load for all, in turn (A B C, B C A, ...), over HTTP: token ids, greedy, to full length,
the same KV budget in tokens. Servers that are not measured are frozen meanwhile. Latencies count
from when a request was due. Medians over the rounds, in parentheses their range; *others* is what
everything else on the machine used of its processors, and a `!` marks each round with more than
{DISTURBED:g} cores of that. A ratio is this project's figure to the best of the others that served
everything, above 1 where this project's is better."""

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: how it is read from a run's summary, and which way is better."""

    title: str
    read: Callable[[Line], float | None]
    digits: int = 0
    more_is_better: bool | None = None
    """None: not compared."""


def _of(name: str) -> Callable[[Line], float | None]:
    return lambda summary: summary[name]


def _of_class(group: str, name: str) -> Callable[[Line], float | None]:
    return lambda summary: summary["classes"].get(group, {}).get(name)


def _prefill(summary: Line) -> float | None:
    """Prompt tokens over the time to the first token of a lone request: HTTP and all."""
    ttft_ms = summary["median_ttft_ms"]
    return summary["load"]["prompt"]["mean"] / ttft_ms * 1e3 if ttft_ms else None


def _decode(summary: Line) -> float | None:
    tpot_ms = summary["median_tpot_ms"]
    return 1e3 / tpot_ms if tpot_ms else None


DONE = Figure("done", _of("completed"))
STEADY = (
    Figure("output tok/s", _of("output_throughput"), 0, True),
    Figure("TTFT P50 ms", _of("median_ttft_ms"), 0, False),
    Figure("TTFT P95 ms", _of("p95_ttft_ms"), 0, False),
    Figure("TPOT P50 ms", _of("median_tpot_ms"), 1, False),
    Figure("TPOT P95 ms", _of("p95_tpot_ms"), 1, False),
    DONE,
)
MIXED = (
    Figure("short TTFT P50 ms", _of_class("short", "median_ttft_ms"), 0, False),
    Figure("short P95", _of_class("short", "p95_ttft_ms"), 0, False),
    Figure("short P99", _of_class("short", "p99_ttft_ms"), 0, False),
    Figure("short done", _of_class("short", "completed")),
    Figure("long done", _of_class("long", "completed")),
    Figure("long to its end ms", _of_class("long", "p99_e2el_ms"), 0, False),
    Figure("longest gap ms", _of("max_itl_ms"), 0, False),
    Figure("visible stalls", _of("visible_stalls"), 0, False),
    Figure("output tok/s", _of("output_throughput"), 0, True),
)
FIGURES: dict[str, tuple[Figure, ...]] = {
    "prefill": (
        Figure("prompt tok/s", _prefill, 0, True),
        Figure("TTFT P50 ms", _of("median_ttft_ms"), 0, False),
        DONE,
    ),
    "one": (Figure("decode tok/s", _decode, 0, True), *STEADY),
    "eight": STEADY, "many": STEADY, "mix": MIXED, "overload": MIXED,
}  # fmt: skip


def render(lines: Sequence[Line], scenarios: Sequence[Scenario], about: Line) -> str:
    """The page. `about`: machine, threads, date, the command."""
    peers = list(dict.fromkeys(line["peer"] for line in lines))
    runs = _latest(lines)
    parts = [_head(lines, peers, about)]
    for scenario in scenarios:
        mine = {
            peer: [runs[key] for key in sorted(runs) if key[:2] == (scenario.name, peer)]
            for peer in peers
        }
        if any(mine.values()):
            parts.append(_section(scenario, mine))
    parts.append(_commands(lines, peers))
    return "\n".join(parts)


def _latest(lines: Sequence[Line]) -> dict[tuple[str, str, int], Line]:
    """Of each run, what was written last."""
    return {
        (line["scenario"], line["peer"], line["round"]): line
        for line in lines
        if "scenario" in line
    }


def _head(lines: Sequence[Line], peers: Sequence[str], about: Line) -> str:
    told = {line["peer"]: line["about"] for line in lines if "about" in line}
    lost = {line["peer"]: line["unavailable"] for line in lines if "unavailable" in line}
    begun = {line["peer"]: line for line in lines if "started_s" in line}
    rows = []
    for peer in peers:
        start = begun.get(peer)
        cells = (
            ("-", "-") if start is None
            else (f"{start['started_s']:.1f}", f"{start['resident_bytes'] / 2**20:.0f}")
        )  # fmt: skip
        what = told.get(peer, "")
        if start is None:
            what = f"{what} not measured: {lost.get(peer, 'it was not started')}".strip()
        rows.append([peer, what, *cells])
    return "\n".join([
        "# Side by side", "",
        f"{about['machine']}; {about['threads']} threads; {about['date']}. "
        f"Made by `{about['command']}`.",
        "", INTRODUCTION,
        "", _table(["server", "what", "start s", "resident MiB"], rows), "",
    ])  # fmt: skip


def _section(scenario: Scenario, runs: dict[str, list[Line]]) -> str:
    figures = FIGURES[scenario.name]
    rows = []
    for peer, lines in runs.items():
        good = [line for line in lines if "summary" in line]
        if not good:
            if lines:
                rows.append([peer, f"failed: {lines[-1]['failed']}"])
            continue
        cells = [_cell(figure, good) for figure in figures]
        others = [line["usage"]["others"] for line in good]
        marks = "!" * sum(share > DISTURBED for share in others)
        server = median(line["usage"]["server"] for line in good)
        rows.append([peer, *cells, f"{server:.2f}", f"{max(others):.2f}{marks}"])
    ratios = _ratios(figures, runs)
    if ratios:
        rows.append(["**ratio**", *ratios])
    titles = ["", *(figure.title for figure in figures), "server cores", "others at most"]
    return f"## {scenario.name}: {scenario.title}\n\n{_table(titles, rows)}\n"


def _cell(figure: Figure, lines: Sequence[Line]) -> str:
    values = [value for line in lines if (value := figure.read(line["summary"])) is not None]
    if not values:
        return "-"
    middle = f"{median(values):.{figure.digits}f}"
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} ({min(values):.{figure.digits}f}-{max(values):.{figure.digits}f})"


def _ratios(figures: Sequence[Figure], runs: dict[str, list[Line]]) -> list[str]:
    """Ours to the best of the others, by figure; nothing without both. A server counts as an other
    only if it served everything, in each round."""
    ours = [line["summary"] for line in runs.get(OURS, []) if "summary" in line]
    others = [
        [line["summary"] for line in lines]
        for peer, lines in runs.items()
        if peer != OURS and lines and all(_is_whole(line) for line in lines)
    ]
    if not ours or not others:
        return []
    made = []
    for figure in figures:
        mine = _median(figure, ours)
        theirs = [value for other in others if (value := _median(figure, other)) is not None]
        if figure.more_is_better is None or mine is None or not theirs:
            made.append("")
            continue
        best = max(theirs) if figure.more_is_better else min(theirs)
        above, below = (mine, best) if figure.more_is_better else (best, mine)
        made.append(f"**{above / below:.2f}**" if below else ("**1.00**" if not above else "-"))
    return made


def _is_whole(line: Line) -> bool:
    return "summary" in line and line["summary"]["completed"] == line["summary"]["num_prompts"]


def _median(figure: Figure, summaries: Sequence[Line]) -> float | None:
    values = [value for summary in summaries if (value := figure.read(summary)) is not None]
    return median(values) if values else None


def _commands(lines: Sequence[Line], peers: Sequence[str]) -> str:
    """How each server was started, once for each size of its memory."""
    commands = {
        (line["peer"], line["kv_tokens"]): line["command"] for line in lines if "command" in line
    }
    shown = [
        f"- {peer}, {tokens} tokens: `{commands[peer, tokens]}`"
        for peer in peers
        for of, tokens in commands
        if of == peer
    ]
    return "\n".join(["## Commands", "", *shown, ""])


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        filled = [*row, *[""] * (len(titles) - len(row))]
        lines.append(f"| {' | '.join(filled)} |")
    return "\n".join(lines)
