"""The server's side of one connection: frames in, messages out, and what holds back a client that
does not read.

Unsent messages are bounded: above its budget nothing is read from a client any more, and its flows
take no output from the kernel, until all is sent.
"""

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections import deque
from functools import partial
from typing import Protocol, cast

import msgspec

from tokenix.kernel.calls import CancelCall, KernelError, Principal, error
from tokenix.kernel.loop import Settle
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.abi import (
    Ask,
    Bye,
    Fail,
    Follow,
    Grant,
    Hello,
    Peer,
    Ping,
    Pong,
    Welcome,
)
from tokenix.syscalls.wire.bridge import Bridge
from tokenix.syscalls.wire.flow import Flow
from tokenix.syscalls.wire.framing import FrameError, Frames, append_frame
from tokenix.syscalls.wire.inflight import BEGINS, Calls
from tokenix.syscalls.wire.limits import WireLimits

MESSAGE_CHARACTERS = 1000
"""Of an error, which may repeat what a client has sent."""

log = logging.getLogger(__name__)


def one_line(message: str) -> str:
    """A message as it may be shown on a terminal."""
    shown = message[:MESSAGE_CHARACTERS]
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown
        )
    return shown


class Hub(Protocol):
    """What a connection needs of its server."""

    limits: WireLimits
    name: str
    pid: int
    draining: str
    """Why no new processes are taken; "" if they are."""
    held_bytes: int
    """Of begun frames, all connections together; written by them."""

    @property
    def bridge(self) -> Bridge: ...

    def principal(self, descriptor: int) -> Principal: ...

    def admit(self, connection: "Connection") -> bool: ...

    def forget(self, connection: "Connection") -> None: ...

    def has_output(self, connection: "Connection") -> None: ...

    def lags(self, connection: "Connection", lags: bool) -> None: ...

    def watch_hangup(self, connection: "Connection", watch: bool) -> None: ...

    def now_s(self) -> float: ...


