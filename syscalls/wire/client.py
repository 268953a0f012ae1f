"""A port to a kernel behind a socket: `connect` for blocking callers, `looped.connect` for an event
loop.

It connects when it is made, and again with the first call after its connection was lost: a call
that was in flight then fails with ECONNRESET, since nobody knows whether it was done.
"""

import errno
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokenix.kernel.answers import ReadResult, ends_turn
from tokenix.kernel.calls import Asks, CancelCall, KernelError, error
from tokenix.mm.ids import Pid
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.abi import Ask, Delta, Follow, Grant, Welcome
from tokenix.syscalls.wire.channel import Channel, Receiver
from tokenix.syscalls.wire.framing import append_frame
from tokenix.syscalls.wire.limits import WireLimits
from tokenix.syscalls.wire.paths import socket_path
from tokenix.syscalls.wire.threaded import ThreadChannel

Answer = TypeVar("Answer")

WELCOME_S = 30.0
"""A kernel that does not answer a hello for so long is not waited for."""


class RemotePort:
    """Keeps `syscalls.port.Port`."""

    def __init__(self, line: "Line", tenant: str | None = None) -> None:
        """Of a connection that was greeted."""
        self._line = line
        self._tenant = tenant

    @property
    def welcome(self) -> Welcome:
        """What the kernel has said of itself."""
        return self._line.welcome

    def submit(self, request: Asks[Answer]) -> "tuple[int, Future[Answer]]":
        receiver = _Call(type(request))
        number = self._line.ask(request, self._tenant, receiver)
        return number, receiver.future

    def follow(self, pid: Pid) -> "RemoteFlow":
        return RemoteFlow(self._line, pid, self._tenant)

    def as_tenant(self, tenant: str) -> "RemotePort":
        return RemotePort(self._line, tenant)

    def close(self) -> None:
        """Let go of the kernel. What was started over this connection ends, but for what was
        detached. Idempotent."""
        self._line.close()


def connect(path: "str | os.PathLike[str] | None" = None) -> RemotePort:
    """OSError ENOENT or ECONNREFUSED: no kernel listens there; EPROTONOSUPPORT: it is of another
    version."""
    line = Line(path, ThreadChannel)
    try:
        line.greet(line.greeting.result(WELCOME_S))
    except TimeoutError:
        raise line.unanswered() from None
    except KernelError as problem:
        raise problem.as_os_error() from None
    return RemotePort(line)


class Line:
    """The connection of a port and of its tenants' ports, whichever it is at the moment."""

    def __init__(
        self, path: "str | os.PathLike[str] | None", dial: Callable[[Path], Channel]
    ) -> None:
        """`dial` connects, now and after each loss. Who makes it waits for `greeting` and passes
        that to `greet` before anything is asked. OSError if nobody listens."""
        self._path = socket_path(path)
        self._dial = dial
        self._home = os.getpid()
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._closed = False
        self._limits = WireLimits()
        try:
            self._channel = dial(self._path)
        except KernelError as problem:
            raise problem.as_os_error() from None

    @property
    def greeting(self) -> Future[Welcome]:
        return self._channel.welcome

    @property
    def welcome(self) -> Welcome:
        return self._channel.welcome.result()

    def greet(self, welcome: Welcome) -> None:
        self._limits = welcome.limits

    def unanswered(self) -> OSError:
        """Hang up; why."""
        self._channel.close()
        what = f"the kernel at {self._path} has not answered for {WELCOME_S:g} s"
        return error(errno.ETIMEDOUT, what).as_os_error()

    def ask(self, request: Asks[Any], tenant: str | None, receiver: Receiver) -> int:
        """Send a call; its number. OSError EINVAL: it cannot be sent."""
        number = next(self._numbers)
        frame = _frame(Ask(number, request, tenant), self._limits)
        self._send(number, frame, receiver, always=isinstance(request, CancelCall))
        return number

    def follow(self, pid: Pid, window: int, tenant: str | None, receiver: Receiver) -> int:
        number = next(self._numbers)
        frame = _frame(Follow(number, pid, window, tenant), self._limits)
        self._send(number, frame, receiver, always=False)
        return number

    def grant(self, number: int, tokens: int) -> None:
        self._channel.send(_frame(Grant(number, tokens), self._limits))

    @property
    def window_tokens(self) -> int:
        return min(abi.WINDOW_TOKENS, self._limits.window_tokens)

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def _send(self, number: int, frame: bytearray, receiver: Receiver, always: bool) -> None:
        """Whatever goes wrong is said to the receiver. `always`: also above the limit of calls."""
        foreign = self.left_behind()
        if foreign is not None:
            receiver.failed(foreign)
            return
        try:
            while True:
                channel = self._live()
                if not always and len(channel) >= self._limits.calls:
                    what = f"{len(channel)} calls are in flight on this connection, its limit"
                    raise error(errno.EAGAIN, what, 0.1)
                if channel.send(frame, number, receiver):
                    return
        except KernelError as problem:
            receiver.failed(problem)

    def left_behind(self) -> KernelError | None:
        """In a fork of the process whose connection it is: that nothing comes here."""
        if os.getpid() == self._home:
            return None
        what = f"this connection is of process {self._home}; connect anew in its fork"
        return error(errno.ESHUTDOWN, what)

    def _live(self) -> Channel:
        """The connection, or a new one if it is lost. It does not wait for the kernel's greeting:
        what is sent meanwhile is answered after it. KernelError: nobody listens."""
        if self._closed:
            raise error(errno.ESHUTDOWN, "this connection has been closed")
        with self._lock:
            if self._channel.lost is not None:
                self._channel = self._dial(self._path)
            return self._channel


