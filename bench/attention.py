"""Does attention tell which cached pages to keep? Measured on documents that share nothing but are
asked again and again.

    read     every document, then its questions together, on the real model; every token that is
             drawn tells how much attention each page got (`mass`)
    foretell ranks of a document's pages by mass, against their ranks by mass later in the same
             answer, and by mass in the answer to another question
    replay   requests come in a skewed order to a prefix cache that holds some of the documents; the
             production ranking evicts (`syscalls/prefixcache.py`), told the masses of every
             ATTENTION_EVERY-th token, as the kernel is

Masses depend on document and question only, so they are measured once and replayed in any order.
Documents are those of modules of Python's standard library, which come with the interpreter.
"""

import importlib
import pydoc
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from tokenix.bench.evict import count_belady
from tokenix.syscalls.passes import PAGE_TOKENS, Passes
from tokenix.syscalls.prefixcache import PrefixCache

MODULES = """
    decimal argparse collections random datetime json logging pathlib statistics string textwrap
    zipfile
"""
QUESTIONS = (
    "What is this module for?",
    "Which functions does it have?",
    "How does it tell that something went wrong?",
    "Write a short program that uses it.",
)
READ_TOKENS = 256
"""Of a document that are read at a time."""

Masses = list[npt.NDArray[np.float32]]
"""By token that was drawn, then by page."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    lengths: tuple[int, ...] = (6144, 4096, 3072, 3072, 2048, 2048, 1536, 1536, *[1024] * 4)
    """Tokens of the documents."""
    answer_tokens: int = 32
    requests: int = 400
    orders: int = 6
    """Of requests, each drawn with a seed of its own."""


QUICK = Size(lengths=(256, 192), answer_tokens=8, requests=40, orders=2)


@dataclass(frozen=True, slots=True)
class Answer:
    """One question about a document, as it was answered."""

    document: int
    shared_pages: int
    """Whole pages that all questions about the document begin with."""
    prompt_tokens: int
    masses: Masses


def read(size: Size, model: str, tell: Callable[[str], None]) -> list[Answer]:
    """Every question about every document."""
    frames = -(-max(size.lengths) // PAGE_TOKENS) + len(QUESTIONS) * (
        8 + -(-size.answer_tokens // PAGE_TOKENS)
    )
    passes = Passes.load(model, ("f16",), frames)["f16"]
    answers = []
    for number, (name, length) in enumerate(zip(MODULES.split(), size.lengths, strict=False)):
        tell(f"reading {length} tokens about {name}")
        answers += _ask(passes, number, read_document(passes, name, length), size.answer_tokens)
    return answers


def read_document(passes: Passes, name: str, tokens: int) -> str:
    """The beginning of a module's documentation."""
    text = pydoc.plain(pydoc.render_doc(importlib.import_module(name), "%s"))
    chars = len(text)
    while len(passes.tokens_of(text[:chars], raw=True)) > tokens:
        chars = chars * 15 // 16
    return text[:chars]


def _ask(passes: Passes, number: int, document: str, answer_tokens: int) -> list[Answer]:
    prompts = [passes.tokens_of(f"{document}\n\n{question}") for question in QUESTIONS]
    columns = zip(*prompts, strict=False)
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    shared = common // PAGE_TOKENS
    passes.clear()
    whole = prompts[0][: shared * PAGE_TOKENS]
    for at in range(0, len(whole), READ_TOKENS):
        passes.run({0: whole[at : at + READ_TOKENS]}, every=False)
    new = {}
    for question, prompt in enumerate(prompts, 1):
        passes.share(0, question)
        new[question] = prompt[len(whole) :]
    masses: list[Masses] = []
    for _ in range(answer_tokens):
        masses.append([])
        drawn = passes.run(new, every=False, masses=masses[-1]).argmax(axis=1)
        new = {question: (int(token),) for question, token in zip(new, drawn, strict=True)}
    return [
        Answer(number, shared, len(prompt), [step[question] for step in masses])
        for question, prompt in enumerate(prompts)
    ]


