"""What a device sustains, by a fluid model: loads of experiments are multiples of it.

    a saturated machine runs n streams, each of mean size m (tokens, weighted by how long it lives)
        n = min(sequences, pool / m)
    a request costs its prefill and its share of the steps in which it decodes
        cost = prompt / prefill rate + output * step(n, n * m) / n        rate = 1 / cost

No losses by preemption are in it. `tests/bench_sim/test_capacity.py` holds it against saturated
runs of `fcfs`.
"""

from collections.abc import Sequence

from tokenix.bench.traces import Request
from tokenix.syscalls.simulation import Roofline

SEQUENCES = 256
"""That a serving engine runs at once (vLLM's default, and ours)."""
FILLED = 0.95
"""Of the pool, what a saturated engine has in use: pages are partly filled, and some are on hold
for growth."""


def stream_tokens(requests: Sequence[Request]) -> float:
    """Mean KV of a stream at a random moment of its life: long ones are seen more often."""
    life = sum(request.output_tokens for request in requests)
    return sum(r.output_tokens * (r.prompt_tokens + r.output_tokens / 2) for r in requests) / life


def needed_pages(requests: Sequence[Request], page_tokens: int) -> int:
    """Pages with which nobody is preempted: what all sequences hold under saturation."""
    return int(SEQUENCES * stream_tokens(requests) / page_tokens)


def sustained_rate(requests: Sequence[Request], roofline: Roofline, kv_pages: int) -> float:
    """Requests per second of such a mix that a pool of `kv_pages` serves without end."""
    streams = _most_streams(requests, roofline, kv_pages)
    prompt, output = _means(requests)
    decode_s = _step_s(requests, roofline, streams) / streams
    return 1.0 / (prompt / roofline.prefill_tokens_per_s() + output * decode_s)


def token_s(requests: Sequence[Request], roofline: Roofline, kv_pages: int, rate: float) -> float:
    """Seconds from token to token of a stream when `rate` requests come per second: as many
    streams run as come in the life of one (Little's law), up to those that the pool holds."""
    most = _most_streams(requests, roofline, kv_pages)
    prompt, output = _means(requests)
    prefill = min(0.9, rate * prompt / roofline.prefill_tokens_per_s())
    streams = 1.0
    for _ in range(50):
        pace_s = _step_s(requests, roofline, streams) / (1 - prefill)
        streams = min(most, max(1.0, rate * output * pace_s))
    return pace_s


def _most_streams(requests: Sequence[Request], roofline: Roofline, kv_pages: int) -> float:
    room = FILLED * kv_pages * roofline.page_tokens / stream_tokens(requests)
    return max(1.0, min(float(SEQUENCES), room))


def _step_s(requests: Sequence[Request], roofline: Roofline, streams: float) -> float:
    """Of that many decodes."""
    resident = int(streams * stream_tokens(requests))
    return roofline.forward_s(0, round(streams), resident, resident)


def _means(requests: Sequence[Request]) -> tuple[float, float]:
    """Prompt and output tokens."""
    count = len(requests)
    prompt = sum(request.prompt_tokens for request in requests) / count
    return prompt, sum(request.output_tokens for request in requests) / count
