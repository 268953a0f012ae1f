"""A bare ASGI application that streams events at a given pace: what a gateway is compared with.

python -m tokenix.bench.echo FD EVENTS STEP_S     serves on the listening socket FD
"""

import asyncio
import socket
import sys
import time
from typing import Any

EVENT = b"data: " + b"x" * 240 + b"\n\n"


class Echo:
    """Answers every request with `events` events, one in each step of all streams together."""

    def __init__(self, events: int, step_s: float) -> None:
        self._events = events
        self._step_s = step_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(self._events):
            await asyncio.sleep(self._step_s - time.monotonic() % self._step_s)
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def main() -> None:
    import uvicorn

    descriptor, events, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    config = uvicorn.Config(
        Echo(events, step_s), http="httptools", loop="uvloop", ws="none", lifespan="off",
        access_log=False, log_config=None,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main()
