"""The miss storm: documents are asked about in random order, more of them than memory holds.

    set ratio   pages of all documents, over those of the device and the host tier
    miss        a token of a document that is asked about again and is not on the device: it comes
                from the host tier, from the swap file, or is computed again, because it is nowhere
                or had not risen from the file when its turn came
    admission   on: the default. off: nobody is refused, however late (`OPEN`)

Documents share nothing; each question is new. Arrivals are the same for all ratios, so that what
changes is where documents are found. Before it counts, each has been read once, and questions have
come for a while. Who visits, and on which machine, is in `stormruns.py`.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenix.bench.metrics import TTFT_TARGET_S, percentile
from tokenix.bench.picture import save
from tokenix.bench.reader import count_stalls

RATIOS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
OPEN = {"patience_factor": 1e9, "queue_limit": 1e9}
"""Tunables with which nobody is refused: a newcomer may wait for ever, in a queue of any length."""
TOKENS = range(300, 4000)
"""Of prompts: ordinary ones in every vocabulary."""


@dataclass(frozen=True, slots=True)
class Load:
    """Who comes, apart from how many documents there are."""

    document_tokens: int
    question_tokens: int
    answer_tokens: int
    tokens_per_s: float
    """Pace of all readers."""
    demand: float
    """Documents asked about per second, over those that the device could compute in that time."""
    seconds: float
    """That count, after ..."""
    warmup_s: float
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Visit:
    """A question about a document. `at_s` counts from the first moment of the warm-up."""

    at_s: float
    document: int
    number: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a visit. Times as `Visit.at_s`."""

    visit: Visit
    finished: bool = False
    refused: bool = False
    times_s: tuple[float, ...] = ()
    """Of its tokens."""
    cached: int = 0
    """Tokens of its prompt that were found in some tier, and of those ..."""
    host: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One run. Shares of tokens are of the documents of all visits that got an answer."""

    set_ratio: float
    admission: bool
    documents: int
    visits: int
    """That count."""
    miss_rate: float
    """Not on the device: the sum of the next three."""
    host_share: float
    file_share: float
    computed_share: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    visible_stall_rate: float
    """Of the streams that began."""
    refused_share: float
    """Of all visits."""
    goodput: float
    """Share of all visits: first token within 1 s, finished, no visible stall."""


@dataclass(frozen=True, slots=True)
class Report:
    where: str
    """The machine."""
    device_pages: int
    host_pages: int
    file_pages: int
    visits_per_s: float
    load: Load
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench storm --json` prints."""
        return asdict(self)


def count_documents(ratio: float, memory_pages: int, load: Load, page_tokens: int) -> int:
    """So many are `ratio` times `memory_pages`."""
    return max(1, round(ratio * memory_pages * page_tokens / load.document_tokens))


def make_visits(load: Load, documents: int, per_s: float) -> list[Visit]:
    """Poisson arrivals; each time all documents are equally likely."""
    chance = random.Random(load.seed)
    visits: list[Visit] = []
    at_s = chance.expovariate(per_s)
    while at_s < load.warmup_s + load.seconds:
        visits.append(Visit(at_s, int(chance.random() * documents), len(visits)))
        at_s += chance.expovariate(per_s)
    return visits


def make_tokens(kind: str, number: int, count: int) -> tuple[int, ...]:
    """A document or a question; equal arguments, equal tokens."""
    return tuple(random.Random(f"{kind} {number}").choices(TOKENS, k=count))


def make_prompt(load: Load, visit: Visit) -> tuple[int, ...]:
    """The document, then the question."""
    document = make_tokens("document", visit.document, load.document_tokens)
    return document + make_tokens("question", visit.number, load.question_tokens)


def measure(
    load: Load, ratio: float, admission: bool, documents: int, seen: Sequence[Seen]
) -> Line:
    """The figures of one run."""
    counted = [one for one in seen if one.visit.at_s >= load.warmup_s]
    begun = [one for one in counted if one.times_s]
    ttfts = [one.times_s[0] - one.visit.at_s for one in begun]
    stalled = [one for one in begun if count_stalls(one.times_s, load.tokens_per_s)]
    late = [one for one in begun if one.times_s[0] - one.visit.at_s > TTFT_TARGET_S]
    bad = {one.visit for one in (*stalled, *late)}
    good = sum(one.finished and one.visit not in bad for one in begun)
    asked = max(1, len(begun) * load.document_tokens)
    host, file = (sum(one.host for one in begun) / asked, sum(one.file for one in begun) / asked)
    computed = 1 - sum(min(one.cached, load.document_tokens) for one in begun) / asked
    return Line(
        set_ratio=ratio,
        admission=admission,
        documents=documents,
        visits=len(counted),
        miss_rate=host + file + computed,
        host_share=host,
        file_share=file,
        computed_share=computed,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p95_s=percentile(ttfts, 95),
        ttft_p99_s=percentile(ttfts, 99),
        visible_stall_rate=len(stalled) / max(1, len(begun)),
        refused_share=sum(one.refused for one in counted) / max(1, len(counted)),
        goodput=good / max(1, len(counted)),
    )


def plot(report: Report, path: str | Path) -> None:
    """TTFT and visible stalls over the miss rate, goodput over the size of the set. Needs
    matplotlib (the extra `report`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4))
    for admission, colour in ((True, "tab:blue"), (False, "tab:red")):
        lines = [line for line in report.lines if line.admission == admission]
        label = f"admission {'on' if admission else 'off'}"
        by_miss = sorted(lines, key=lambda line: line.miss_rate)
        misses = [line.miss_rate for line in by_miss]
        for name, style in (("p50", ":"), ("p95", "-"), ("p99", "--")):
            ttfts = [getattr(line, f"ttft_{name}_s") for line in by_miss]
            _draw(axes[0], misses, ttfts, f"{name.upper()}, {label}", colour, style)
        stalls = [100 * line.visible_stall_rate for line in by_miss]
        _draw(axes[1], misses, stalls, label, colour)
        ratios, goodputs = [line.set_ratio for line in lines], [line.goodput for line in lines]
        _draw(axes[2], ratios, goodputs, label, colour)
    axes[0].set(xlabel="miss rate", ylabel="TTFT (s)", yscale="log")
    axes[1].set(xlabel="miss rate", ylabel="streams with a visible stall (%)", ylim=(-2, 102))
    axes[2].set(xlabel="documents / (device + host tier)", ylabel="goodput", ylim=(0, 1.02))
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle(report.where)
    figure.tight_layout()
    save(figure, path, dpi=110)
    pyplot.close(figure)


def _draw(
    axis: Any,
    places: Sequence[float],
    heights: Sequence[float | None],
    label: str,
    colour: str,
    style: str = "-",
) -> None:
    values = [float("nan") if height is None else height for height in heights]
    axis.plot(places, values, marker="o", ms=3, color=colour, linestyle=style, label=label)
