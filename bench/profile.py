"""Where the time of a decode step goes on the real model: in the model's kernels, in Python before
and behind them, in the kernel's step, in hand-overs between threads.

    this process: the machine (`syscalls/anatomy.py`), its socket      another process: readers
"""

import asyncio
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenix
from tokenix.syscalls.anatomy import PARTS, watch
from tokenix.syscalls.types import ReadResult
from tokenix.syscalls.wire.server import serve

BATCHES = (1, 8, 32)
PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Line:
    """The decode steps of one batch; milliseconds, medians."""

    batch: int
    read: bool
    """Whether the output was read over the socket, as it came."""
    steps: int
    whole_ms: float
    around_share: float
    """Of the step: all that is not the model."""
    parts_ms: dict[str, float]
    """By the names of `syscalls.anatomy`."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def measure(
    model: str = "smollm2",
    batches: Sequence[int] = BATCHES,
    context: int = 192,
    steps: int = 96,
    threads: int | None = None,
    weights: str | None = None,
) -> list[Line]:
    """`steps` decode steps of each batch, around `context` tokens; first unread, then read.
    OSError as `boot` and `serve`; weights as `watch`."""
    prompt = max(1, context - steps // 2)
    frames = max(batches) * (-(-(prompt + steps) // PAGE_TOKENS) + 1) + 1
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        watch(model, frames, threads, weights) as (k, anatomy),
        serve(k.port, Path(folder) / "k.sock") as server,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other,
    ):
        for batch in batches:
            for read in (False, True):
                anatomy.passes.clear()
                other.submit(_play, server.path, batch, prompt, steps, read).result()
                found = anatomy.steps(batch)
                assert found, "all streams decoded together for a while"
                lines.append(Line(
                    batch, read, steps, 1e3 * found["whole"], found["around"] / found["whole"],
                    {name: 1e3 * found[name] for name in PARTS},
                ))  # fmt: skip
    return lines


# ---- the other process ----


def _play(path: str, batch: int, prompt: int, steps: int, read: bool) -> None:
    """Let so many streams decode; read them as they come, or when they have ended."""

    def take(_: ReadResult) -> None:
        """What readers do is not measured."""

    async def play() -> None:
        async with await tokenix.aio.connect(path) as k:
            # of tokens that ordinary text has, different ones for each stream
            prompts = [[300 + (stream * 997 + at * 31) % 4000 for at in range(prompt)]
                       for stream in range(batch)]  # fmt: skip
            pids = [
                await k.spawn(tokens, max_tokens=steps + 16, ignore_eos=True, reader="batch")
                for tokens in prompts
            ]
            if read:
                await asyncio.gather(*(k.pour(pid, take) for pid in pids))
            for pid in pids:
                await k.wait(pid)

    asyncio.run(play())
