"""The streams that are under way when a window of a trace begins, so that short runs begin with a
machine as it is after hours and not with an empty one.

    before the window   |---------|          over: left out
                              |------------+.......|       alive: comes with what it has produced
                                    |------+..|            as a prompt, and the rest as output
                                           ^ the window begins

They come spread over the first part of the warm-up, as fast as half the prefill rate computes them.
"""

from collections.abc import Iterator
from dataclasses import replace

from tokenix.bench.capacity import token_s
from tokenix.bench.traces import Request, Trace, Window, turned
from tokenix.syscalls.simulation import Roofline

FULL = 0.9
"""Of the pool, what they hold at most."""
SPREAD = 0.8
"""Of the warm-up, when the last one comes."""
PREFILL = 0.5


def filling(
    trace: Trace, window: Window, roofline: Roofline, kv_pages: int, warmup_s: float
) -> list[Request]:
    """Requests with arrivals from the start of the window. Empty without a warm-up."""
    end_s = SPREAD * warmup_s
    inside = [r for age_s, r in _earlier(trace, window) if age_s < 0]
    if not inside or window.duration_s is None or end_s <= 0:
        return []
    pace_s = token_s(inside, roofline, kv_pages, len(inside) / window.duration_s)
    prefill = PREFILL * roofline.prefill_tokens_per_s()
    room = min(FULL * kv_pages * roofline.page_tokens, end_s * prefill)
    found: list[Request] = []
    held = 0.0
    for age_s, request in _earlier(trace, window):
        at_s = held / prefill
        done = int((age_s + at_s) / pace_s)
        if age_s < 0 or done >= request.output_tokens:
            continue
        held += request.prompt_tokens + done
        if held > room:
            break
        found.append(
            replace(
                request, arrival_s=at_s, prompt_tokens=request.prompt_tokens + done,
                output_tokens=request.output_tokens - done, blocks=(),
                hidden_tokens=max(0, request.hidden_tokens - done),
            )
        )  # fmt: skip
    return found


def _earlier(trace: Trace, window: Window) -> Iterator[tuple[float, Request]]:
    """(age when the window begins, request), the youngest first, once around the trace; those of
    the window last, with negative ages."""
    arrivals = [(at_s / window.rate_scale, r) for at_s, r in turned(trace, window.seed)]
    span_s = arrivals[-1][0]
    end_s = window.start_s + (span_s if window.duration_s is None else window.duration_s)
    before = [(window.start_s - at_s, r) for at_s, r in arrivals if at_s < window.start_s]
    after = [(window.start_s + span_s - at_s, r) for at_s, r in arrivals if at_s >= end_s]
    yield from reversed(before)
    yield from reversed(after)
    yield from ((window.start_s - at_s - 1e-9, r) for at_s, r in arrivals
                if window.start_s <= at_s < end_s)  # fmt: skip
