"""The server: a kernel's system calls on a Unix socket.

    with serve(k.port, "/run/tokenix.sock"):
        ...

One thread with an event loop of its own (uvloop where it is installed), beside the kernel's. Text
becomes tokens in a small pool. What a turn of the loop brings for a client is written at once.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import select
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from tokenix.kernel.calls import Principal
from tokenix.syscalls.port import LocalPort, Port
from tokenix.syscalls.wire.bridge import Bridge
from tokenix.syscalls.wire.connection import Connection
from tokenix.syscalls.wire.limits import WireLimits
from tokenix.syscalls.wire.listener import Listener
from tokenix.syscalls.wire.paths import socket_path

SWEEP_S = 1.0
"""How often overdue things are looked for, at the most."""

SPARE_DESCRIPTORS = 64
"""Of this process, that are not for connections."""

CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""

Recognise = Callable[[int], Principal]
"""From the uid of a peer to its principal."""

log = logging.getLogger(__name__)


def principal_of(uid: int) -> Principal:
    """Root for uid 0 and the daemon's own; any other uid is a tenant."""
    if uid in (0, os.geteuid()):
        return Principal(root=True)
    return Principal(f"uid-{uid}")


@dataclass(frozen=True, slots=True)
class WireStatistics:
    """The border at a moment."""

    connections: int
    calls: int
    """In flight, flows included."""
    flows: int
    processes: int
    """That live as long as a connection."""
    unsent_bytes: int
    blocked: int
    """Connections that are over a budget."""


def serve(
    port: Port,
    path: "str | os.PathLike[str] | None" = None,
    limits: WireLimits | None = None,
    *,
    mode: int = 0o600,
    name: str = "tokenix",
    recognise: Recognise = principal_of,
) -> "Server":
    """Listen at `path` (`paths.socket_path`) for the kernel behind `port`. OSError as `Listener`.
    `name` is what clients are told; `mode` is that of the socket file."""
    assert isinstance(port, LocalPort), "the kernel runs in this process"
    listener = Listener(socket_path(path), mode)
    try:
        return Server(port, listener, limits or WireLimits(), name, recognise)
    except BaseException:
        listener.close()
        raise


