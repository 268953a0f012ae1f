"""What a model says on the GPU: beside the CPU driver in float32, and after what its
pages may go through.

greedy      float32 on both: the same tokens
logits      windows of a text, prefilled, then told token by token: KL of whole distributions
preempted   streams leave half-way and come back elsewhere, or are computed again
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cpu.arena import FrameArena, PageShape
from tokenix.drivers.cpu.chunks import Chunk
from tokenix.drivers.cpu.step import ModelStep as CpuStep
from tokenix.drivers.cuda.check.bench import Bench
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup, Sizes, Subject
from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.device import CudaDevice
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.ops import (
    CopyIn,
    CopyOut,
    PageIn,
    PageOut,
    Poison,
    Row,
    Sampled,
    SampleSpec,
    TableDelta,
)
from tokenix.drivers.sampling import SamplingParams
from tokenix.mm.ids import Pfn, Pid, Slot

Logits = npt.NDArray[np.float32]

Windows = Sequence[Sequence[int]]
"""Tokens of each, all of one length."""

Found = TypeVar("Found")

WAYS = ("nothing", "swap", "recompute")
"""How streams are disturbed half-way."""

MOST_KL = 1e-2
"""Of the issue: mean over all positions, bf16 against float32."""


class Streams:
    """A model on a GPU, and streams of one length that decode together."""

    def __init__(self, setup: Setup, subject: Subject, kind: DenseKind, kv: KvKind) -> None:
        self.sizes = sizes = setup.sizes
        self.frames = sizes.windows * sizes.pages
        self.device = CudaDevice(
            subject.config, subject.weights, frames=2 * self.frames, host_slots=self.frames,
            kv_dtype=kv, dense=kind, dense_by=setup.dense_by, kernels_by=setup.kernels_by,
        )  # fmt: skip
        self._bench = Bench(self.device)
        self._places = list(range(self.frames))
        self._generation = 0
        self._known = False

    def close(self) -> None:
        self.device.close()

    def step(self, tokens: Windows, start: int) -> list[int]:
        """Each stream goes on by its tokens, from a position; what each of them draws."""
        pages = self.sizes.pages
        spec = SampleSpec(SamplingParams(), (), 0)
        rows = tuple(Row(Pid(1 + i), start, tuple(new), spec) for i, new in enumerate(tokens))
        tables = tuple(
            TableDelta(Pid(1 + i), 0, tuple(map(Pfn, self._places[i * pages :][:pages])))
            for i in range(len(tokens))
        )
        done = self._bench.run(rows, () if self._known else tables)
        self._known = True
        drawn = [result.token for result in done.results if isinstance(result, Sampled)]
        assert len(drawn) == len(rows), done
        return drawn

    def logits(self) -> Logits:
        """Of the last step: float32 [streams, vocab]."""
        found = self.device._layers.buffers["logits"][: self.sizes.windows]
        return np.array(found.cpu().numpy(), np.float32)

    def move(self) -> None:
        """All pages leave, what is left behind is poisoned, and they come back elsewhere."""
        self._generation += 1
        stamp, old = self._generation, self._places
        new = [place + self.frames if place < self.frames else place - self.frames for place in old]
        new.reverse()
        out = tuple(PageOut(Pfn(at), Slot(i), stamp) for i, at in enumerate(old))
        back = tuple(PageIn(Slot(i), stamp, Pfn(at)) for i, at in enumerate(new))
        self._bench.copy(CopyOut(self._bench.ticket(), out))
        self._bench.start(Poison(tuple(map(Pfn, old))))
        self._bench.run((), ())
        self._bench.copy(CopyIn(self._bench.ticket(), back))
        self._places, self._known = new, False

    def draw(self, prompts: Windows, way: str = "nothing") -> list[list[int]]:
        """Greedy tokens behind prompts of one length. Half-way all pages leave and come back, or
        all that was computed so far is computed again."""
        start, count = len(prompts[0]), self.sizes.decoded
        streams = [[token] for token in self.step(prompts, 0)]
        for done in range(1, count):
            fresh = [stream[-1:] for stream in streams]
            if done == count // 2 and way == "swap":
                self.move()
            if done == count // 2 and way == "recompute":
                whole = [[*prompt, *told] for prompt, told in zip(prompts, streams, strict=True)]
                drawn = self.step(whole, 0)
            else:
                drawn = self.step(fresh, start + done - 1)
            for stream, token in zip(streams, drawn, strict=True):
                stream.append(token)
        return streams


def check_numbers(report: Report, setup: Setup) -> None:
    """All figures. The CPU driver may have to compile first."""
    report.section("numbers of the model, beside the CPU driver in float32")
    sizes, subject = setup.sizes, setup.subject()
    length = sizes.prefilled + sizes.decoded
    windows = [subject.tokens[i * length :][:length] for i in range(sizes.windows)]
    assert all(len(window) == length for window in windows), "the text is too short"
    prompts = [window[: sizes.prefilled] for window in windows]
    reference = Reference(subject, sizes)
    with report.row("greedy tokens in float32"):
        found = _on_gpu(setup, subject, "f32", lambda streams: streams.draw(prompts))
        apart = _count_apart(reference.draw(prompts), found)
        report.add("tokens", sizes.windows * sizes.decoded)
        report.add("greedy tokens in float32 unlike the CPU's", apart, most=0)
    wanted = reference.read(windows)
    for kind in setup.narrow:
        with report.row(f"logits in {kind}"):
            read = _on_gpu(setup, subject, kind, lambda streams: _read_on_gpu(streams, windows))
            apart_by = divergence(wanted, read)
            report.add(f"KL of {kind} logits, mean", float(apart_by.mean()), most=MOST_KL)
            report.add(f"KL of {kind} logits, worst", float(apart_by.max()))
        with report.row(f"preempted in {kind}"):
            plain, *others = _on_gpu(
                setup, subject, kind, lambda streams: [streams.draw(prompts, w) for w in WAYS]
            )
            for way, found in zip(WAYS[1:], others, strict=True):
                changed = _count_apart(plain, found)
                report.add(f"tokens in {kind} changed by {way}", changed, most=0)


def _on_gpu(
    setup: Setup, subject: Subject, kind: DenseKind, action: Callable[[Streams], Found]
) -> Found:
    streams = Streams(setup, subject, kind, kind)
    try:
        return action(streams)
    finally:
        streams.close()


def _read_on_gpu(streams: Streams, windows: Windows) -> Logits:
    """float32 [positions, streams, vocab] behind the last token of the prompts and all others."""
    start, found = streams.sizes.prefilled, []
    streams.step([window[:start] for window in windows], 0)
    found.append(streams.logits())
    for at in range(start, start + streams.sizes.decoded):
        streams.step([window[at : at + 1] for window in windows], at)
        found.append(streams.logits())
    return np.stack(found)


class Reference:
    """The CPU driver's arithmetic with weights, keys and values in float32."""

    def __init__(self, subject: Subject, sizes: Sizes) -> None:
        shape = PageShape.of(subject.config, PAGE_TOKENS, "f32")
        frames = sizes.windows * sizes.pages
        self._tables = np.arange(frames, dtype=np.int32).reshape(sizes.windows, sizes.pages)
        arena = FrameArena(shape, frames)
        self._step = CpuStep(subject.config, subject.weights, arena, "f32")
        self._sizes = sizes

    def read(self, windows: Windows) -> Logits:
        """As `_read_on_gpu`."""
        start = self._sizes.prefilled
        first = self._run([window[:start] for window in windows], 0, None)
        rest = self._run([window[start:] for window in windows], start, True)
        return np.concatenate([
            first[None], rest.reshape(len(windows), self._sizes.decoded, -1).swapaxes(0, 1)
        ])  # fmt: skip

    def draw(self, prompts: Windows) -> list[list[int]]:
        """Greedy tokens behind prompts of one length."""
        start = len(prompts[0])
        streams = [[int(token)] for token in self._run(prompts, 0, None).argmax(axis=1)]
        for at in range(start, start + self._sizes.decoded - 1):
            drawn = self._run([stream[-1:] for stream in streams], at, None).argmax(axis=1)
            for stream, token in zip(streams, drawn, strict=True):
                stream.append(int(token))
        return streams

    def _run(self, tokens: Windows, start: int, wants: bool | None) -> Logits:
        chunks = [Chunk(i, start, tuple(new), wants) for i, new in enumerate(tokens)]
        return np.array(self._step.forward(self._tables, chunks).rows)


def divergence(wanted: Logits, found: Logits) -> npt.NDArray[np.float64]:
    """KL of each row's distribution from the one that is wanted, in float64."""
    p, q = _log_softmax(wanted), _log_softmax(found)
    kl: npt.NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=-1)
    return kl


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    whole: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return whole


def _count_apart(wanted: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> int:
    return sum(
        a != b for x, y in zip(wanted, found, strict=True) for a, b in zip(x, y, strict=True)
    )
