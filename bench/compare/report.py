"""A comparison as a page of Markdown: figures are medians over rounds, with their range."""

from collections.abc import Sequence
from statistics import median

from tokenix.bench.compare.figures import FIGURES, GOALS, OURS, Figure, Line, ratio
from tokenix.bench.compare.scenarios import Scenario

DISTURBED = 0.15
"""Cores that others used; a run with more is marked."""

INTRODUCTION = f"""\
The same load for all, in turn (A B C, B C A, ...), over HTTP: token ids, greedy, to full length,
the same KV budget in tokens. Servers that are not measured are frozen meanwhile. Latencies count
from when a request was due. Medians over the rounds, in parentheses their range; *others* is what
everything else on the machine used of its processors, and a `!` marks each round with more than
{DISTURBED:g} cores of that. A ratio is this project's figure to the best of the others that served
everything, above 1 where this project's is better."""


ELSEWHERE = """\
How far a step is from the machine's limits, and what speed costs in quality beside llama.cpp, are
`tokenix bench decode` and `tokenix bench quality`; figures in bench/RESULTS.md."""


def render(lines: Sequence[Line], scenarios: Sequence[Scenario], about: Line) -> str:
    """The page. `about`: machine, threads, date, the command."""
    peers = list(dict.fromkeys(line["peer"] for line in lines))
    runs = _latest(lines)
    by_scenario = {
        scenario.name: {
            peer: [runs[key] for key in sorted(runs) if key[:2] == (scenario.name, peer)]
            for peer in peers
        }
        for scenario in scenarios
    }
    parts = [_head(lines, peers, about), _goals(by_scenario)]
    parts += [
        _section(scenario, by_scenario[scenario.name])
        for scenario in scenarios
        if any(by_scenario[scenario.name].values())
    ]
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


def _goals(runs: dict[str, dict[str, list[Line]]]) -> str:
    rows = []
    for goal in GOALS:
        mine = {
            peer: lines
            for peer, lines in runs.get(goal.scenario, {}).items()
            if not goal.peers or peer in (OURS, *goal.peers)
        }
        (figure,) = (one for one in FIGURES[goal.scenario] if one.title == goal.figure)
        if any(runs.get(goal.scenario, {}).values()):
            reached = ratio(figure, mine)
            against = ", ".join(goal.peers) or "the best of the others"
            verdict = (
                ("-", "not measured") if reached is None
                else (f"{reached:.2f}", "yes" if reached >= goal.factor else "no")
            )  # fmt: skip
            rows.append([goal.scenario, goal.figure, against, f"{goal.factor:g}", *verdict])
    stalls = [
        line["summary"]["visible_stalls"]
        for line in runs.get("overload", {}).get(OURS, [])
        if "summary" in line
    ]
    if stalls:
        rows.append(["overload", "visible stalls", "nobody", "0 stalls", f"{max(stalls)}",
                     "no" if max(stalls) else "yes"])  # fmt: skip
    if not rows:
        return ""
    titles = ["load", "figure", "against", "goal", "ratio", "reached"]
    return f"## Goals\n\n{_table(titles, rows)}\n\n{ELSEWHERE}\n"


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
    played = len({line["round"] for lines in runs.values() for line in lines})
    title = f"{scenario.name}: {scenario.title}; {played} round{'s' * (played != 1)}"
    return f"## {title}\n\n{_table(titles, rows)}\n"


def _cell(figure: Figure, lines: Sequence[Line]) -> str:
    values = [value for line in lines if (value := figure.read(line["summary"])) is not None]
    if not values:
        return "-"
    middle = f"{median(values):.{figure.digits}f}"
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} ({min(values):.{figure.digits}f}-{max(values):.{figure.digits}f})"


def _ratios(figures: Sequence[Figure], runs: dict[str, list[Line]]) -> list[str]:
    """Ours to the best of the others, by figure; nothing without both."""
    ratios = [ratio(figure, runs) for figure in figures]
    if all(one is None for one in ratios):
        return []
    return ["" if one is None else f"**{one:.2f}**" for one in ratios]


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
