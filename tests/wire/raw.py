"""A client that speaks the ABI by hand, well or badly."""

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from msgspec import msgpack

from tokenix.kernel.calls import Asks
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.framing import Frames

PATIENCE_S = 60.0


class Raw:
    """Blocking. A context manager."""

    def __init__(self, path: str, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self._frames = Frames(1 << 30)
        self._came: deque[Any] = deque()
        self._number = 0
        if greet:
            self.send(abi.Hello(abi.VERSION, "raw"))
            assert isinstance(self.receive(), abi.Welcome)

    def send(self, *messages: Any) -> None:
        self.socket.sendall(b"".join(framed(msgpack.encode(message)) for message in messages))

    def receive(self) -> Any:
        """The next message but pings; None: the connection is closed."""
        while not self._came:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._came.extend(map(abi.server_decoder.decode, self._frames.feed(data)))
        message = self._came.popleft()
        return self.receive() if isinstance(message, abi.Ping) else message

    def ask(self, request: Asks[Any], tenant: str | None = None) -> int:
        """Send a call; its number."""
        self._number += 1
        self.send(abi.Ask(self._number, request, tenant))
        return self._number

    def call(self, request: Asks[Any], tenant: str | None = None) -> Any:
        """The decoded answer, or the Fail; whatever comes before it is dropped."""
        number = self.ask(request, tenant)
        while True:
            message = self.receive()
            assert message is not None, "the connection was closed"
            if getattr(message, "id", None) != number:
                continue
            if isinstance(message, abi.Fail):
                return message
            return abi.answer_decoder(type(request)).decode(message.value)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


def until(condition: Callable[[], bool], what: str = "it has not come") -> None:
    """Wait for something that is bound to come."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.002)
