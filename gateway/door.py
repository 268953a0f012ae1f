"""The door: everything that is asked of a request before the application sees it.

    request id -> key -> draining, too many? -> media type -> size and time of the body -> inside

It stands in front of the whole application, so that a path that does not exist, a method that is
not allowed and a body that never ends are answered in the same way as everything else.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog
from litestar.types import ASGIApp, Message, Receive, Send

from tokenix.gateway.config import Limits
from tokenix.gateway.errors import ApiError, internal, shutting_down
from tokenix.gateway.keys import Caller, KeyRing
from tokenix.gateway.spans import Spans
from tokenix.gateway.traffic import Traffic

log = structlog.get_logger("tokenix.gateway")

_CHARSET = re.compile(rb"""charset\s*=\s*"?([^\s;"]*)""", re.IGNORECASE)
SKIPPED_BYTES: Final = 64 << 20
SKIPPED_S: Final = 5.0
"""How much of a body that is too large is taken, and for how long, before that is answered: who
sends all before it reads would see a reset connection and no answer."""

_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)


class Gate:
    """What is under way, and whether more may come. The server closes it, the door asks it."""

    def __init__(self, most: int) -> None:
        self.draining = False
        self._most = most
        self._inside = 0
        self._stops: set[Callable[[], None]] = set()
        self.idle = asyncio.Event()
        """Nobody is inside."""
        self.idle.set()

    def enter(self) -> None:
        """ApiError 503 while draining, 429 when there are too many."""
        if self.draining:
            raise shutting_down()
        if self._inside >= self._most:
            raise ApiError(
                429, f"{self._most} requests are under way, which is the limit; try again",
                "rate_limit_error", code="rate_limit_exceeded", retry_after_s=1.0,
            )  # fmt: skip
        self._inside += 1
        self.idle.clear()

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self.idle.set()

    @contextlib.contextmanager
    def stoppable(self, stop: Callable[[], None]) -> Iterator[None]:
        """Inside, `stop` is called when the time for what is under way is over."""
        self._stops.add(stop)
        try:
            yield
        finally:
            self._stops.discard(stop)

    def stop_all(self) -> None:
        """The time for what was under way is over."""
        for stop in tuple(self._stops):
            stop()


class Door:
    """An ASGI application around another one."""

    def __init__(
        self, app: ASGIApp, limits: Limits, keys: KeyRing, gate: Gate, traffic: Traffic,
        spans: Spans,
    ) -> None:  # fmt: skip
        self._app = app
        self._limits = limits
        self._keys = keys
        self._gate = gate
        self._traffic = traffic
        self._spans = spans

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003, "reason": "HTTP only"})

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)
        began_s, status = time.monotonic(), 0
        notes: dict[str, Any] = {}
        span = self._spans.begin(scope["path"], headers, request_id)
        scope["state"] |= {
            "request_id": request_id, "notes": notes, "gate": self._gate, "traffic": self._traffic,
            "span": span,
        }  # fmt: skip

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                mine = [(b"x-request-id", request_id.encode())]
                message = {**message, "headers": [*message["headers"], *mine]}
            await send(message)

        inside = False
        try:
            health = scope["path"].startswith("/health")
            if not health:
                scope["state"]["caller"] = self._admit(headers, scope["path"])
                self._gate.enter()
                inside = True
            if scope["method"] == "POST":
                self._check_media(headers)
                receive = await self._whole_body(headers, receive)
            if scope["method"] == "HEAD":  # the server leaves out the body
                scope = {**scope, "method": "GET"}
            await self._app(scope, receive, reply)
        except ApiError as error:
            if status == 0:
                await refuse(reply, error)
        except Exception:
            log.exception("request failed", request_id=request_id)
            if status == 0:
                await refuse(reply, internal())
        finally:
            if inside:
                self._gate.leave()
            span.end(status, notes)
            self._traffic.note_request(scope["path"], scope["method"], status)
            if "aborted" in notes:
                self._traffic.note_disconnect(scope["path"])
            log.info(
                "request", request_id=request_id, method=scope["method"], path=scope["path"],
                status=status, seconds=round(time.monotonic() - began_s, 4), **notes,
            )  # fmt: skip

    def _admit(self, headers: dict[bytes, bytes], path: str) -> Caller:
        given = headers.get(b"authorization", b"")
        caller = self._keys.find(given)
        if caller is None:
            what = (
                "there is no such API key; send one" if given else "an API key is needed; send it"
            )
            raise ApiError(401, f"{what} as 'Authorization: Bearer KEY'", code="invalid_api_key")
        metrics = path == "/metrics"
        if (caller.role == "metrics") != metrics and caller.role != "root" and self._keys.closed:
            what = "read metrics" if metrics else "do more than read metrics"
            raise ApiError(
                403, f"this API key may not {what}", "permission_error", code="permission_denied"
            )
        return caller

    @staticmethod
    def _check_media(headers: dict[bytes, bytes]) -> None:
        media, _, options = headers.get(b"content-type", b"application/json").partition(b";")
        charset = _CHARSET.search(options)
        if charset is not None and charset[1].lower() not in (b"utf-8", b"utf8"):
            raise ApiError(
                415, "the body must be UTF-8: leave out charset", code="unsupported_media_type"
            )
        if media.strip().lower() != b"application/json":
            raise ApiError(
                415, "the body must be JSON: send 'Content-Type: application/json'",
                code="unsupported_media_type",
            )  # fmt: skip
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ApiError(415, "the body must not be compressed", code="unsupported_media_type")

    async def _whole_body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """The body, read within its bounds; then what the connection says after it."""
        length = int(headers.get(b"content-length", b"0"))
        if length > SKIPPED_BYTES or (length > self._limits.body_bytes and b"expect" in headers):
            raise self._too_large()
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._limits.body_s):
                while more and max(length, len(body)) <= self._limits.body_bytes:
                    message: Any = await receive()
                    if message["type"] != "http.request":
                        raise ApiError(400, "the connection was closed", close=True)
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not come within {self._limits.body_s:g} s", close=True,
                code="request_timeout",
            ) from None  # fmt: skip
        if max(length, len(body)) > self._limits.body_bytes:
            if more:
                await self._skip(receive)
            raise self._too_large()
        whole: Any = {"type": "http.request", "body": bytes(body), "more_body": False}
        read = False

        async def after() -> Any:
            nonlocal read
            if read:
                return await receive()
            read = True
            return whole

        return after

    async def _skip(self, receive: Receive) -> None:
        """Take what else comes of a body, within bounds."""
        taken, more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(SKIPPED_S, self._limits.body_s)):
                while more and taken < SKIPPED_BYTES:
                    message: Any = await receive()
                    taken += len(message.get("body", b""))
                    more = message.get("more_body", False)

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._limits.body_bytes} bytes",
            code="request_too_large", close=True,
        )  # fmt: skip


async def refuse(send: Any, error: ApiError) -> None:
    """A whole response that is an error."""
    body = error.body
    headers = [*error.headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
