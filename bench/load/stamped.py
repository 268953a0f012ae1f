"""A TCP connection that tells when what it brings had come to this machine.

    packet comes --> the system notes the time       ...       this process reads it

What the process did in between, or that it got no processor, is no delay of the server's and is not
taken for one. (SO_TIMESTAMPING, Documentation/networking/timestamping.rst of Linux: with what is
read comes the time at which its last byte came. Where a system tells none, it is that of reading.)
"""

import asyncio
import contextlib
import socket
import struct
import time
from typing import Final, Protocol

RECEIVE_BYTES: Final = 1 << 16
SO_TIMESTAMPING: Final = 37
"""Of asm-generic/socket.h; Python does not name it. Also the type of the message with the times."""
NOTE_AND_TELL: Final = 1 << 3 | 1 << 4
"""SOF_TIMESTAMPING_RX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE."""
TOGETHER_S: Final = 100e-6
"""Two clocks that are read within it are read at one moment."""
MOST_LOOKS: Final = 10
TIMES: Final = struct.Struct("@6l")
"""Three times of seconds and nanoseconds, of which the first is the system's."""


class Receiver(Protocol):
    """What a connection is read for."""

    def received(self, data: bytes, time_s: float) -> None:
        """Some bytes, and when the last of them came, by the monotonic clock."""
        ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class Stamped:
    """A connection on the running event loop, with what of an asyncio.Transport its users need."""

    def __init__(self, connected: socket.socket, receiver: Receiver) -> None:
        """Owns the socket, which does not block."""
        self._socket = connected
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self._paused = self._closing = False
        self._resumed_s = 0.0
        """Who had stopped to read gets all that came meanwhile now, and not before."""
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, NOTE_AND_TELL)
        self._loop.add_reader(connected.fileno(), self._read)

    def write(self, data: bytes) -> None:
        """Sent as the other side takes it; behind a loss it goes nowhere."""
        if self._closing:
            return
        begun = bool(self._unsent)
        self._unsent += data
        if not begun:
            self._send()
            if self._unsent and not self._closing:
                self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def pause_reading(self) -> None:
        if not self._paused and not self._closing:
            self._paused = True
            self._loop.remove_reader(self._socket.fileno())

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused, self._resumed_s = False, time.monotonic()
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """At once; `connection_lost` is called a moment later."""
        self._end(None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def _read(self) -> None:
        try:
            data, notes, _, _ = self._socket.recvmsg(RECEIVE_BYTES, socket.CMSG_SPACE(TIMES.size))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._end(problem)
            return
        if data:
            self._receiver.received(data, max(self._resumed_s, _time_of(notes)))
        else:
            self._end(None)

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._end(problem)

    def _send_rest(self) -> None:
        self._send()
        if not self._unsent and not self._closing:
            self._loop.remove_writer(self._socket.fileno())

    def _end(self, problem: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._loop.call_soon(self._receiver.connection_lost, problem)


def _time_of(notes: list[tuple[int, int, bytes]]) -> float:
    """When the system got what was read with these messages, on the monotonic clock; its own one
    may be set, so that only how long ago it was is taken from it."""
    now_s, now_ns = _both_clocks()
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) >= TIMES.size:
            seconds, nanoseconds, *_ = TIMES.unpack_from(data)
            ago_ns: int = now_ns - seconds * 1_000_000_000 - nanoseconds
            return now_s - max(0, ago_ns) / 1e9
    return now_s


def _both_clocks() -> tuple[float, int]:
    """The monotonic clock and the system's at one moment: who is kept from the processor between
    the two looks again."""
    for _ in range(MOST_LOOKS):
        now_s, now_ns = time.monotonic(), time.time_ns()
        if time.monotonic() - now_s < TOGETHER_S:
            break
    return now_s, now_ns


async def connect(host: str, port: int) -> socket.socket:
    """A connected socket that does not block. OSError: nobody listens, or there is no such host."""
    loop = asyncio.get_running_loop()
    problem: OSError | None = None
    for family, kind, number, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connecting = socket.socket(family, kind, number)
        try:
            connecting.setblocking(False)
            await loop.sock_connect(connecting, address)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connecting
        except OSError as why:
            connecting.close()
            problem = problem or why
        except BaseException:
            connecting.close()
            raise
    assert problem is not None, "a name has an address or is none"
    raise problem