class _Call(Receiver):
    """Resolves the future of a call."""

    def __init__(self, request: "type[Asks[Any]]") -> None:
        self._request = request
        self.future: Future[Any] = Future()

    def answered(self, value: msgspec.Raw) -> None:
        try:
            result = abi.answer_decoder(self._request).decode(value)
        except (msgspec.MsgspecError, ValueError) as problem:
            self.failed(error(errno.EPROTO, f"the kernel's answer cannot be read: {problem}"))
        else:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(result)

    def pushed(self, message: Delta) -> bool:
        return False

    def told(self) -> None:
        """A call is never told: it gets no more than its answer."""

    def failed(self, problem: KernelError) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(problem)


class RemoteFlow(Receiver):
    """Keeps `syscalls.port.Flow`: results that the kernel pushes while there is credit, which
    `take` gives back as they are taken."""

    def __init__(self, line: Line, pid: Pid, tenant: str | None) -> None:
        self._line = line
        self._results: deque[ReadResult] = deque()
        self._window = line.window_tokens
        self._taken = 0
        """Tokens taken for which no credit was given yet."""
        self._problem: KernelError | None = None
        self._ended = False
        self._wake: Callable[[], None] | None = None
        self._attending: Callable[[], None] | None = None
        self._stopped: Future[list[ReadResult]] | None = None
        self._lock = threading.Lock()
        """Of the answer of `stop`."""
        self._number = line.follow(pid, self._window, tenant, self)

    def take(self) -> ReadResult | None:
        if self._results:
            result = self._results.popleft()
            self._taken += len(result.outputs)
            if self._taken * 2 >= self._window and not self._ended:
                self._line.grant(self._number, self._taken)
                self._taken = 0
            return result
        if self._problem is not None:
            raise self._problem
        return None

    def when_ready(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        problem = self._line.left_behind()
        if problem is not None:
            self.failed(problem)
        elif self._results or self._ended:
            self.told()

    def attend(self, wake: Callable[[], None]) -> None:
        self._attending = wake
        problem = self._line.left_behind()
        if problem is not None:
            self.failed(problem)

    def stop(self) -> "Future[list[ReadResult]]":
        stopped: Future[list[ReadResult]] = Future()
        self._stopped = stopped
        if self._ended or self._line.left_behind() is not None:
            self._settle_stop()
        else:
            self._line.ask(CancelCall(self._number), None, _Call(CancelCall))
        return stopped

    # ---- what comes, where the channel reads ----

    def answered(self, value: msgspec.Raw) -> None:
        """A flow is never answered."""

    def pushed(self, message: Delta) -> bool:
        result = message.result
        self._results.append(result)
        last = ends_turn(result)
        if last:
            self._end()
        return last

    def told(self) -> None:
        if self._attending is not None:
            self._attending()
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def failed(self, problem: KernelError) -> None:
        self._problem = problem
        self._end()
        self.told()

    def _end(self) -> None:
        self._ended = True
        if self._stopped is not None:
            self._settle_stop()

    def _settle_stop(self) -> None:
        with self._lock:
            stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.set_result(list(self._results))


def _plain(value: object) -> object:
    """What Python callers may pass where the kernel takes lists, objects and numbers."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    if isinstance(value, float):
        return float(value)
    return operator.index(value)  # type: ignore[arg-type]  # TypeError says what it is


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def _frame(message: Ask | Follow | Grant, limits: WireLimits) -> bytearray:
    """OSError: EINVAL for what no message can carry, EMSGSIZE for what is too long."""
    frame = bytearray()
    try:
        fits = append_frame(frame, message, limits.frame_bytes, _encoder)
    except OverflowError:
        what = "the request cannot be sent: a number in it has more than 64 bits"
        raise error(errno.EINVAL, what).as_os_error() from None
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise error(errno.EINVAL, f"the request cannot be sent: {problem}").as_os_error() from None
    if not fits:
        what = f"the request is longer than the {limits.frame_bytes} bytes that the kernel takes"
        raise error(errno.EMSGSIZE, what).as_os_error()
    return frame
