"""A gateway in front of a kernel in this process, and a client that sees every byte."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.server import Server
from tokenix.kernel.calls import Principal
from tokenix.syscalls.aio import Syscalls as AsyncSyscalls
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.port import ROOT, LocalPort

PATIENCE_S = 60.0
MODEL = "smollm2"
HELLO = [{"role": "user", "content": "Say hello."}]


class Gateway:
    """A gateway that listens on a port of its own."""

    reachable = True
    """Whether it finds the kernel."""

    def __init__(self, k: Syscalls, config: GatewayConfig) -> None:
        self.k = k
        self.lost = False
        """Whether the kernel it has found is gone again."""
        self.asked: list[Any] = []
        """Every call that the kernel got from it."""
        self.server = Server(config, self._connect)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True
        )

    async def _connect(self) -> AsyncSyscalls:
        if not self.reachable:
            raise ConnectionRefusedError(111, "nobody listens there")
        return AsyncSyscalls(Losable(self))

    @classmethod
    def over(cls, k: Syscalls, **options: Any) -> "Gateway":
        return cls(k, msgspec.convert({"port": 0, **options}, GatewayConfig))

    def start(self) -> None:
        self.thread.start()
        until(lambda: self.server.started)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE_S)
        self.listener.close()

    def get(self, path: str, **headers: str) -> "Wire":
        return Wire(self.port).send("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> "Wire":
        return Wire(self.port).send("POST", path, body, **headers)

    def chat(self, room_bytes: int = 0, **fields: Any) -> "Wire":
        """A chat request, sent."""
        body = {"model": MODEL, "messages": HELLO, "temperature": 0, **fields}
        return Wire(self.port, room_bytes).send("POST", "/v1/chat/completions", body)


class Losable(LocalPort):
    """A way to the kernel that may be lost; its end is not the kernel's."""

    def __init__(self, gateway: Gateway, principal: Principal = ROOT) -> None:
        super().__init__(gateway.k.machine, principal)
        self._gateway = gateway

    def submit(self, request: Any) -> Any:
        if self._gateway.lost:
            raise ConnectionResetError(104, "the kernel has hung up")
        self._gateway.asked.append(request)
        return super().submit(request)

    def as_tenant(self, tenant: str) -> "Losable":
        return Losable(self._gateway, Principal(tenant))

    def close(self) -> None:
        pass


@contextlib.contextmanager
def open_gateway(k: Syscalls, **options: Any) -> Iterator[Gateway]:
    gateway = Gateway.over(k, **options)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.close()


class Wire:
    """One HTTP/1.1 connection, by hand."""

    def __init__(self, port: int, room_bytes: int = 0) -> None:
        """`room_bytes`: how much may be on the way to it; 0: as usual."""
        self.socket = socket.socket()
        if room_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", port))
        self.read = b""
        self.status = 0
        self.headers: dict[str, str] = {}

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> "Wire":
        data = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        lines = {"Host": "localhost", "Content-Type": "application/json"}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            lines.setdefault("Content-Length", str(len(data)))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        return self

    def head(self) -> "Wire":
        """Read the status line and the headers."""
        while b"\r\n\r\n" not in self.read:
            self._more()
        head, _, self.read = self.read.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines)
        return self

    def chunk(self) -> bytes:
        """The next chunk of a chunked body; b"" is the end of it."""
        while b"\r\n" not in self.read:
            self._more()
        size, _, self.read = self.read.partition(b"\r\n")
        length = int(size, 16)
        while len(self.read) < length + 2:
            self._more()
        data, self.read = self.read[:length], self.read[length + 2 :]
        return data

    def body(self) -> bytes:
        """All of the body."""
        if not self.status:
            self.head()
        if "content-length" in self.headers:
            length = int(self.headers["content-length"])
            while len(self.read) < length:
                self._more()
            data, self.read = self.read[:length], self.read[length:]
            return data
        data = b""
        while chunk := self.chunk():
            data += chunk
        return data

    def json(self) -> Any:
        return json.loads(self.body())

    def events(self) -> list[Any]:
        """The data of all events of a stream, decoded; "[DONE]" as it is."""
        return [
            text if text == "[DONE]" else json.loads(text)
            for text in (
                line.removeprefix("data: ")
                for line in self.body().decode().split("\n\n")
                if line.startswith("data: ")
            )
        ]

    def error(self) -> dict[str, Any]:
        body = self.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return dict(body["error"])

    def closed(self) -> bool:
        """Whether the server hangs up, having said nothing more."""
        return not self.read and self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, f"the server hung up after {self.read!r}"
        self.read += data


def until(true: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
    """Wait for something to become true; returns it."""
    late_s = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < late_s, "it did not become true"
        time.sleep(0.005)
    return found


def rest(k: Syscalls) -> None:
    """Everything is given back: no process, no zombie, all pages free or cached."""
    until(lambda: not k.ps(), 20.0)
    until(lambda: count_used(k) == 0, 20.0)


def count_used(k: Syscalls) -> int:
    """Frames that somebody holds, or that are on their way."""
    stats = k.vmstat()
    return int(stats["frames.total"] - stats["frames.free"] - stats["frames.cached"])
