"""The HTTP connection: what must be said of it before there is a request.

A connection that sends its headers too slowly, too long or not in HTTP is answered in the same form
as everything else, and closed.
"""

import asyncio
import socket
from typing import Any, ClassVar, Final

import httptools
from litestar.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tokenix.gateway.config import Limits
from tokenix.gateway.errors import ApiError, invalid

UNSENT_BYTES: Final = 64 << 10
"""Of a stream that its client has not taken, kept here and again by the system. More would only
hide from the kernel how far its reader is."""


PIPELINED: Final = 16
"""Requests that may wait behind the one that is being answered before nothing more is read. Where
nothing is read, nobody notices that the client hangs up."""

BODY: Final = "tokenix.body"
"""An extension of the scope (ASGI's "extensions"): the `Body` of its response."""


class Body:
    """The body of one response that comes in pieces, past the layers that only mind its start."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def begin(self) -> None:
        """Before the response begins: in chunks, or for a client of HTTP/1.0, which knows none, up
        to the end of the connection."""
        if self._cycle.scope["http_version"] == "1.0":
            self._cycle.chunked_encoding = False

    def push(self, piece: bytes) -> bool:
        """Send a piece at once, as `send` does; False, and nothing is sent, if the client has not
        taken enough of what was sent before."""
        cycle = self._cycle
        if cycle.flow.write_paused:
            return False
        if not cycle.disconnected:
            assert cycle.response_started and not cycle.response_complete, "begun, and not ended"
            cycle.transport.write(
                b"%x\r\n%b\r\n" % (len(piece), piece) if cycle.chunked_encoding else piece
            )
        return True

    async def send(self, piece: bytes, more: bool) -> None:
        """Send a piece; returns when the client has taken enough of what was sent before."""
        if not self._cycle.chunked_encoding:
            self._cycle.expected_content_length = len(piece)  # whatever comes is what was expected
        await self._cycle.send({"type": "http.response.body", "body": piece, "more_body": more})


def body_of(scope: Scope) -> Body:
    """Of the response to a request that this server has brought."""
    body = (scope.get("extensions") or {})[BODY]
    assert isinstance(body, Body)
    return body


class Connection(HttpToolsProtocol):
    """One connection of a client. `of` makes the class with its limits."""

    limits: ClassVar[Limits] = Limits()

    @classmethod
    def of(cls, limits: Limits) -> type["Connection"]:
        return type("LimitedConnection", (cls,), {"limits": limits})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_bytes = 0
        self._reading = True
        """Whether the headers of a request are awaited or being read."""
        self._refused = False
        self._plain_head = b""
        """Of a request that asks for an upgrade: its head without that."""
        self._late: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None
        """The request that is being answered, or was last; `cycle` is the one that came last."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES
        )
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._cut_off()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reading:
            self._header_bytes += len(data)
            if self._late is None:
                self._watch()  # the first bytes of a further request
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._reading:
            self._check_size(self._header_bytes)

    def _parse(self, data: bytes) -> None:
        """As uvicorn does, but for a request that asks for an upgrade, as clients of HTTP/2 do that
        do not know the server: the parser takes its body for another protocol. No upgrade is made,
        and the request is read as if it had not asked."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._plain_head + data[upgrade.args[0] :]
                self._plain_head = b""
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as before
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._plain_head = _without_upgrade(
                self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
            )
            return
        lines = sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._check_size(len(self.url) + lines)
        self._check_host()
        self._reading = False
        self._unwatch()
        if not self._refused:
            super().on_headers_complete()
            extensions: Any = {BODY: Body(self.cycle)}
            self.scope["extensions"] = extensions
            if len(self.pipeline) <= PIPELINED:
                self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _cut_off(self) -> None:
        """Whoever answers a request is told that its client is gone. Uvicorn only knows of the
        request that came last, and there may be others before it."""
        self.pipeline.clear()
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused and not self._plain_head:
            super().on_message_complete()
            self._reading, self._header_bytes = True, 0

    def _check_size(self, header_bytes: int) -> None:
        limit = self.limits.header_bytes
        if header_bytes > limit and not self._refused:
            self._refuse(ApiError(
                431, f"the headers are larger than {limit} bytes", code="headers_too_large",
                close=True,
            ))  # fmt: skip

    def _check_host(self) -> None:
        """Of HTTP/1.1 each request says once whom it is for (RFC 9112, 3.2)."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if self.parser.get_http_version() == "1.1" and hosts != 1 and not self._refused:
            what = "two Host headers" if hosts else "no Host header"
            self._refuse(invalid(f"the request has {what}; send one", code="invalid_http"))

    def send_400_response(self, msg: str) -> None:
        self._refuse(invalid("this is not an HTTP request", code="invalid_http"))

    def _watch(self) -> None:
        self._late = self.loop.call_later(self.limits.header_s, self._time_out)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _time_out(self) -> None:
        self._late = None
        if self._reading and not self._header_bytes:
            self.transport.close()  # it has never said anything
        elif self._reading:
            self._refuse(ApiError(
                408, f"the headers did not come within {self.limits.header_s:g} s",
                code="request_timeout", close=True,
            ))  # fmt: skip

    def _refuse(self, error: ApiError) -> None:
        """Answer without a request, or instead of one whose body is at fault, and hang up. While an
        earlier request of the connection is being answered there is no place for this: it is only
        hung up."""
        self._unwatch()
        self._reading, self._refused = False, True
        cycle = self._answered
        waits = cycle is None or cycle.response_complete
        if cycle is not None and cycle.more_body and not cycle.response_started:
            waits = True  # it is the one at fault
        self._cut_off()
        if waits:
            body = error.body
            lines = [STATUS_LINE[error.status]]
            headers = [*error.headers, (b"content-length", str(len(body)).encode())]
            if not error.close:
                headers.append((b"connection", b"close"))
            lines += [name + b": " + value + b"\r\n" for name, value in headers]
            self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.transport.close()


def _without_upgrade(
    method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> bytes:
    """The head of a request that does not ask for an upgrade (RFC 9110, 7.8: a server may ignore
    that), but is the same otherwise."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = (option.strip() for option in value.split(b","))
            kept = [o for o in options if o.lower() not in (b"upgrade", b"http2-settings")]
            lines.append(b"connection: " + b", ".join(kept))
        elif name not in (b"upgrade", b"http2-settings"):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
