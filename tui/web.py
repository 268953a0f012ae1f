"""`tokenix top` in browsers on this machine; a window is a program of its own (textual-serve)."""

import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from textual_serve.server import Server

HOST = "127.0.0.1"
"""There are no keys, and whoever comes in can act: no other machine does."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TopServer(Server):
    """Answers this machine's browsers, and of the pages in them only its own: a stranger's page
    that names this address, or has a name that leads to it, gets 403."""

    def __init__(self, words: Sequence[str], port: int) -> None:
        command = shlex.join([sys.executable, "-m", "tokenix.cli.main", *words])
        super().__init__(command, HOST, port, "tokenix top")
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    def initialize_logging(self) -> None:
        """It has nothing to say that users need."""

    async def on_startup(self, app: web.Application) -> None:
        sys.stderr.write(f"tokenix top on {self.public_url}; Ctrl-C ends it\n")
        sys.stderr.flush()

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._check)
        return app

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.host not in self._hosts or (
            origin is not None and origin.removeprefix("http://") not in self._hosts
        ):
            raise web.HTTPForbidden(text="only pages of this server, by its own address")
        return await handler(request)


def serve(words: Sequence[str], port: int) -> None:
    """Serve the command of these words until SIGINT or SIGTERM. OSError: the port is taken."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError as problem:
        what = f"port {port} of {HOST}: {problem.strerror}; choose another one"
        raise OSError(problem.errno, what) from None
    TopServer(words, port).serve()
