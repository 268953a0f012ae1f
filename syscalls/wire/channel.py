"""The client's side of one connection. One thread of its own does all reading and writing; calls
only queue their frame and ring, so that neither a signal nor a full socket can harm a stream of
frames, and many frames go out with one write.
"""

import errno
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import msgspec

from tokenix.kernel.calls import KernelError
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.abi import Answer, Bye, Delta, Fail, Hello, Ping, Pong, Welcome
from tokenix.syscalls.wire.framing import FrameError, Frames, append_frame
from tokenix.syscalls.wire.limits import MOST_ANSWER_BYTES

RECEIVE_BYTES = 1 << 16
"""In one go. Memory of this size is at hand; above 128 KiB each piece would be mapped anew."""
PING_S = 15.0
"""A server that owes an answer and was not heard of for so long is asked whether it is there."""
SILENT_S = 120.0
"""... and given up after so long."""

_open: "weakref.WeakSet[Channel]" = weakref.WeakSet()


class Receiver(Protocol):
    """A call or a flow that waits for messages. Called on the channel's thread."""

    def answered(self, value: "msgspec.Raw") -> None: ...

    def pushed(self, message: Delta) -> bool:
        """True if that was the last. `told` follows, when all that has come together is here."""
        ...

    def told(self) -> None: ...

    def failed(self, problem: KernelError) -> None: ...


