"""Rates of this machine, measured once at boot in well under a second (small models)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenix.drivers.cpu.arena import FrameArena
from tokenix.drivers.cpu.chunks import Chunk
from tokenix.drivers.cpu.slots import ArenaSlots
from tokenix.drivers.cpu.step import ModelStep
from tokenix.drivers.ops import PageIn
from tokenix.mm.ids import Pfn, Slot

PREFILL_TOKENS = 64
SLOW_STEP_S = 0.1
"""From here on, prefill is measured with one page only."""


@dataclass(frozen=True, slots=True)
class Rates:
    step_s: float
    prefill_tokens_per_s: float
    copy_in_s_per_page: float
    copy_out_s_per_page: float


def measure(step: ModelStep, arena: FrameArena, slots: ArenaSlots) -> Rates:
    """Overwrites the first frames and slot 0, which is left invalid. Nothing else may run."""
    page = arena.shape.page_tokens
    pages = min(arena.frames, max(1, PREFILL_TOKENS // page))
    tables = np.arange(pages, dtype=np.int32)[None]

    def forward(tokens: int) -> Callable[[], object]:
        return lambda: step.forward(tables, [Chunk(0, 0, (0,) * tokens, None)])

    forward(1)()  # compiles what is not in the code cache
    step_s = _best_s(forward(1), 3)
    tokens = min(pages * page, step.max_position, PREFILL_TOKENS)
    if step_s > SLOW_STEP_S:
        tokens = min(tokens, page)
    prefill_s = _best_s(forward(tokens), 2 if step_s <= SLOW_STEP_S else 1)
    out_s, in_s = _copy_s(arena, slots)
    return Rates(step_s, tokens / prefill_s, in_s, out_s)


def _copy_s(arena: FrameArena, slots: ArenaSlots) -> tuple[float, float]:
    """Seconds per page (out, in). Without slots, those of a copy between frames."""
    if slots.slots == 0:
        plain = _best_s(lambda: arena.copy_frame(0, arena.frames - 1), 4)
        return plain, plain
    out_s = _best_s(lambda: slots.publish(arena, 0, 0, 0), 4)
    page = PageIn(Slot(0), 0, Pfn(0))
    in_s = _best_s(lambda: slots.load((page,), arena), 4)
    slots.invalidate(0)
    return out_s, in_s


def _best_s(action: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        before = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - before)
    return max(best, 1e-9)
