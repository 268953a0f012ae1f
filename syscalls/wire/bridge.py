"""Between the threads: the server's loop, the kernel, and the pool that turns text into tokens.

What the kernel answers is collected on its thread and the loop woken once, however much there is;
the kernel's thread never waits. Replies come through in the order in which the kernel gave them.
Output that is followed does not pass the loop at all (`Flow`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from tokenix.kernel.calls import Asks, Follow, Principal
from tokenix.kernel.event import Reply
from tokenix.kernel.loop import Part
from tokenix.syscalls.port import LocalPort
from tokenix.syscalls.texts import TextRequest, resolve

TEXT_THREADS = 2

Then = Callable[[Reply], None]
"""What the loop does with a reply of the kernel."""
Made = Callable[["Future[Any]"], None]
"""What the loop does with what was made of a text: a request or an answer, or an exception."""


class Bridge:
    """`submit` and `resolve` are called on the loop; `settled` is called there after each batch."""

    def __init__(
        self, port: LocalPort, loop: asyncio.AbstractEventLoop, settled: Callable[[], None]
    ) -> None:
        self._machine = port.machine
        self._pump = port.machine.pump
        self._loop = loop
        self._settled = settled
        self._done: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        self._pool = ThreadPoolExecutor(TEXT_THREADS, "tokenix-text")

    def submit(self, request: Asks[Any], principal: Principal, then: Then) -> int:
        """Ask the kernel; the number that it knows the call by."""
        return self._pump.ask(request, principal, partial(self._note, then))

    def follow(self, request: Follow, principal: Principal, part: Part, then: Then) -> int:
        """The same for output; `part` gets what comes before the reply, on the kernel's thread."""
        return self._pump.ask(request, principal, partial(self._note, then), part)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have it called on the loop. From any thread."""
        self._note(partial(_call, call), None)

    def resolve(self, request: TextRequest, made: Made) -> None:
        """Make the kernel's request of it, in the pool; the future has a Request or an Answered."""
        future: Future[Any] = self._pool.submit(resolve, self._machine, request)
        future.add_done_callback(partial(self._note, made))

    def close(self) -> None:
        """Nothing more is resolved. What the kernel still answers is dropped with the loop."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _note(self, then: Callable[[Any], None], what: Any) -> None:
        """On any thread."""
        self._done.append((then, what))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before looking: what comes later wakes the loop again
        done = self._done
        while done:
            then, what = done.popleft()
            then(what)
        self._settled()


def _call(call: Callable[[], None], _: None) -> None:
    call()