class Channel:
    """Connected from the start (OSError if nobody listens), greeted a moment later; `lost` says why
    it is not any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: KernelError | None = None
        self.welcome: Future[Welcome] = Future()
        self._home = os.getpid()
        self._socket = _connect(path)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._rung = False
        self._closing = False
        self._lock = threading.RLock()
        """Of `lost`, the bell and who waits; taken for a moment only, perhaps by a signal's
        handler on top of what it has interrupted."""
        self._receivers: dict[int, Receiver] = {}
        self._queue: deque[bytes | bytearray] = deque()
        self._unsent = b""
        self._frames = Frames(MOST_ANSWER_BYTES)
        self._heard_s = time.monotonic()
        self._pinged = False
        hello = bytearray()
        append_frame(hello, Hello(abi.VERSION, _program()), 1 << 16)
        self._queue.append(hello)
        self._ring()
        self._thread = threading.Thread(target=self._run, name="tokenix-client", daemon=True)
        _open.add(self)
        self._thread.start()

    def __len__(self) -> int:
        """Calls and flows in flight."""
        return len(self._receivers)

    def send(self, frame: bytearray, number: int = 0, receiver: Receiver | None = None) -> bool:
        """Queue a frame; `receiver` gets what is said of `number`. False if the connection is
        lost, and then nothing comes of it."""
        with self._lock:
            if self.lost is not None:
                return False
            if receiver is not None:
                self._receivers[number] = receiver
            self._queue.append(frame)
            self._ring()
        return True

    def close(self) -> None:
        """Send what is queued, and close. Idempotent."""
        if os.getpid() != self._home:
            return
        self._closing = True
        with self._lock:
            if self.lost is None:
                self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def leave(self) -> None:
        """In a fork: let go of the connection, which is the parent's."""
        self._socket.close()
        os.close(self._bell)

    # ---- the thread ----

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        why: KernelError | None = None
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        try:
            while why is None:
                why = self._turn(poll)
        except OSError as problem:
            why = self._gone(problem.strerror or str(problem))
        except FrameError as problem:
            why = KernelError(
                errno.EPROTO, f"{self.path} sends what is no frame: {problem.message}"
            )
        except Exception as problem:
            why = KernelError(errno.EPROTO, f"{self.path} sends what cannot be read: {problem}")
        finally:
            self._lose(why or self._gone("the client's thread has ended"))

    def _turn(self, poll: select.poll) -> KernelError | None:
        """Send, wait, receive. Why it is over, or None."""
        closing = self._closing
        unsent = self._send()
        if closing:
            return self._gone("it was closed")
        poll.modify(self._socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        events = dict(poll.poll(self._patience_ms()))
        if self._bell in events:
            os.eventfd_read(self._bell)
            self._rung = False
        if events.get(self._socket.fileno(), 0) & ~select.POLLOUT:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                return self._gone("the kernel has stopped")
            self._heard_s, self._pinged = time.monotonic(), False
            why = self._take(self._frames.feed(data))
            if why is not None:
                return why
        return self._check_silence()

    def _take(self, frames: list[bytes]) -> KernelError | None:
        """Hand out what has come. Why it is over, or None."""
        decode, receivers = abi.server_decoder.decode, self._receivers
        why: KernelError | None = None
        told: dict[Receiver, None] = {}
        for frame in frames:
            message = decode(frame)
            if not isinstance(message, Delta):
                why = why or self._handle(message)
                continue
            receiver = receivers.get(message.id)
            if receiver is not None:
                told[receiver] = None
                if receiver.pushed(message):
                    receivers.pop(message.id, None)
        for receiver in told:
            receiver.told()
        return why

    def _send(self) -> bool:
        """Whether something is left unsent."""
        queue = self._queue
        if queue:
            parts: list[bytes | bytearray] = [self._unsent]
            while queue:
                parts.append(queue.popleft())
            self._unsent = b"".join(parts)
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return True
            except (BrokenPipeError, ConnectionResetError):
                sent = len(self._unsent)  # nobody reads; what was said before that still comes
            self._unsent = self._unsent[sent:]
        return bool(self._unsent)

    def _handle(self, message: Welcome | Answer | Fail | Bye | Ping | Pong) -> KernelError | None:
        match message:
            case Answer(number, value):
                receiver = self._receivers.pop(number, None)
                if receiver is not None:
                    receiver.answered(value)
            case Fail(number, code, text, retry_after_s):
                receiver = self._receivers.pop(number, None)
                if receiver is not None:
                    receiver.failed(KernelError(code, text, retry_after_s))
            case Welcome():
                if not self.welcome.done():
                    self.welcome.set_result(message)
            case Bye(code, text):
                return KernelError(code, text)
            case Ping():
                self._say(Pong())
            case Pong():
                pass
        return None

    def _say(self, message: Ping | Pong) -> None:
        frame = bytearray()
        append_frame(frame, message, 1 << 16)
        self._queue.append(frame)

    def _owed(self) -> bool:
        return bool(self._receivers) or not self.welcome.done()

    def _patience_ms(self) -> float | None:
        if not self._owed():
            return None
        silent_s = time.monotonic() - self._heard_s
        return max(0.0, (SILENT_S if self._pinged else PING_S) - silent_s) * 1000 + 1

    def _check_silence(self) -> KernelError | None:
        if not self._owed():
            self._heard_s = time.monotonic()
            return None
        silent_s = time.monotonic() - self._heard_s
        if silent_s > SILENT_S:
            return self._gone(f"it has not answered for {SILENT_S:g} s")
        if silent_s > PING_S and not self._pinged:
            self._pinged = True
            self._say(Ping())
        return None

    def _gone(self, how: str) -> KernelError:
        return KernelError(
            errno.ECONNRESET,
            f"the connection to the kernel at {self.path} is lost ({how}); what was started over "
            "it has ended, and the next call connects again",
        )

    def _lose(self, why: KernelError) -> None:
        with self._lock:
            self.lost = why
            receivers, self._receivers = self._receivers, {}
            _open.discard(self)
            self._socket.close()
            os.close(self._bell)
        if not self.welcome.done():
            self.welcome.set_exception(why)
        for receiver in receivers.values():
            receiver.failed(why)


def _connect(path: Path) -> socket.socket:
    """A connected, non-blocking socket. KernelError: nobody listens, or the backlog is full."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.setblocking(False)
    try:
        connecting.connect(os.fspath(path))
    except OSError as problem:
        connecting.close()
        assert problem.errno is not None
        if problem.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            number = errno.ENOENT if problem.errno == errno.ENOTDIR else problem.errno
            raise KernelError(
                number, f"no kernel listens on {path}; start one: tokenix serve MODEL"
            ) from None
        if problem.errno == errno.EAGAIN:
            raise KernelError(errno.EAGAIN, f"the kernel at {path} is busy", 1.0) from None
        what = problem.strerror or str(problem)
        raise KernelError(problem.errno, f"cannot connect to {path}: {what}") from None
    return connecting


def _program() -> str:
    """What this program calls itself, for the server's log."""
    try:
        return Path("/proc/self/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _in_fork() -> None:
    for channel in tuple(_open):
        channel.leave()
    _open.clear()


os.register_at_fork(after_in_child=_in_fork)
