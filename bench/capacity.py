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
    tokens = stream_tokens(requests)
    room = FILLED * kv_pages * roofline.page_tokens / tokens
    streams = max(1.0, min(float(SEQUENCES), room))
    resident = int(streams * tokens)
    decode_s = roofline.forward_s(0, round(streams), resident, resident) / streams
    count = len(requests)
    prompt = sum(request.prompt_tokens for request in requests) / count
    output = sum(request.output_tokens for request in requests) / count
    return 1.0 / (prompt / roofline.prefill_tokens_per_s() + output * decode_s)
