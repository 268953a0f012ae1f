"""Rates of this GPU and its link, measured once at boot."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.swap import SwapLanes
from tokenix.drivers.ops import PageIn, PageOut, Row, SampleSpec, TableDelta
from tokenix.drivers.sampling import SamplingParams
from tokenix.mm.ids import Pfn, Pid, Slot

PREFILL_TOKENS = 512
COPIED_PAGES = 64
TIMES = 3
"""The best of so many counts."""
NOBODY = Pid(0)
"""Whose rows are run."""

Forward = Callable[[tuple[TableDelta, ...], tuple[Row, ...]], object]
"""Runs rows, and waits for them."""


@dataclass(frozen=True, slots=True)
class Rates:
    step_s: float
    prefill_tokens_per_s: float
    copy_in_s_per_page: float
    copy_out_s_per_page: float


def measure(forward: Forward, lanes: SwapLanes, frames: int, slots: int, context: int) -> Rates:
    """Overwrites the first frames and slots; what is in slots then is invalid. Nothing else may
    run. NOBODY has a table then."""
    tokens = min(context, PREFILL_TOKENS)
    pages = -(-tokens // PAGE_TOKENS)
    table = (TableDelta(NOBODY, 0, tuple(Pfn(i) for i in range(pages))),)
    spec = SampleSpec(SamplingParams(), (), 0)
    forward(table, (Row(NOBODY, 0, (0,) * tokens, spec),))
    prefill_s = _best_s(lambda: forward((), (Row(NOBODY, 0, (0,) * tokens, spec),)))
    decode = (Row(NOBODY, tokens - 1, (0,), spec),)
    forward((), decode)  # warms up
    forward((), decode)  # is captured
    step_s = _best_s(lambda: forward((), decode))
    return Rates(step_s, tokens / prefill_s, *_copy_s(lanes, min(frames, slots, COPIED_PAGES)))


def _copy_s(lanes: SwapLanes, count: int) -> tuple[float, float]:
    """Seconds per page (in, out). Without slots, what a link of 25 GB/s would take for a MiB."""
    if count == 0:
        return 4e-5, 4e-5
    out = [PageOut(Pfn(i), Slot(i), 0) for i in range(count)]
    back = [PageIn(Slot(i), 0, Pfn(i)) for i in range(count)]
    lanes.publish(out)  # touches the memory of the slots for the first time
    out_s = _best_s(lambda: lanes.publish(out)) / count
    in_s = _best_s(lambda: lanes.load(back)) / count
    for page in out:
        lanes.slots.invalidate(page.slot)
    return in_s, out_s


def _best_s(action: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TIMES):
        before = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - before)
    return max(best, 1e-9)
