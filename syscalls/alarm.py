"""What wakes an event loop from other threads, and output that is handed over there.

    kernel's or connection's thread           the event loop
    ring(f), ring(g), ring(h)    --one wake-up-->  f() g() h()

Whoever rings only leaves a note, and many notes wake the loop once: neither thread waits for an
event loop that is busy. Works under asyncio and trio.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from tokenix.kernel.answers import ReadResult, ends_turn
from tokenix.syscalls.port import Flow

Later = Callable[[], Awaitable[None]]

Take = Callable[[ReadResult], Later | None]
"""Takes a result, on the event loop. What it returns is called and waited for before the next."""


class Alarm:
    """One of each event loop."""

    def __init__(self) -> None:
        token: Any = anyio.lowlevel.current_token()
        loop = getattr(token, "native_token", token)  # anyio below 4.11 gives the loop itself
        self._soon = getattr(loop, "run_sync_soon", None) or loop.call_soon_threadsafe
        self._thread = threading.get_ident()
        self.new_event: Callable[[], anyio.Event] = type(anyio.Event())
        """Of this event loop's kind, so that it need not be asked for each time."""
        self._rung: deque[Callable[[], None]] = deque()
        self._woken = False

    @classmethod
    def of_this_loop(cls) -> "Alarm":
        try:
            return _alarms.get()
        except LookupError:
            alarm = cls()
            _alarms.set(alarm)
            return alarm

    def ring(self, then: Callable[[], None]) -> None:
        """Have `then`, which must not raise, called on the loop: there at once, from any other
        thread a moment later."""
        if threading.get_ident() == self._thread:
            then()
            return
        self._rung.append(then)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
                self._soon(self._deliver)

    async def wait(self, ask: Callable[[Callable[[], None]], None]) -> None:
        """Until the function that `ask` is given has been called."""
        event = self.new_event()
        ask(partial(self.ring, event.set))
        await event.wait()

    async def wait_for(self, future: "Future[Any]") -> None:
        """Until the future is done."""
        if not future.done():
            await self.wait(lambda ring: future.add_done_callback(lambda _: ring()))

    def _deliver(self) -> None:
        self._woken = False  # before looking: what comes later wakes the loop again
        rung = self._rung
        while rung:
            rung.popleft()()


_alarms: anyio.lowlevel.RunVar[Alarm] = anyio.lowlevel.RunVar("tokenix-alarm")


class Pouring:
    """A flow whose results go to a function as they come. The task that began it sleeps meanwhile:
    it is woken for what `take` wants to have waited for, and for the end."""

    def __init__(self, flow: Flow, take: Take, alarm: Alarm) -> None:
        self._flow = flow
        self._take = take
        self._alarm = alarm
        self._rest: Later | None = None
        self._idle = True
        """The task is at something else than waiting."""
        self._problem: BaseException | None = None
        self._ended = False
        self._event = alarm.new_event()

    async def run(self) -> None:
        """Until the end of the turn. Raises what reads and `take` do."""
        self._flow.attend(partial(self._alarm.ring, self._run))
        try:
            while not self._ended:
                self._event = self._alarm.new_event()
                self._idle = False
                self._run()
                if not self._idle:  # else a cancellation would come in between
                    await self._event.wait()
                if self._problem is not None:
                    raise self._problem
                rest, self._rest = self._rest, None
                if rest is not None:
                    await rest()
        finally:
            self._idle = True
            self._problem = None  # whose traceback holds this

    def _run(self) -> None:
        """Hand over what there is, on the loop."""
        if self._idle:
            return
        try:
            while (result := self._flow.take()) is not None:
                self._ended = ends_turn(result)
                self._rest = self._take(result)
                if self._ended or self._rest is not None:
                    break
            else:
                return
        except BaseException as problem:
            self._problem = problem
        self._idle = True
        self._event.set()
