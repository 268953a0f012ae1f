"""Forward passes of a model without a kernel: for measurements that need all logits, or attention.

    passes = Passes.load("smollm2", ("f32", "int8"), frames=64)
    logits = passes["int8"].run({0: tokens})        # sequence 0 goes on by these tokens

The arithmetic is that of the CPU driver. Formats of one `load` share the weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.weightkind import WeightKind
from tokenix.syscalls.requests import encode

if TYPE_CHECKING:
    from tokenix.drivers.cpu.step import ModelStep
    from tokenix.models.image import ProgramImage

PAGE_TOKENS = 16
Weights = WeightKind | Literal["f32"]
"""How weights are kept; f32: as a reference, that no machine serves."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of a step, at least."""

    bytes: int
    """Of weights, and of keys and values, read from memory once."""
    weight_macs: int
    """Multiply-adds with weights."""
    attention_macs: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a machine can do at most."""

    read_bytes_per_s: float
    dot_macs_per_s: float
    """Multiply-adds of bytes."""
    pair_macs_per_s: float
    """Of bfloat16."""
    fma_macs_per_s: float
    """Of float32."""


def measure_limits() -> Limits:
    """Of this machine, on all threads; a second."""
    from tokenix.drivers.cpu.limits import measure
    from tokenix.drivers.cpu.team import get_threads

    return Limits(*measure(get_threads()))


class Passes:
    """Sequences, by number, whose keys and values are in one format. For one thread."""

    def __init__(
        self,
        image: "ProgramImage",
        kind: KvKind,
        frames: int,
        like: "Passes | None" = None,
        weights: Weights = "exact",
    ) -> None:
        """`like`: one whose weights are used; weights: how they are kept, if there is none."""
        from tokenix.drivers.cpu.arena import FrameArena, PageShape
        from tokenix.drivers.cpu.dense import WEIGHTS, choose_weights
        from tokenix.drivers.cpu.step import ModelStep as Step

        self.image = image
        arena = FrameArena(PageShape.of(image.config, PAGE_TOKENS, kind), frames)
        self._step: ModelStep = (
            Step(
                image.config,
                image.weights,
                arena,
                "f32" if weights == "f32" else WEIGHTS[choose_weights(weights, image.weights)],
            )
            if like is None
            else like._step.over(arena)
        )
        self.token_bytes = arena.shape.frame_bytes / PAGE_TOKENS
        """Bytes of the keys and values of one token, scales included."""
        self._frames = frames
        self._taken = 0
        self._pages: dict[int, list[int]] = {}
        self._length: dict[int, int] = {}

    @classmethod
    def load(
        cls, model: str, kinds: Iterable[str], frames: int, weights: Weights = "exact"
    ) -> dict[str, "Passes"]:
        """One for each format, each with `frames` pages of 16 tokens. Errors as `boot`'s."""
        from tokenix.models.registry import load_image

        image = load_image(model)
        made: dict[str, Passes] = {}
        first: Passes | None = None
        for kind in kinds:
            made[kind] = cls(image, cast(KvKind, kind), frames, first, weights)
            first = first or made[kind]
        return made

    @staticmethod
    def tokenize(model: str, text: str) -> tuple[int, ...]:
        """A text as a model's tokens. Errors as `boot`'s."""
        from tokenix.models.registry import load_image

        return encode(load_image(model), text, True)

    def work_of(self, tokens: int, context: int) -> "Work":
        """What a step of so many tokens, each of another sequence of that length, has to do."""
        config = self.image.config
        attended = 2 * config.layers * config.heads * config.head_dim * context
        return Work(
            bytes=self._step.weight_bytes + int(tokens * context * self.token_bytes),
            weight_macs=tokens * self._step.macs[1],
            attention_macs=tokens * attended,
        )

    def tokens_of(self, text: str, raw: bool = False) -> tuple[int, ...]:
        """As `spawn` makes them of a prompt."""
        return encode(self.image, text, raw)

    def run(
        self,
        tokens: Mapping[int, Sequence[int]],
        every: bool = True,
        masses: list[Any] | None = None,
    ) -> Any:
        """Go on with each sequence by its tokens. Logits float32 [rows, vocab], of every token or
        of the last one of each sequence; valid until the next call for any format. masses: gets,
        in the latter case, how the attention of each last token is spread over the pages of its
        sequence (float32, of sum 1)."""
        import numpy as np

        from tokenix.drivers.cpu.chunks import Chunk

        chunks = []
        for row, (sequence, new) in enumerate(tokens.items()):
            start = self._length.get(sequence, 0)
            end = start + len(new)
            pages = self._pages.setdefault(sequence, [])
            missing = -(-end // PAGE_TOKENS) - len(pages)
            assert self._taken + missing <= self._frames, "load with more frames"
            pages += range(self._taken, self._taken + missing)
            self._taken += max(0, missing)
            self._length[sequence] = end
            chunks.append(Chunk(row, start, tuple(new), True if every else None))
        tables = np.zeros((len(chunks), max(map(len, self._pages.values()))), np.int32)
        for row, sequence in enumerate(tokens):
            tables[row, : len(self._pages[sequence])] = self._pages[sequence]
        return self._step.forward(tables, chunks, masses).rows

    def phases_s(self) -> dict[str, float]:
        """Seconds of the last run by what was done; a run of at most 512 tokens."""
        from tokenix.drivers.cpu.limits import ticks_per_s

        return {name: ticks / ticks_per_s() for name, ticks in self._step.phases().items()}

    def share(self, source: int, target: int) -> None:
        """A new sequence that has the whole pages of another one, and no more."""
        whole = self._length[source] // PAGE_TOKENS
        self._pages[target] = self._pages[source][:whole]
        self._length[target] = whole * PAGE_TOKENS

    def clear(self) -> None:
        """Forget all sequences."""
        self._taken = 0
        self._pages.clear()
        self._length.clear()

    def rewind(self, sequence: int, tokens: int) -> None:
        """Back by so many tokens, which are overwritten next."""
        assert 0 <= tokens <= self._length[sequence]
        self._length[sequence] -= tokens
