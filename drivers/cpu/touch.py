"""Memory touched ahead of use.

What is touched for the first time is given by the system only then, in pieces of 2 MiB: a tenth of
a millisecond each where it has to be cleared, 3 to 5 in a virtual machine whose unused memory goes
back to the machine below. In a pass all threads would wait for that.

    frames   |##########......|  touched from here on, as they are taken (`mm/frames.py`)
    slots    |##########......|  the same
                       ^ a piece of each in turn, while nobody computes
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from tokenix.drivers.cpu.arena import HUGE_BYTES
from tokenix.drivers.cpu.jit import Array, Int64, kernel
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.team import swap_if

LOOK_S = 0.05
"""While somebody computes it is looked so often whether that is over."""

SMALL_BYTES = 4096
"""Of the smallest pages that a system gives memory in."""


@kernel
def touch(words: Int64) -> None:
    """Have all pages of these words [n] in place; whatever they hold, and others write there
    meanwhile, stays. It must be a swap: adding nothing would be compiled to a look, for which the
    system gives no memory."""
    for at in range(0, 8 * len(words), SMALL_BYTES):
        swap_if(address(words) + at, 0, 0)


class Toucher:
    """Touches arrays from their beginnings on, on a thread of its own, until all is touched or
    `close`. `busy` is asked before each piece whether somebody computes.

    arrays: contiguous, at multiples of 8 bytes. They stay alive until the end of that."""

    def __init__(self, arrays: Sequence[Array], busy: Callable[[], bool]) -> None:
        self._words = [array.reshape(-1).view(np.int64) for array in arrays]
        self._busy = busy
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenix-touch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when nothing is touched any more, in some milliseconds. Idempotent."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        step = HUGE_BYTES // 8
        for at in range(0, max(map(len, self._words), default=0), step):
            for words in self._words:
                while self._busy():
                    if self._closing.wait(LOOK_S):
                        return
                if self._closing.is_set():
                    return
                touch(words[at : at + step])
