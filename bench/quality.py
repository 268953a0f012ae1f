"""What the ways to keep weights cost in quality, and what other engines do with the same file.

A text is cut into windows that are read one by one, each from its beginning. Every row of logits is
compared with that of the reference: this file's weights in float32, sums, keys and values too.
Other engines take part by a file of their logits for the same tokens, those of `read_windows`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenix.bench.kvquality import compare_rows, log_softmax, read_text
from tokenix.syscalls.choices import WeightKind
from tokenix.syscalls.passes import PAGE_TOKENS, Passes

WINDOW_TOKENS = 512
WINDOWS = 10
CHUNK = 128
"""Tokens whose logits are held at once."""
WEIGHTS: tuple[WeightKind, ...] = ("native", "bf16", "exact")

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Line:
    """One way to compute the model."""

    name: str
    perplexity: float
    perplexity_change: float
    """Relative to the reference, 0.01 is 1 %."""
    mean_kl: float
    worst_kl: float
    top1_agreement: float


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    positions: int
    lines: tuple[Line, ...]
    """The reference first."""

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench quality --json` prints."""
        return asdict(self)


def read_windows(model: str, windows: int) -> list[tuple[int, ...]]:
    """The text as the model's tokens. ValueError if it is shorter."""
    tokens = Passes.tokenize(model, read_text())
    wanted = windows * WINDOW_TOKENS
    if len(tokens) < wanted:
        raise ValueError(f"the text has {len(tokens)} tokens, {wanted} were asked for")
    return [tokens[at : at + WINDOW_TOKENS] for at in range(0, wanted, WINDOW_TOKENS)]


def measure(
    model: str = "smollm2",
    windows: int = WINDOWS,
    peers: Mapping[str, Path] | None = None,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """peers: NumPy files of logits, any float [windows, 512, vocab]. OSError, ValueError: one of
    them cannot be used; else errors as `boot`'s."""
    tell = watch or (lambda _: None)
    frames = -(-WINDOW_TOKENS // PAGE_TOKENS)
    tell("loading")
    reference = Passes.load(model, ("f32",), frames, "f32")["f32"]
    texts = read_windows(model, windows)
    nets = {kind: Passes.load(model, ("f16",), frames, kind)["f16"] for kind in WEIGHTS}
    files = {name: _open(name, path, windows) for name, path in (peers or {}).items()}
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for index, text in enumerate(texts):
        tell(f"window {index + 1} of {windows}")
        for passes in (reference, *nets.values()):
            passes.clear()
        for start in range(0, WINDOW_TOKENS, CHUNK):
            part = text[start : start + CHUNK]
            following = np.array(text[start + 1 : start + CHUNK + 1])
            expected = log_softmax(reference.run({0: part}))[: len(following)]
            at = index * WINDOW_TOKENS + start
            found = {"f32": expected}
            found |= {kind: log_softmax(passes.run({0: part})) for kind, passes in nets.items()}
            for name, file in files.items():
                found[name] = log_softmax(file[at : at + CHUNK].astype(np.float32))
            for name, got in found.items():
                compared = compare_rows(expected, got[: len(following)], following)
                rows.setdefault(name, []).extend(compared)
    loss = float(np.mean([row[0] for row in rows["f32"]]))
    lines = tuple(_line(name, np.array(found), loss) for name, found in rows.items())
    return Report(model, len(rows["f32"]), lines)


def _open(name: str, path: Path, windows: int) -> npt.NDArray[np.floating]:
    file = np.load(path, mmap_mode="r")
    if file.shape[:-1] != (windows, WINDOW_TOKENS) or file.dtype.kind != "f":
        raise ValueError(
            f"{name}: {path} has {file.dtype} {list(file.shape)}; it must have float logits for "
            f"each of {windows} x {WINDOW_TOKENS} tokens"
        )
    return file.reshape(-1, file.shape[-1])  # type: ignore[no-any-return]


def _line(name: str, rows: npt.NDArray[np.float64], reference: float) -> Line:
    """rows [positions, 3]: loss, KL, agreement."""
    loss, kl, agreement = rows.mean(axis=0).tolist()
    change = float(np.expm1(loss - reference))
    return Line(name, float(np.exp(loss)), change, kl, float(rows[:, 1].max()), agreement)