# ---- what mass foretells ----


@dataclass(frozen=True, slots=True)
class Foretold:
    """How pages of a document rank later by attention, foretold in three ways. Means over all
    answers; `rank`: Spearman's correlation, `top`: of the tenth of the pages that get most, the
    share that is foretold to be among it (0.1 is chance)."""

    same_rank: float
    """By mass in the first quarter of the answer; later is its second half."""
    same_top: float
    other_rank: float
    """By mass in the answer to another question."""
    other_top: float
    place_rank: float
    """By position: what was written last is looked at most."""
    place_top: float
    first_page: float
    """Share of all attention that the first page of a prompt gets."""
    document: float
    """Share of the other pages of the document together."""


def foretell(answers: Sequence[Answer]) -> Foretold:
    """Of the pages that all questions about a document share."""
    rows: list[tuple[float, ...]] = []
    for answer in answers:
        shared, count = answer.shared_pages, len(answer.masses)
        mine = np.stack([mass[:shared] for mass in answer.masses])
        early, late = mine[: -(-count // 4)].mean(axis=0), mine[count // 2 :].mean(axis=0)
        others = [
            _agree(np.mean([mass[:shared] for mass in other.masses], axis=0), mine.mean(axis=0))
            for other in answers
            if other.document == answer.document and other is not answer
        ]
        rows.append(
            (
                *_agree(early, late),
                *np.mean(others, axis=0),
                *_agree(np.arange(shared, dtype=np.float32), late),
                float(mine[:, 0].mean()),
                float(mine[:, 1:].sum(axis=1).mean()),
            )
        )
    return Foretold(*np.mean(rows, axis=0).tolist())


def _agree(
    foretold: npt.NDArray[np.float32], found: npt.NDArray[np.float32]
) -> tuple[float, float]:
    """Rank correlation, and the share of the top tenth that was foretold."""
    a, b = (values.argsort(kind="stable").argsort() for values in (foretold, found))
    top = -(-len(a) // 10)
    return float(np.corrcoef(a, b)[0, 1]), float((a[b >= len(b) - top] >= len(a) - top).mean())


# ---- what a cache finds ----

POLICIES = ("lru", "lfu", "hit-density", "attention")
COUNT = "count"
"""`attention`, told that queries look at the last page only: all pages before it then count alike,
and what is left is how often, and how lately, each was there to be looked at."""
ATTENTION_EVERY = 8
"""Of so many tokens one tells its masses; what `Params.attention_every` is."""
ARRIVALS_S = 10.0
"""Mean time between two requests."""
POOLS = (0.125, 0.25, 0.5)
"""Pools, as shares of the pages of all documents."""
DRIFT = 80
"""After so many requests other documents are popular, in the order that drifts."""


@dataclass(frozen=True, slots=True)
class Line:
    """One order and pool. Shares of the pages of all prompts that were found."""

    order: str
    pages: int
    belady: float
    found: dict[str, float]
    """By policy; the mean of all drawn orders."""
    computed: dict[str, float]
    """Prompt tokens that were not found, per request."""
    better_than: dict[str, int]
    """In so many of the drawn orders `attention` found more than this policy."""


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    size: Size
    prompt_tokens: float
    """Mean of all prompts, each once."""
    foretold: Foretold
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench attention --json` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer as a request to a prefix cache."""

    blocks: tuple[int, ...]
    """Full pages of its prompt, numbered so that equal numbers have equal content before them."""
    made: tuple[int, ...]
    """Full pages behind them."""
    prompt_tokens: int
    masses: tuple[tuple[float, ...], ...]

    def counted(self) -> "Asked":
        """With masses that say only how many pages there were."""
        masses = tuple((0.0,) * (len(mass) - 1) + (1.0,) for mass in self.masses)
        return replace(self, masses=masses)


def measure(
    model: str = "smollm2",
    size: Size | None = None,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """All of it. Errors as `boot`'s."""
    size, tell = size or Size(), watch or (lambda _: None)
    answers = read(size, model, tell)
    asked = as_requests(answers)
    pages = sum({answer.document: answer.shared_pages for answer in answers}.values())
    lines = []
    for order, drift in (("steady", size.requests), ("drifting", DRIFT)):
        orders = [
            draw_order(len(size.lengths), size.requests, drift, s) for s in range(size.orders)
        ]
        for share in POOLS:
            tell(f"replaying, {order}, {share:g} of the pages")
            lines.append(_replay_all(asked, order, orders, int(share * pages)))
    mean = statistics.mean(request.prompt_tokens for request in asked)
    return Report(model, size, mean, foretell(answers), tuple(lines))


def as_requests(answers: Sequence[Answer]) -> list[Asked]:
    numbers = iter(range(1 << 40))
    documents: dict[int, list[int]] = {}
    asked = []
    for answer in answers:
        shared = documents.setdefault(
            answer.document, [next(numbers) for _ in range(answer.shared_pages)]
        )
        full = answer.prompt_tokens // PAGE_TOKENS
        end = (answer.prompt_tokens + len(answer.masses) - 1) // PAGE_TOKENS
        blocks = (*shared, *(next(numbers) for _ in range(full - len(shared))))
        made = tuple(next(numbers) for _ in range(end - full))
        told = answer.masses[ATTENTION_EVERY // 2 :: ATTENTION_EVERY]
        masses = tuple(tuple(mass.tolist()) for mass in told)
        asked.append(Asked(blocks, made, answer.prompt_tokens, masses))
    return asked


def draw_order(documents: int, requests: int, drift: int, seed: int) -> list[tuple[float, int]]:
    """(arrival, which of the answers) of each request: Zipf's law over the documents, whose ranks
    are drawn anew after `drift` requests, and any question."""
    chance = random.Random(seed)
    ranks, at_s, order = list(range(documents)), 0.0, []
    for number in range(requests):
        if number % drift == 0:
            chance.shuffle(ranks)
        at_s += chance.expovariate(1 / ARRIVALS_S)
        (document,) = chance.choices(ranks, [1 / (1 + rank) for rank in range(documents)])
        order.append((at_s, document * len(QUESTIONS) + chance.randrange(len(QUESTIONS))))
    return order


def _replay_all(
    asked: Sequence[Asked], order: str, orders: Sequence[list[tuple[float, int]]], pages: int
) -> Line:
    counted = [request.counted() for request in asked]
    found: dict[str, list[float]] = {policy: [] for policy in (*POLICIES, COUNT)}
    computed: dict[str, list[float]] = {policy: [] for policy in found}
    belady = []
    for drawn in orders:
        visits = [(at_s, asked[which].blocks) for at_s, which in drawn]
        blocks = sum(len(each) for _, each in visits)
        tokens = sum(asked[which].prompt_tokens for _, which in drawn)
        belady.append(count_belady(visits, pages) / blocks)
        for policy, shares in found.items():
            told, ranked = (counted, "attention") if policy == COUNT else (asked, policy)
            hits = _replay(told, drawn, ranked, pages)
            shares.append(hits / blocks)
            computed[policy].append((tokens - hits * PAGE_TOKENS) / len(drawn))
    mine = found["attention"]
    return Line(
        order,
        pages,
        statistics.mean(belady),
        {policy: statistics.mean(shares) for policy, shares in found.items()},
        {policy: statistics.mean(each) for policy, each in computed.items()},
        {
            policy: sum(a > b for a, b in zip(mine, shares, strict=True))
            for policy, shares in found.items()
            if policy != "attention"
        },
    )


def _replay(
    asked: Sequence[Asked], order: Sequence[tuple[float, int]], policy: str, pages: int
) -> int:
    """Pages found of all prompts."""
    cache = PrefixCache(policy, pages)
    hits = 0
    for at_s, which in order:
        request = asked[which]
        hits += cache.visit(at_s, request.blocks, request.made, request.masses)
    return hits
