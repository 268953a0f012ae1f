"""What formats of keys and values cost in quality, and what they bring in bytes and time.

    text      read once by every format, in the same chunks; each row of logits is compared with
              that of the reference (f32): perplexity, mean KL, how often the first choice agrees
    prompts   answered greedily by every format; how many tokens until one differs
    decode    steps of streams with long contexts, formats in turn, so that all see the same machine

The text is the documentation of modules of Python's standard library, which comes with the
interpreter: the same for everybody with the same Python, ordinary prose with some code. Weights
are as they are served (float16) for all formats, so that only keys and values differ.
"""

import importlib
import inspect
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from tokenix.syscalls.choices import KV_KINDS
from tokenix.syscalls.passes import PAGE_TOKENS, Passes

BASELINE = "f16"
"""What the time of a step is compared with."""
MODULES = """
    asyncio.events argparse ast bisect calendar cmd collections contextlib copy csv dataclasses
    datetime decimal difflib dis doctest email.message fractions functools heapq json logging
    pathlib random statistics string textwrap threading typing unittest.mock zipfile
"""
PROMPTS = (
    "What is a page fault?", "Name three rivers of Europe.", "Why does bread rise in the oven?",
    "Write a line about the sea.", "Explain how a bicycle stays upright.",
    "What is the difference between a list and a tuple in Python?", "Who wrote Don Quixote?",
    "Give me a recipe for pancakes.", "Why is the sky blue?", "Tell me a story about a lighthouse.",
    "How do vaccines work?", "What should I see in Rome in two days?",
    "Write a polite letter that declines an invitation.", "How does a compass work?",
    "List five uses of a brick.", "What happens when water freezes?",
)  # fmt: skip
CHUNK = 64
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    text_tokens: int = 1536
    prompts: int = len(PROMPTS)
    answer_tokens: int = 128
    streams: int = 8
    """Of a decode step; each has half the text as its context."""
    steps: int = 12


QUICK = Size(text_tokens=192, prompts=2, answer_tokens=8, streams=2, steps=2)


@dataclass(frozen=True, slots=True)
class Line:
    """One format."""

    kind: str
    bytes_per_token: float
    perplexity: float
    perplexity_change: float
    """Relative to the reference, 0.01 is 1 %."""
    mean_kl: float
    top1_agreement: float
    exact_tokens_mean: float
    """Tokens until the first that differs from the reference's, of `answer_tokens`."""
    exact_tokens_median: float
    step_ms: float
    step_ratio: float
    """Of the median step to that of the baseline, in the same run."""