class Server:
    """Serves until `close`; a context manager. The machine is its caller's and stays open."""

    def __init__(
        self,
        port: LocalPort,
        listener: Listener,
        limits: WireLimits,
        name: str,
        recognise: Recognise,
    ) -> None:
        self.limits = msgspec.structs.replace(
            limits, connections=min(limits.connections, _most_connections())
        )
        self.name = name
        self.pid = os.getpid()
        self.draining = ""
        self.held_bytes = 0
        self._listener = listener
        self._recognise = recognise
        self._loop = _new_loop()
        self.bridge = Bridge(port, self._loop, self._flush)
        self._connections: dict[Connection, None] = {}
        self._dirty: dict[Connection, None] = {}
        self._lagging: dict[Connection, None] = {}
        self._hangups = select.epoll()
        self._watched: dict[int, Connection] = {}
        self._flush_due = False
        self._closed = False
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="tokenix-socket", daemon=True)
        self._thread.start()
        self._ready.result()

    @property
    def path(self) -> str:
        return os.fspath(self._listener.path)

    def drain(self, why: str) -> None:
        """Take no new processes; all else goes on. `why` is what callers are told, with
        ESHUTDOWN."""
        self.draining = why

    def statistics(self) -> WireStatistics:
        """From any thread but the server's, before it is closed."""
        return asyncio.run_coroutine_threadsafe(self._count(), self._loop).result()

    def close(self) -> None:
        """Tell clients, close all connections, and end their processes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):  # it has failed, and its loop is closed
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what connections need ----

    def now_s(self) -> float:
        return self._loop.time()

    def principal(self, descriptor: int) -> Principal:
        with socket.socket(fileno=os.dup(descriptor)) as peer:
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return self._recognise(CREDENTIALS.unpack(raw)[1])

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more. It is swept and forgotten either way."""
        self._connections[connection] = None
        return len(self._connections) <= self.limits.connections

    def forget(self, connection: Connection) -> None:
        self.watch_hangup(connection, False)
        for table in (self._connections, self._dirty, self._lagging):
            table.pop(connection, None)

    def has_output(self, connection: Connection) -> None:
        self._dirty[connection] = None
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def lags(self, connection: Connection, lags: bool) -> None:
        if lags:
            self._lagging[connection] = None
        else:
            self._lagging.pop(connection, None)

    def watch_hangup(self, connection: Connection, watch: bool) -> None:
        """While nothing is read from a client, its end would go unseen."""
        descriptor = connection.descriptor
        if watch:
            self._hangups.register(descriptor, select.EPOLLRDHUP | select.EPOLLHUP)
            self._watched[descriptor] = connection
        elif self._watched.get(descriptor) is connection:
            del self._watched[descriptor]
            with contextlib.suppress(OSError):
                self._hangups.unregister(descriptor)

    # ---- the loop ----

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            make = loop.create_unix_server(lambda: Connection(self), sock=self._listener.socket)
            server = loop.run_until_complete(make)
            loop.add_reader(self._hangups.fileno(), self._hung_up)
            loop.call_later(self._sweep_s, self._sweep)
            self._ready.set_result(None)
            loop.run_forever()
            server.close()
            loop.run_until_complete(self._farewell())
        except BaseException as problem:
            if self._ready.done():
                raise
            self._ready.set_exception(problem)
        finally:
            self.bridge.close()
            self._listener.close()
            self._hangups.close()
            loop.close()

    async def _farewell(self) -> None:
        for connection in tuple(self._connections):
            connection.close(errno.ESHUTDOWN, "the kernel is shutting down")
        await asyncio.sleep(0)
        for connection in tuple(self._connections):
            connection.abort()
        while self._connections:
            await asyncio.sleep(0)

    def _flush(self) -> None:
        self._flush_due = False
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            connection.flush()
        if self._lagging:
            self._mind_budgets()

    def _mind_budgets(self) -> None:
        limits, total = self.limits, 0
        unsent = {connection: connection.measure_unsent() for connection in self._lagging}
        for connection, size in unsent.items():
            total += size
            if size > limits.client_out_bytes + 2 * limits.answer_bytes:
                log.warning("a client does not read its answers; its connection is closed")
                connection.abort()
            elif size > limits.client_out_bytes:
                connection.block()
        if total > limits.all_out_bytes // 2:
            for connection in unsent:
                connection.block()
        while total > limits.all_out_bytes:
            most = max(unsent, key=unsent.__getitem__)
            log.warning("%d bytes are unsent; the connection with most is closed", total)
            total -= unsent.pop(most)
            most.abort()

    def _hung_up(self) -> None:
        for descriptor, _ in self._hangups.poll(0):
            self._watched[descriptor].abort()

    @property
    def _sweep_s(self) -> float:
        limits = self.limits
        return min(SWEEP_S, limits.hello_s / 4, limits.frame_s / 4, limits.ping_s / 4)

    def _sweep(self) -> None:
        now_s = self.now_s()
        for connection in tuple(self._connections):
            connection.sweep(now_s)
        self._loop.call_later(self._sweep_s, self._sweep)

    async def _count(self) -> WireStatistics:
        return WireStatistics(
            connections=len(self._connections),
            calls=sum(len(connection.calls) for connection in self._connections),
            flows=sum(connection.calls.flows for connection in self._connections),
            processes=sum(connection.calls.owned for connection in self._connections),
            unsent_bytes=sum(connection.measure_unsent() for connection in self._lagging),
            blocked=sum(connection.blocked for connection in self._connections),
        )


def _most_connections() -> int:
    """As this process may have descriptors, less some for all else: two for each (`Connection`)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(1, (soft - SPARE_DESCRIPTORS) // 2)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
