"""The figures of a comparison: how each is read, which way is better, and what is aimed at."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "tokenix"

Line = dict[str, Any]
"""A run, or its summary."""


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


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that this project's is to be so many times as good as."""

    scenario: str
    figure: str
    factor: float
    peers: tuple[str, ...] = ()
    """Of those; none: the best of all that served everything."""


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


GOALS = (
    Goal("eight", "output tok/s", 2.0),
    Goal("many", "output tok/s", 2.0),
    Goal("many", "TTFT P95 ms", 1.0),
    Goal("one", "decode tok/s", 1.5, ("llama-q4_0",)),
    Goal("one", "decode tok/s", 2.5, ("openvino",)),
    Goal("prefill", "prompt tok/s", 1.2, ("openvino",)),
    Goal("overload", "short P95", 5.0),
    Goal("overload", "output tok/s", 1.0),
    *(Goal("mix", figure.title, 1.0) for figure in MIXED if figure.more_is_better is not None),
)


def ratio(figure: Figure, runs: dict[str, list[Line]]) -> float | None:
    """Ours to the best of the others, above 1 where ours is better; None if it cannot be told. A
    server counts as an other only if it served everything, in each round."""
    ours = [line["summary"] for line in runs.get(OURS, []) if "summary" in line]
    others = [
        [line["summary"] for line in lines]
        for peer, lines in runs.items()
        if not peer.startswith(OURS) and lines and all(_is_whole(line) for line in lines)
    ]
    mine = _median(figure, ours)
    theirs = [value for other in others if (value := _median(figure, other)) is not None]
    if figure.more_is_better is None or mine is None or not theirs:
        return None
    best = max(theirs) if figure.more_is_better else min(theirs)
    above, below = (mine, best) if figure.more_is_better else (best, mine)
    if below == 0:
        return 1.0 if above == 0 else math.inf
    return above / below


def _is_whole(line: Line) -> bool:
    return "summary" in line and line["summary"]["completed"] == line["summary"]["num_prompts"]


def _median(figure: Figure, summaries: Sequence[Line]) -> float | None:
    values = [value for summary in summaries if (value := figure.read(summary)) is not None]
    return median(values) if values else None
