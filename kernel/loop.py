"""The pump: the only clock. It feeds the kernel what happens and does what the kernel says.

    callers --ask()---> inbox --+
                                +--> learn --> decide --> commands --> device.submit
    device --wake()/poll()------+                 replies --> the callers' futures,
                                                              output, to who follows it

One thread of its own. It sleeps on a condition until a call comes or the kernel's next timer is
due; nothing it does waits for a reader or for a disk. What the device has done is handled by the
thread that did it, unless another is at it: between two passes nobody has to wake up first. Replies
and output for who follows it are left to our own thread, which has time for them while the device
computes: a program that gets some may be woken up on the core of whoever gave it.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, cast

from tokenix.drivers.device import Device
from tokenix.kernel.answers import ReadResult
from tokenix.kernel.calls import Asks, KernelError, Principal, Request, error
from tokenix.kernel.core import Kernel
from tokenix.kernel.event import Call, Command, Event, Reply

Answer = TypeVar("Answer")

Then = Callable[[Reply], None]
"""What is done with the reply to a call."""

Settle = Callable[[], None]

Part = Callable[[ReadResult], Settle | None]
"""Takes output that is followed, at once and without waiting; what it returns is called, once, when
all that has come together is given out. Neither may raise. On the kernel's thread."""


class Pump:
    """Runs a kernel and its device until `close`. Thread-safe: any thread may call."""

    def __init__(
        self, kernel: Kernel, device: Device, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kernel = kernel
        self._device = device
        self._clock = clock
        self._epoch_s = clock()
        self._home = os.getpid()
        self._lock = threading.Condition()
        self._inbox: list[Call] = []
        self._woken = False
        """The device has something, and whoever is in a turn may have looked before that."""
        self._next_s: float | None = None
        """When the kernel has to be called at the latest."""
        self._closing = False
        self._failure: BaseException | None = None
        self._turning = threading.Lock()
        """Held in a turn: the kernel has one caller at a time. Taken before `_lock`."""
        self._replies: deque[Reply] = deque()
        """Not given to their callers yet."""
        self._askers: dict[int, Then] = {}
        self._followers: dict[int, Part] = {}
        """Those of the askers who want parts of their answer."""
        self._call_ids = 0
        device.set_wake(self._wake)
        self._thread = threading.Thread(target=self._run, name="tokenix-kernel", daemon=True)
        self._thread.start()

    def submit(self, request: Asks[Answer], principal: Principal) -> tuple[int, "Future[Answer]"]:
        """Send a call. The future gets its result, or a KernelError."""
        future: Future[Answer] = Future()
        return self.ask(request, principal, partial(_resolve, future)), future

    def ask(
        self, request: Asks[Any], principal: Principal, then: Then, part: Part | None = None
    ) -> int:
        """Send a call; its number. `then` gets the reply, once: on the kernel's thread, which must
        not wait there, or at once if the kernel is gone. `part`, of a `Follow`, gets what comes
        before that."""
        assert isinstance(request, Request), "only system calls are sent"
        if os.getpid() != self._home:  # the lock may be held for ever here
            then(Reply(0, error=self._gone()))
            return 0
        with self._lock:
            self._call_ids += 1
            call_id = self._call_ids
            if not self._closing and self._failure is None:
                self._askers[call_id] = then
                if part is not None:
                    self._followers[call_id] = part
                self._inbox.append(Call(call_id, principal, request))
                self._lock.notify()
                return call_id
        then(Reply(call_id, error=self._gone()))
        return call_id

    def close(self) -> None:
        """Stop the kernel and the device; blocked calls get ESHUTDOWN. Idempotent.

        In a fork of the process there is nothing to stop.
        """
        if os.getpid() != self._home:
            return
        with self._lock:
            self._closing = True
            self._lock.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._turning:  # of a device's thread
            pass
        self._device.close()

    def _now_s(self) -> float:
        return self._clock() - self._epoch_s

    def _wake(self) -> None:
        """On a thread of the device: it has done something."""
        self._woken = True
        if not self._turning.acquire(blocking=False):
            with self._lock:
                self._lock.notify()
            return
        try:
            self._turn()
        except BaseException as problem:
            self._failure = problem
        finally:
            self._turning.release()
        if self._replies or self._failure is not None:
            with self._lock:
                self._lock.notify()

    def _gone(self) -> KernelError:
        if os.getpid() != self._home:
            return error(errno.ESHUTDOWN, f"the kernel is in process {self._home}, not in its fork")
        if self._failure is not None:
            return error(errno.EIO, f"the kernel has failed: {self._failure}")
        return error(errno.ESHUTDOWN, "the kernel has been shut down")

    def _run(self) -> None:
        try:
            while self._sleep():
                with self._turning:
                    self._turn()
                self._answer()
        except BaseException as problem:
            self._failure = problem
        finally:
            self._abandon()
        if self._failure is not None:
            raise self._failure

    def _sleep(self) -> bool:
        """Wait until there is something to do. False when it is time to stop."""
        with self._lock:
            while not self._closing and self._failure is None:
                if self._replies or self._is_due():
                    return True
                self._lock.wait(self._left_s())
        return False

    def _left_s(self) -> float | None:
        """Seconds until the next timer, or until it is time to look again: no lock waits longer."""
        if self._next_s is None:
            return None
        return min(self._next_s - self._now_s(), threading.TIMEOUT_MAX)

    def _is_due(self) -> bool:
        """Whether there is something for a turn. With `_lock` held."""
        late = self._next_s is not None and self._next_s <= self._now_s()
        return bool(self._inbox) or self._woken or late

    def _turn(self) -> None:
        """One step of the kernel and what follows from it; nothing if another thread was quicker.
        With `_turning` held."""
        with self._lock:
            if self._closing or not self._is_due():
                return
            inbox: list[Event] = [*self._inbox]
            self._inbox.clear()
            self._woken = False
        now_s = self._now_s()
        inbox += self._device.poll(now_s)
        self._carry_out(self._kernel.learn(now_s, inbox), now_s)
        self._carry_out(self._kernel.decide(), now_s)
        next_s = self._kernel.next_wake_s()
        with self._lock:
            before_s, self._next_s = self._next_s, next_s
            if next_s is not None and (before_s is None or next_s < before_s):
                self._lock.notify()  # our own thread sleeps for too long

    def _carry_out(self, commands: list[Command], now_s: float) -> None:
        for command in commands:
            if isinstance(command, Reply):
                self._replies.append(command)
            else:
                self._device.submit(command, now_s)

    def _answer(self) -> None:
        """Give out replies, on our own thread."""
        replies = self._replies
        settle: dict[Settle, None] = {}
        while replies:
            reply = replies.popleft()
            if reply.more:
                part = self._followers.get(reply.call_id)
                after = None if part is None else part(cast("ReadResult", reply.value))
                if after is not None:
                    settle[after] = None
                continue
            then = self._askers.pop(reply.call_id, None)
            self._followers.pop(reply.call_id, None)
            if then is not None:
                then(reply)
        for after in settle:
            after()

    def _abandon(self) -> None:
        """Nobody will answer the calls that are left."""
        self._answer()
        with self._lock:
            self._closing = True
            left, self._askers = self._askers, {}
        for call_id, then in left.items():
            then(Reply(call_id, error=self._gone()))


def _resolve(future: "Future[Any]", reply: Reply) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if reply.error is not None:
        future.set_exception(reply.error)
    else:
        future.set_result(reply.value)
