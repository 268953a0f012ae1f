"""The HTTP server around the application, and how it ends.

SIGUSR1    nothing new is taken (503, not ready), until the daemon says more
SIGTERM    nothing new is taken; what runs may run on for `drain_s`; then exit
again      now, with an error for the clients of what runs
SIGQUIT    the same
"""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from types import FrameType

import structlog
import uvicorn

from tokenix.gateway.app import Application
from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.garbage import keep_loaded
from tokenix.gateway.link import Connect
from tokenix.gateway.protocol import Connection

log = structlog.get_logger("tokenix.gateway")

LAST_WORDS_S = 2.0
"""After the drain, what was cut off may still say so for so long."""


class Server(uvicorn.Server):
    """Serves until it is told to stop."""

    def __init__(self, config: GatewayConfig, connect: Connect) -> None:
        self.application = Application(config, connect)
        self.application.gate.draining = config.draining
        self._drain_s = config.drain_s
        self._parent = config.parent
        self._draining: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs, once it does."""
        super().__init__(uvicorn.Config(
            self.application.asgi,
            host=config.host,
            port=config.port,
            uds=config.uds or None,
            http=Connection.of(config.limits),
            ws="none",
            lifespan="on",
            loop="uvloop",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(config.limits.keep_alive_s),
            timeout_graceful_shutdown=int(LAST_WORDS_S),
            backlog=2048,
        ))  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come, at any moment."""
        if self.loop is None or self.should_exit:
            self.should_exit = self.force_exit = True
        else:
            self.loop.call_soon_threadsafe(self.drain if self._draining is None else self.stop)

    def handle_closing(self, sig: int, frame: FrameType | None) -> None:
        """SIGUSR1 has come, at any moment."""
        self.application.gate.draining = True

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """SIGQUIT has come, at any moment."""
        if self.loop is None:
            self.should_exit = True
        else:
            self.loop.call_soon_threadsafe(self.stop)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._parent:
            self._mind_parent()

    def _mind_parent(self) -> None:
        """Notice its end."""
        loop = asyncio.get_running_loop()

        def orphaned() -> None:
            if death >= 0:
                loop.remove_reader(death)
            self.stop()
            log.warning("the daemon is gone")

        death = -1
        if os.getppid() == self._parent:  # or it was gone before, and its number may be another's
            with contextlib.suppress(ProcessLookupError):
                death = os.pidfd_open(self._parent)
        if death >= 0:
            loop.add_reader(death, orphaned)
        else:
            orphaned()

    def drain(self) -> None:
        """Take nothing new; exit when all is answered, or after `drain_s`."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    def stop(self) -> None:
        """End what runs, with an error for its client, and exit."""
        self.application.gate.stop_all()
        self.should_exit = True
        log.warning("stopping now")

    async def _drain(self) -> None:
        gate = self.application.gate
        gate.draining = True
        log.info("draining", limit_s=self._drain_s)
        try:
            async with asyncio.timeout(self._drain_s):
                await gate.idle.wait()
        except TimeoutError:
            self.stop()
        self.should_exit = True


def serve(config: GatewayConfig, connect: Connect) -> None:
    """Serve until a signal. SystemExit 1 if it cannot listen there."""
    server = Server(config, connect)
    keep_loaded()
    signal.signal(signal.SIGUSR1, server.handle_closing)
    signal.signal(signal.SIGQUIT, server.handle_quit)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # its log may be a terminal with `tostop`
    if config.fd >= 0:
        server.run(sockets=[socket.socket(fileno=config.fd)])
    elif config.uds:
        server.run(sockets=[_listen_on_path(config.uds)])
    else:
        server.run()
    if not server.started:
        sys.exit(1)


def _listen_on_path(path: str) -> socket.socket:
    """A Unix socket that only this user may use; one that is there is replaced. SystemExit 1."""
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            log.error("cannot listen", path=path, why="it is there and is no socket")
            sys.exit(1)
        Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    return listener
