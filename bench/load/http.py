"""A small HTTP/1.1 client for streams: what comes is handed on at once, with the time it came.

    Pool.post --> Connection (a kept one, or a new one) --> Exchange.piece(data, time_s) ...

One exchange at a time on a connection. There is a raw protocol under it rather than a library's
streams, as the client is not to be what is measured: a piece costs one call, no task is woken.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from tokenix.bench.load import stamped
from tokenix.bench.load.stamped import Stamped

MOST_ERROR_BYTES = 16_384
"""Kept of a body that is no stream."""


class Broken(Exception):
    """The connection ended before the answer did."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    piece: Callable[[bytes, float], None]
    """Called with each part of the body of a 200, and when it came."""
    ended: "asyncio.Future[None]"
    status: int = 0
    sent_s: float = 0.0
    """When the request was written."""
    body: bytearray = field(default_factory=bytearray)
    """Of an answer that is not 200."""
    connection: "Connection | None" = None

    def stop_reading(self) -> None:
        """What the server sends stays in its buffers until `go_on_reading`."""
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.pause_reading()

    def go_on_reading(self) -> None:
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.resume_reading()

    def hang_up(self) -> None:
        """End the connection, and the exchange with it."""
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.abort()
        if not self.ended.done():
            self.ended.set_result(None)


class Connection(asyncio.Protocol):
    """A connection, kept between exchanges. Under TLS it is asyncio's, which tells no times: then
    what comes has come when it is read."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | Stamped | None = None
        """None when it is closed."""
        self.exchange: Exchange | None = None
        self.answered = False
        """Something has come for the present exchange."""
        self._to_the_end = True
        """The body of the present answer ends with the connection (RFC 9112, 6.3)."""
        self._time_s = 0.0
        self._parser = httptools.HttpResponseParser(self)

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Broken if the connection has ended meanwhile."""
        assert self.exchange is None, "one exchange at a time"
        if self.transport is None:
            raise Broken("the server closed the connection at once")
        self._parser = httptools.HttpResponseParser(self)
        self.exchange, self.answered, self._to_the_end = exchange, False, True
        exchange.connection = self
        exchange.sent_s = time.monotonic()
        self.transport.write(request)

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        self.received(data, time.monotonic())

    def received(self, data: bytes, time_s: float) -> None:
        self._time_s = time_s
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as why:
            self._end(Broken(f"the answer is no HTTP: {why}"))
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._to_the_end and exc is None and self.exchange and self.exchange.status:
            self._end(None)
            return
        reason = f": {exc}" if exc else ""
        self._end(Broken(f"the server closed the connection before the answer had ended{reason}"))

    # ---- the parser's side ----

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._to_the_end = False

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if exchange.status == 200:
            exchange.piece(body, self._time_s)
        elif len(exchange.body) < MOST_ERROR_BYTES:
            exchange.body += body

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive() and self.transport is not None:
            self.transport.close()
            self.transport = None
        self._end(None)

    def _end(self, problem: Broken | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None or exchange.ended.done():
            return
        if problem is None:
            exchange.ended.set_result(None)
        else:
            exchange.ended.set_exception(problem)


class Pool:
    """Connections to one server."""

    def __init__(self, url: str) -> None:
        """With or without the /v1 that paths begin with. ValueError if that is no http(s) URL."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: not an http:// or https:// address of a server")
        if "@" in parts.netloc:
            raise ValueError("an address with a password in it: a key is given with --api-key")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._name = parts.netloc
        self._idle: list[Connection] = []

    def head(self, path: str, headers: dict[str, str], body_bytes: int) -> bytes:
        """Everything before a POST's body."""
        lines = [
            f"POST {self._path}{path} HTTP/1.1", f"Host: {self._name}",
            "Content-Type: application/json", f"Content-Length: {body_bytes}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]  # fmt: skip
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def get(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of a GET. OSError, Broken."""
        lines = [
            f"GET {self._path}{path} HTTP/1.1", f"Host: {self._name}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]  # fmt: skip
        body = bytearray()
        exchange = await self.run(
            ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), lambda data, _: body.extend(data)
        )
        return exchange.status, bytes(body or exchange.body)

    async def run(
        self, request: bytes, piece: Callable[[bytes, float], None],
        begun: Callable[[Exchange], None] | None = None,
    ) -> Exchange:  # fmt: skip
        """Send a request and wait for the end of its answer. `begun` is given the exchange when
        the request is sent. OSError if nobody listens, Broken if the answer breaks off."""
        while True:
            kept = self._take_idle()
            connection = kept or await self._connect()
            exchange = Exchange(piece, asyncio.get_running_loop().create_future())
            connection.send(exchange, request)
            if begun is not None:
                begun(exchange)
            try:
                await exchange.ended
            except Broken:
                # A kept connection that the server had given up meanwhile: nothing was served.
                if kept is not None and not connection.answered:
                    continue
                raise
            except asyncio.CancelledError:
                exchange.hang_up()
                raise
            if connection.transport is not None and not connection.transport.is_closing():
                self._idle.append(connection)
            return exchange

    def close(self) -> None:
        for connection in self._idle:
            if connection.transport is not None:
                connection.transport.close()
        self._idle.clear()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> Connection:
        """OSError says who cannot be reached, and why."""
        try:
            if self._tls is None:
                connection = Connection()
                connection.transport = Stamped(
                    await stamped.connect(self._host, self._port), connection
                )
                return connection
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection, self._host, self._port, ssl=self._tls
            )
            return connection
        except OSError as why:
            message = f"no connection to {self._host} port {self._port}: {_reason(why)}"
            number = why.errno if why.errno and why.errno > 0 else errno.EHOSTUNREACH
            raise ConnectionError(number, message) from None


def _reason(why: OSError) -> str:
    """In words; asyncio's own name the call that failed."""
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"{why.verify_message} (SSL_CERT_FILE=FILE names certificates to trust)"
    if isinstance(why, ssl.SSLError):
        return f"no TLS: {why.reason or why}"
    if isinstance(why, socket.gaierror) or not why.errno:
        return why.strerror or str(why)
    return os.strerror(why.errno)
