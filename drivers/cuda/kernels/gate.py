"""The middle of a feed-forward layer: silu(gate) * up, SwiGLU (Shazeer 2020, section 2).

    row of both   [ gate: width numbers | up: width numbers ]        row of out   [ width numbers ]

A thread has a pair of numbers. Between the products with matrices it is one kernel in place of two.
"""

import math
from typing import Any

from tokenix.drivers.cuda.kernels.words import (
    LOAD_PAIR,
    STORE_PAIR,
    Kind,
    cuda,
    device,
    exp2,
    float32,
    quotient,
)

THREADS = 256

_LOG2_E = math.log2(math.e)


def count_blocks(rows: int, width: int) -> int:
    """For so many rows of an even width."""
    return -(-rows * width // (2 * THREADS))


@device
def _silu(x: Any) -> Any:
    return x / (float32(1.0) + exp2(x * float32(-_LOG2_E)))


def make_gate(kind: Kind) -> Any:
    """The kernel `abi.GATE`."""
    load_pair, store_pair = LOAD_PAIR[kind], STORE_PAIR[kind]

    def gate(both: Any, out: Any, rows: Any, width: Any) -> None:
        pairs = width >> 1
        item = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if item >= rows * pairs:
            return
        at = item + quotient(item, pairs) * pairs
        low, high = load_pair(both, at)
        up_low, up_high = load_pair(both, at + pairs)
        store_pair(out, item, _silu(low) * up_low, _silu(high) * up_high)

    return gate
