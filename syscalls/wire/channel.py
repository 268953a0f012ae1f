"""The client's side of one connection. Calls only queue their frame and ring; one place does all
reading and writing, so that neither a signal nor a full socket can harm a stream of frames, and
many frames go out with one write. That place is a thread (`threaded.py`) or the caller's event loop
(`looped.py`).
"""

import errno
import os
import socket
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
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
GREETING_S = 1.0
"""A server that has not greeted for so long is looked at, and again after as long: if its process
is stopped, it will not."""

_open: "weakref.WeakSet[Channel]" = weakref.WeakSet()


class Receiver(Protocol):
    """A call or a flow that waits for messages. Called where the channel reads."""

    def answered(self, value: "msgspec.Raw") -> None: ...

    def pushed(self, message: Delta) -> bool:
        """True if that was the last. `told` follows, when all that has come together is here."""
        ...

    def told(self) -> None: ...

    def failed(self, problem: KernelError) -> None: ...


class Channel(ABC):
    """Connected from the start (KernelError if nobody listens), greeted a moment later; `lost` says
    why it is not any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: KernelError | None = None
        self.welcome: Future[Welcome] = Future()
        self._home = os.getpid()
        self._socket = _connect(path)
        self._lock = threading.RLock()
        """Of `lost`, the ringing and who waits; taken for a moment only, perhaps by a signal's
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
        _open.add(self)

    def __len__(self) -> int:
        """Calls and flows in flight."""
        return len(self._receivers)

    def send(self, frame: bytearray, number: int = 0, receiver: Receiver | None = None) -> bool:
        """Queue a frame; `receiver` gets what is said of `number`. False if the connection is
        lost, and then nothing comes of it. From any thread."""
        with self._lock:
            if self.lost is not None:
                return False
            if receiver is not None:
                self._receivers[number] = receiver
            self._queue.append(frame)
            self._ring()
        return True

    @abstractmethod
    def close(self) -> None:
        """Send what is queued, and close. Idempotent, from any thread."""

    def leave(self) -> None:
        """In a fork: let go of the connection, which is the parent's."""
        self._socket.close()

    # ---- where it reads and writes ----

    @abstractmethod
    def _ring(self) -> None:
        """Have what is queued sent. Called under the lock, on any thread."""

    @abstractmethod
    def _let_go(self) -> None:
        """Look after the connection no longer. Called once, under the lock."""

    def _receive(self) -> KernelError | None:
        """Hand out what has come, which must not be nothing. Why it is over, or None. Raises what
        `_explain` explains."""
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            return self._gone("the kernel has stopped")
        self._heard_s, self._pinged = time.monotonic(), False
        return self._take(self._frames.feed(data))

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

    def _patience_s(self) -> float | None:
        """When silence is to be looked at again; None: not before something is asked."""
        if not self._owed():
            return None
        silent_s = time.monotonic() - self._heard_s
        left_s = max(0.0, (SILENT_S if self._pinged else PING_S) - silent_s)
        return left_s if self.welcome.done() else min(left_s, GREETING_S)

    def _check_silence(self) -> KernelError | None:
        if not self._owed():
            self._heard_s = time.monotonic()
            return None
        silent_s = time.monotonic() - self._heard_s
        if silent_s > GREETING_S and not self.welcome.done():
            pid = _stopped_peer(self._socket)
            if pid is not None:
                what = f"the kernel at {self.path} is stopped, and answers nothing"
                return KernelError(errno.ETIMEDOUT, f"{what}; let it go on: kill -CONT {pid}")
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

    def _explain(self, problem: Exception) -> KernelError:
        """What has gone wrong with reading or writing."""
        if isinstance(problem, OSError):
            return self._gone(problem.strerror or str(problem))
        if isinstance(problem, FrameError):
            what = f"{self.path} sends what is no frame: {problem.message}"
            return KernelError(errno.EPROTO, what)
        return KernelError(errno.EPROTO, f"{self.path} sends what cannot be read: {problem}")

    def _lose(self, why: KernelError) -> None:
        """It is over. Idempotent."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = why
            receivers, self._receivers = self._receivers, {}
            _open.discard(self)
            self._let_go()
            self._socket.close()
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


def _stopped_peer(connection: socket.socket) -> int | None:
    """The process that listens at the other end, if it is stopped by a signal or a debugger; None
    also where nothing can be known of it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid = int.from_bytes(credentials[:4], sys.byteorder, signed=True)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return pid if stat.rpartition(") ")[2][:1] in ("T", "t") else None


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
