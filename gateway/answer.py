"""An answer under way: the ASGI application that a handler returns.

    work       generates and writes
    client     waits for the client to go away, and then ends all of this
    pings      tells a client that waits that it is still heard, and where it stands in the queue

A client that takes nothing blocks `work` in a write; then nothing is read from the kernel, the pipe
of the process fills, and the kernel holds that process and no other.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import anyio
import structlog
from litestar.types import Receive, Scope, Send

from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.door import Gate, refuse
from tokenix.gateway.errors import ApiError, internal, unavailable
from tokenix.gateway.generation import Generation
from tokenix.gateway.protocol import Body, body_of
from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.alarm import Later

log = structlog.get_logger("tokenix.gateway")

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_LINE_ENDS: Final = (
    ("\u2028".encode(), rb"\u2028"), ("\u2029".encode(), rb"\u2029"), ("\x85".encode(), rb"\u0085"),
)  # fmt: skip
"""Characters that JSON may have in a string and that some clients end a line at."""


class Events:
    """The body of a streamed answer. It begins with its first byte, so that what fails before can
    still be an error of its own."""

    def __init__(self, send: Send, body: Body) -> None:
        """`send` is asked to begin the response, `body` to go on with it: tokens need not pass all
        layers that wait for its beginning."""
        self._send: Any = send
        self._body = body
        self._loop = asyncio.get_running_loop()
        self._free: asyncio.Future[None] | None = None
        """Done when the write that waits for the client is over."""
        self.started = False
        self.sent_s = time.monotonic()
        """When the last write was begun."""

    @property
    def writing(self) -> bool:
        """Whether a write waits for the client."""
        return self._free is not None

    async def write(self, data: bytes, more: bool = True) -> None:
        """Send some events; returns when the connection has room for more."""
        data = _on_one_line(data)
        while self._free is not None:
            await asyncio.shield(self._free)
        self._free = free = self._loop.create_future()
        self.sent_s = time.monotonic()
        try:
            if not self.started:
                self.started = True
                self._body.begin()
                start = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                await self._send(start)
            await self._body.send(data, more)
        finally:
            self._free = None
            free.set_result(None)

    def push(self, data: bytes) -> Later | None:
        """The same, done at once where nothing has to be waited for; or else what has to be."""
        if self.started and self._free is None and self._body.push(_on_one_line(data)):
            self.sent_s = time.monotonic()
            return None
        return partial(self.write, data)


def _on_one_line(data: bytes) -> bytes:
    if not data.isascii():
        for line_end, escaped in _LINE_ENDS:
            data = data.replace(line_end, escaped)
    return data


class Answer(ABC):
    """Base of all answers that are generated."""

    done_event = DONE
    """How a stream ends, also after an error."""

    def __init__(self, kernel: Syscalls, generation: Generation, config: GatewayConfig) -> None:
        self.kernel = kernel
        self.generation = generation
        self._config = config
        self._over = False
        """Whether all is generated, and only the rest of it to be sent."""

    @abstractmethod
    async def generate(self, send: Send) -> None:
        """Generate, and write the whole response. ApiError."""

    @abstractmethod
    async def stream(self, events: Events) -> None:
        """Generate, and write events up to the last but `done_event`. ApiError."""

    @property
    @abstractmethod
    def streams(self) -> bool:
        """Whether its client wants events."""

    def error_event(self, error: ApiError) -> bytes:
        """An error behind the first byte of a stream."""
        return error.event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        events = Events(send, body_of(scope))
        with state["traffic"].stream() if self.streams else contextlib.nullcontext():
            try:
                await self._serve(state["notes"], state["gate"], receive, send, events)
            finally:
                state["span"].note_generation(self.generation)
                if self.generation.first is not None:
                    state["notes"]["pid"] = self.generation.first

    async def _serve(
        self, notes: dict[str, Any], gate: Gate, receive: Receive, send: Send, events: Events
    ) -> None:
        stopped = False
        async with anyio.create_task_group() as group:
            work = anyio.CancelScope()

            def stop() -> None:
                nonlocal stopped
                stopped = True
                work.cancel()

            group.start_soon(self._client, receive, group.cancel_scope, notes)
            if self.streams:
                group.start_soon(self._pings, events, group.cancel_scope, notes)
            error: ApiError | None = None
            with gate.stoppable(stop), work:
                error = await self._work(events, send)
            self._over = True
            if stopped:
                error = unavailable("the server has shut down; try again", 5.0)
            if error is not None:
                notes["error"] = error.info.code or error.info.message
                await self._fail(error, events, send)
            group.cancel_scope.cancel()

    async def _work(self, events: Events, send: Send) -> ApiError | None:
        try:
            if self.streams:
                await self.stream(events)
                self._over = True
                await events.write(self.done_event, more=False)
            else:
                await self.generate(send)
        except ApiError as error:
            return error
        except Exception:
            log.exception("generation failed")
            return internal()
        return None

    async def _fail(self, error: ApiError, events: Events, send: Send) -> None:
        if not events.started:
            await refuse(send, error)
        else:
            await events.write(self.error_event(error) + self.done_event, more=False)

    async def _client(
        self, receive: Receive, whole: anyio.CancelScope, notes: dict[str, Any]
    ) -> None:
        message: Any = {"type": "http.request"}
        while message["type"] == "http.request":
            message = await receive()
        if not self._over:
            notes["aborted"] = True
            whole.cancel()

    async def _pings(self, events: Events, whole: anyio.CancelScope, notes: dict[str, Any]) -> None:
        config, position = self._config, None
        while True:
            idle_s = time.monotonic() - events.sent_s
            wait_s = config.ping_s - idle_s if not events.writing else config.ping_s
            if not self.generation.begun:
                wait_s = min(wait_s, config.queue_s)
            await anyio.sleep(max(0.01, wait_s))
            idle_s = time.monotonic() - events.sent_s
            if events.writing:
                if idle_s > config.limits.stalled_s:
                    notes["stalled"] = True
                    whole.cancel()
                continue
            said = PING if idle_s >= config.ping_s else b""
            if not self.generation.begun:
                before = await self.generation.find_position()
                if before is not None and before != position:
                    position = before
                    said = b": queued %d ahead\n\n" % before
            with anyio.move_on_after(config.limits.stalled_s):  # and then look who takes nothing
                if said:
                    await events.write(said)
                continue
            if time.monotonic() - events.sent_s >= config.limits.stalled_s:
                notes["stalled"] = True
                whole.cancel()


async def respond(send: Any, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """A whole response of JSON."""
    length = (b"content-length", str(len(body)).encode())
    start = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": 200, "headers": start})
    await send({"type": "http.response.body", "body": body, "more_body": False})