@dataclass(frozen=True, slots=True)
class Report:
    """All formats, and what they were measured on."""

    model: str
    python: str
    size: Size
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench kv-quality --json` prints."""
        return asdict(self)


def measure(
    model: str = "smollm2",
    size: Size | None = None,
    watch: Callable[[str], None] | None = None,
    kinds: Sequence[str] = KV_KINDS,
) -> Report:
    """Every format of `kinds`; the first is the reference, one is f16. Errors as `boot`'s."""
    size, tell = size or Size(), watch or (lambda _: None)
    tell("loading")
    formats = Passes.load(model, kinds, _count_frames(size))
    reference = kinds[0]
    tokens = formats[reference].tokens_of(read_text(), raw=True)[: size.text_tokens]
    read = _read(formats, tokens, tell)
    steps_ms = _time_steps(formats, size, tell)
    exact = _answer(formats, size, tell)
    return Report(
        model,
        platform.python_version(),
        size,
        tuple(
            Line(
                kind,
                formats[kind].token_bytes,
                float(np.exp(read[kind].loss)),
                float(np.expm1(read[kind].loss - read[reference].loss)),
                read[kind].kl,
                read[kind].agreement,
                statistics.mean(exact[kind]),
                statistics.median(exact[kind]),
                steps_ms[kind],
                steps_ms[kind] / steps_ms[BASELINE],
            )
            for kind in kinds
        ),
    )


def read_text() -> str:
    """The text, in full."""
    modules = [importlib.import_module(name) for name in MODULES.split()]
    return "\n\n".join(inspect.getdoc(module) or "" for module in modules)


def _count_frames(size: Size) -> int:
    """Pages for the text, one more for each stream, and the prompts with their answers."""
    answer = -(-(size.answer_tokens + 96) // PAGE_TOKENS)
    return -(-size.text_tokens // PAGE_TOKENS) + size.streams + size.prompts * answer


@dataclass(frozen=True, slots=True)
class _Reading:
    loss: float
    """Mean, in nats per token."""
    kl: float
    agreement: float


TEXT = -1
"""Sequence of the text; prompts are 0, 1, .., streams come behind them."""


def _read(
    formats: dict[str, Passes], tokens: Sequence[int], tell: Callable[[str], None]
) -> dict[str, _Reading]:
    """Every format reads the text, a chunk at a time."""
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in formats}
    for start in range(0, len(tokens) - 1, CHUNK):
        tell(f"reading, token {start} of {len(tokens)}")
        part = tokens[start : start + CHUNK]
        following = np.array(tokens[start + 1 : start + CHUNK + 1])
        expected: Logits | None = None
        for kind, passes in formats.items():
            got = log_softmax(passes.run({TEXT: part}))[: len(following)]
            expected = got if expected is None else expected
            found[kind] += compare_rows(expected, got, following)
    means = {kind: np.mean(rows, axis=0).tolist() for kind, rows in found.items()}
    return {kind: _Reading(*row) for kind, row in means.items()}


def compare_rows(
    expected: Logits, got: Logits, following: npt.NDArray[np.int64]
) -> list[tuple[float, float, float]]:
    """(loss, KL, whether the first choice agrees) of each row of log probabilities."""
    loss = -np.take_along_axis(got, following[:, None], axis=1)[:, 0]
    kl = (np.exp(expected) * (expected - got)).sum(axis=1, dtype=np.float64)
    same = expected.argmax(axis=1) == got.argmax(axis=1)
    return list(zip(loss.tolist(), kl.tolist(), same.astype(float).tolist(), strict=True))


def log_softmax(logits: Logits) -> Logits:
    shifted: Logits = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True))
    return shifted


def _time_steps(
    formats: dict[str, Passes], size: Size, tell: Callable[[str], None]
) -> dict[str, float]:
    """Median milliseconds of a step in which all streams decode a token behind half the text."""
    streams = range(size.prompts, size.prompts + size.streams)
    times: dict[str, list[float]] = {kind: [] for kind in formats}
    for passes in formats.values():
        passes.rewind(TEXT, size.text_tokens // 2)
        for stream in streams:
            passes.share(TEXT, stream)
    for step in range(-1, size.steps):
        tell(f"decoding, step {step + 1} of {size.steps}")
        for kind, passes in formats.items():
            began_s = time.perf_counter()
            passes.run(dict.fromkeys(streams, (5,)))
            took_s = time.perf_counter() - began_s
            for stream in streams:
                passes.rewind(stream, 1)
            if step >= 0:  # the first one touches new pages
                times[kind].append(1e3 * took_s)
    return {kind: statistics.median(each) for kind, each in times.items()}


def _answer(
    formats: dict[str, Passes], size: Size, tell: Callable[[str], None]
) -> dict[str, list[int]]:
    """Tokens of each answer that are the reference's, up to the first that is not. Answers do not
    end before they are `answer_tokens` long, and do not depend on one another."""
    said: dict[str, npt.NDArray[np.int64]] = {}
    for kind, passes in formats.items():
        tell(f"answering, {kind}")
        tokens = {i: passes.tokens_of(text) for i, text in enumerate(PROMPTS[: size.prompts])}
        drawn = [passes.run(tokens, every=False).argmax(axis=1)]
        while len(drawn) < size.answer_tokens:
            last = {i: (int(token),) for i, token in enumerate(drawn[-1])}
            drawn.append(passes.run(last, every=False).argmax(axis=1))
        said[kind] = np.stack(drawn, axis=1)
    expected = next(iter(said.values()))
    return {
        kind: [_count_equal(a, b) for a, b in zip(expected, rows, strict=True)]
        for kind, rows in said.items()
    }


def _count_equal(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else len(a)