class Connection(asyncio.Protocol):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._limits = hub.limits
        self._frames = Frames(hub.limits.frame_bytes)
        self._backlog: deque[bytes] = deque()
        """Frames that have come and may not be handled yet."""
        self._lock = threading.Lock()
        """Of `_out`, `_direct` and all writing: output is pushed on other threads too."""
        self._out = bytearray()
        self._direct = -1
        """The socket, for those threads; -1: they leave all to the loop."""
        self._calls = Calls(hub.bridge, self, self._settle)
        self._who = Principal()
        self._greeted = False
        self._closing = False
        self._reading = True
        self._lagging = False
        self._pinged = False
        self._working = False
        self.blocked = False
        """More is unsent than the budget allows."""
        self.began_s = self.heard_s = hub.now_s()
        self._frame_began_s: float | None = None
        self._unsent = 0
        self.held_bytes = 0
        """Of a frame that has begun."""
        self.descriptor = -1

    # ---- what asyncio calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.descriptor = self._transport.get_extra_info("socket").fileno()
        self._transport.set_write_buffer_limits(high=0)  # told of anything that is left unsent
        if not self._hub.admit(self):
            most = self._limits.connections
            self.close(errno.EAGAIN, f"{most} programs are connected already; that is the limit")
            return
        self._who = self._hub.principal(self.descriptor)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.heard_s, self._pinged = self._hub.now_s(), False
        try:
            frames = self._frames.feed(data)
        except FrameError as problem:
            self.close(problem.errno, problem.message)
            return
        if not self._hold(self._frames.held_bytes):
            return
        if not self.held_bytes:
            self._frame_began_s = None
        elif frames or self._frame_began_s is None:
            self._frame_began_s = self.heard_s
        self._backlog.extend(frames)
        self._work()

    def pause_writing(self) -> None:
        self._lagging = True
        self._hub.lags(self, True)

    def resume_writing(self) -> None:
        self._lagging = False
        self._unsent = 0
        self.heard_s = self._hub.now_s()
        self._hub.lags(self, False)
        self.unblock()

    def connection_lost(self, problem: Exception | None) -> None:
        self._closing = True
        with self._lock:
            direct, self._direct = self._direct, -1
        if direct >= 0:
            os.close(direct)
        self._backlog.clear()
        self._hold(0)
        self._calls.abandon()
        self._hub.forget(self)

    # ---- what the server and the calls ask ----

    def send(self, message: abi.FromServer) -> None:
        """Queue a message. It goes out when the loop has done all that is to be done now."""
        if not self._append(message):
            self._cannot_send()
        self._hub.has_output(self)

    def push(self, message: abi.Delta) -> Settle:
        """Queue a message, on the kernel's thread. It goes out with a call of what this returns;
        nothing does behind a Bye."""
        if not self._closing and not self._append(message):
            self._hub.bridge.call_soon(self._cannot_send)
        return self._write_through

    def _append(self, message: abi.FromServer) -> bool:
        try:
            with self._lock:
                return append_frame(self._out, message, self._limits.answer_bytes)
        except Exception:
            log.exception("a message cannot be sent")
            return False

    def _cannot_send(self) -> None:
        self.close(errno.EMSGSIZE, "a message to this client cannot be sent")

    def flush(self) -> None:
        with self._lock:
            if self._out and not self._transport.is_closing():
                out, self._out = self._out, bytearray()
                self._transport.write(out)

    def _write_through(self) -> None:
        """Send what is queued, on the kernel's thread: past the loop, which need not wake up for
        it, unless that has something unsent before it or the socket is full."""
        with self._lock:
            idle = not self._lagging and self._transport.get_write_buffer_size() == 0
            if self._out and idle and self._direct >= 0:
                with contextlib.suppress(OSError):  # it is full, or the loop finds out that it ends
                    del self._out[: os.write(self._direct, self._out)]
            left = bool(self._out)
        if left:
            self._hub.bridge.call_soon(partial(self._hub.has_output, self))

    def _open_direct(self) -> None:
        """A descriptor of its own, which nobody closes while another thread writes to it."""
        if self._direct < 0 and not self._closing:
            with contextlib.suppress(OSError):  # there are no more
                self._direct = os.dup(self.descriptor)

    def measure_unsent(self) -> int:
        """Bytes that the socket has not taken yet. That it took some means that the client
        lives."""
        size = self._transport.get_write_buffer_size()
        if size < self._unsent:
            self.heard_s = self._hub.now_s()
        self._unsent = size
        return size

    def block(self) -> None:
        """Take nothing from the client nor for it until all is sent."""
        if not self.blocked:
            self.blocked = True
            self._calls.hold()
            self._mind_reading()

    def unblock(self) -> None:
        if self.blocked:
            self.blocked = False
            self._calls.go_on()
            self._work()

    def flow_ended(self, flow: Flow) -> None:
        self._calls.drop_flow(flow.number)
        self._resume_work()

    def close(self, number: int, message: str) -> None:
        """Say why, and close."""
        if self._closing:
            return
        self._closing = True
        self._backlog.clear()
        self.send(Bye(number, one_line(message)))
        self.flush()
        self.began_s = self._hub.now_s()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what is unsent is dropped."""
        self._closing = True
        self._hub.lags(self, False)
        self._transport.abort()

    def sweep(self, now_s: float) -> None:
        """What is overdue. Called now and then."""
        limits = self._limits
        if self._closing:
            if now_s - self.began_s > limits.hello_s:
                self._transport.abort()
            return
        if not self._greeted:
            if now_s - self.began_s > limits.hello_s:
                self.close(errno.ETIMEDOUT, f"no hello within {limits.hello_s:g} s")
            return
        if self._lagging:
            self.measure_unsent()
        began_s = self._frame_began_s
        if began_s is not None and self._reading and now_s - began_s > limits.frame_s:
            self.close(errno.ETIMEDOUT, f"a frame did not end within {limits.frame_s:g} s")
        elif not self._reading and not self._lagging:
            self.heard_s = now_s  # it is we who do not listen
        elif now_s - self.heard_s > limits.silent_s:
            log.info("%s has been silent for %g s", self._who.tenant, limits.silent_s)
            self.abort()
        elif now_s - self.heard_s > limits.ping_s and not self._pinged and not self._lagging:
            self._pinged = True
            self.send(Ping())

    @property
    def calls(self) -> Calls:
        return self._calls

    # ---- frames ----

    def _hold(self, size_bytes: int) -> bool:
        """So much of a frame has come. False if all clients together bring too much."""
        hub = self._hub
        hub.held_bytes += size_bytes - self.held_bytes
        self.held_bytes = size_bytes
        fits = hub.held_bytes <= self._limits.all_in_bytes
        if not fits:
            self.close(errno.ENOBUFS, "too much is on its way to the kernel; try again later")
        return fits

    def _work(self) -> None:
        """Handle what has come, as far as it may be handled."""
        if self._working:  # called by what it has called
            return
        self._working = True
        backlog = self._backlog
        while backlog and self._may_work() and not self._closing:
            self._handle(backlog.popleft())
        self._working = False
        self._mind_reading()

    def _may_work(self) -> bool:
        calls, limits = self._calls, self._limits
        return (
            not self.blocked and len(calls) <= limits.calls and calls.size_bytes < limits.call_bytes
        )

    def _resume_work(self) -> None:
        if not self._reading or self._backlog:
            self._work()

    def _mind_reading(self) -> None:
        """Read from the socket as long as what comes may be handled."""
        reading = self._may_work() and not self._backlog
        if reading == self._reading or self._closing or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
        self._hub.watch_hangup(self, not reading)
        self.heard_s = self._hub.now_s()

    def _handle(self, frame: bytes) -> None:
        try:
            message = abi.client_decoder.decode(frame)
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            self._cannot_read(frame, problem)
            return
        if not self._greeted:
            self._greet(message)
            return
        match message:
            case Ask():
                self._ask(message, len(frame))
            case Grant():
                self._calls.grant(message.id, message.tokens, self._limits.window_tokens)
            case Follow():
                self._follow(message)
            case Ping():
                self.send(Pong())
            case Pong():
                pass
            case Hello():
                self.close(errno.EPROTO, "a second hello")

    def _cannot_read(self, frame: bytes, problem: Exception) -> None:
        """A call that makes no sense fails; anything else ends the connection."""
        if self._greeted:
            try:
                number = abi.number_decoder.decode(frame).id
            except (msgspec.MsgspecError, ValueError, RecursionError):
                number = 0
            if number and number not in self._calls:
                self.send(
                    Fail(number, errno.EINVAL, one_line(f"the request cannot be read: {problem}"))
                )
                return
        self.close(errno.EPROTO, f"a message cannot be read: {problem}")

    def _greet(self, message: abi.FromClient) -> None:
        if not isinstance(message, Hello):
            self.close(errno.EPROTO, "the first message must be a hello")
        elif message.version != abi.VERSION:
            self.close(
                errno.EPROTONOSUPPORT,
                f"this kernel speaks version {abi.VERSION} of the socket ABI, the client version "
                f"{message.version}; install the same version of tokenix on both sides",
            )
        else:
            self._greeted = True
            peer = Peer(self._who.tenant, self._who.root)
            hub = self._hub
            self.send(Welcome(abi.VERSION, hub.name, hub.pid, peer, self._limits))
            log.debug("%s connects as %s", message.client or "a program", peer)

    def _ask(self, message: Ask, size_bytes: int) -> None:
        number, request = message.id, message.request
        who = self._begin(number, message.tenant)
        if who is None:
            return
        if isinstance(request, CancelCall):
            self._calls.cancel(request.call_id, lambda taken: self._settle(number, taken))
        elif self._hub.draining and isinstance(request, BEGINS):
            self._settle(number, error(errno.ESHUTDOWN, self._hub.draining))
        else:
            self._calls.ask(number, request, who, size_bytes)

    def _follow(self, message: Follow) -> None:
        who = self._begin(message.id, message.tenant)
        if who is None:
            return
        most = self._limits.window_tokens
        if not 1 <= message.window <= most:
            what = f"a window has 1 to {most} tokens, not {message.window}"
            self._settle(message.id, error(errno.EINVAL, what))
            return
        self._open_direct()
        self._calls.follow(message.id, message.pid, message.window, who)

    def _begin(self, number: int, tenant: str | None) -> Principal | None:
        """In whose name a call is; None: it may not be, and that was said."""
        if number < 1 or number in self._calls:
            what = "is in flight already" if number > 0 else "is not above 0"
            self.close(errno.EPROTO, f"the number of a call {what}: {number}")
            return None
        if tenant is None:
            return self._who
        if self._who.root:
            return Principal(tenant)
        self._settle(number, error(errno.EPERM, "only root may call for a tenant"))
        return None

    def _settle(self, number: int, value: object) -> None:
        """Send the answer of a call."""
        if self._closing:
            return
        limit = self._limits.answer_bytes
        if isinstance(value, KernelError):
            assert value.errno is not None
            self.send(Fail(number, value.errno, one_line(value.message), value.retry_after_s))
        else:
            answer = abi.Answer(number, cast("msgspec.Raw", value))
            try:
                with self._lock:
                    fits = append_frame(self._out, answer, limit)
            except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
                log.exception("an answer cannot be sent")
                self.send(Fail(number, errno.EIO, "the answer cannot be sent; the log says why"))
            else:
                if not fits:
                    what = f"the answer has more than {limit} bytes; ask for less"
                    self.send(Fail(number, errno.EMSGSIZE, what))
            self._hub.has_output(self)
        self._resume_work()
