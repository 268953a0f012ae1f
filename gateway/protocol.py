"""The HTTP connection: what must be said of it before there is a request.

A connection that sends its headers too slowly, too long or not in HTTP is answered in the same form
as everything else, and closed.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tokenix.gateway.config import Limits
from tokenix.gateway.errors import ApiError, invalid


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
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reading:
            self._header_bytes += len(data)
            if self._late is None:
                self._watch()  # the first bytes of a further request
        super().data_received(data)
        if self._reading and self._header_bytes > self.limits.header_bytes:
            self._refuse(ApiError(
                431, f"the headers are larger than {self.limits.header_bytes} bytes",
                code="headers_too_large", close=True,
            ))  # fmt: skip

    def on_headers_complete(self) -> None:
        self._reading = False
        self._unwatch()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._reading, self._header_bytes = True, 0

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
        """Answer without a request, and hang up. While an earlier request of the connection is
        being answered there is no place for this: it is only hung up."""
        self._unwatch()
        self._reading = False
        if self.cycle is None or self.cycle.response_complete:
            body = error.body
            lines = [STATUS_LINE[error.status]]
            headers = [*error.headers, (b"content-length", str(len(body)).encode())]
            if not error.close:
                headers.append((b"connection", b"close"))
            lines += [name + b": " + value + b"\r\n" for name, value in headers]
            self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.transport.close()
