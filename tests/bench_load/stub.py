"""A server of OpenAI's completions whose delays are known: a process of its own, with no model.

    python stub.py FD PLAN LOG

Request number i (its prompt's first id) is answered with the pieces of line i of PLAN: JSON lists
of seconds since the request came. When each piece was written is a line of LOG, monotonic seconds,
which client and server share.
"""

import asyncio
import json
import re
import socket
import sys
import time
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def ending(pieces: int) -> bytes:
    usage = {"prompt_tokens": 4, "completion_tokens": pieces}
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    events = [last, {"choices": [], "usage": usage}]
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return chunk(data + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Answering(asyncio.Protocol):
    """A connection. Pieces have absolute times: one that is late makes no other late."""

    def __init__(self, plan: list[list[float]], log) -> None:
        self.plan, self.log, self.data = plan, log, b""

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, split, body = self.data.partition(b"\r\n\r\n")
        if not split:
            return
        if head.startswith(b"GET"):
            self.data = b""
            models = b'{"data":[{"id":"stub"}]}'
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(models), models)
            )
            return
        length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
        if len(body) >= length:
            came_s = time.monotonic()
            self.data = body[length:]
            self.answer(json.loads(body[:length]), came_s)

    def answer(self, request, came_s: float) -> None:
        number = request["prompt"][0]
        delays_s = self.plan[number]
        written: list[float] = []
        self.transport.write(HEAD)

        def piece(index: int) -> None:
            if self.transport.is_closing():
                return
            written.append(time.monotonic())
            self.transport.write(chunk(PIECE))
            if index + 1 < len(delays_s):
                self.later(came_s + delays_s[index + 1], piece, index + 1)
            else:
                # Who has read the end finds the line.
                line = {"number": number, "came_s": came_s, "written_s": written}
                self.log.write(json.dumps(line) + "\n")
                self.log.flush()
                self.transport.write(ending(len(delays_s)))

        self.later(came_s + delays_s[0], piece, 0)

    def later(self, at_s: float, call, *words) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + at_s - time.monotonic(), call, *words)


async def main() -> None:
    plan = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    with Path(sys.argv[3]).open("a") as log:
        listener = socket.socket(fileno=int(sys.argv[1]))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Answering(plan, log), sock=listener, backlog=1024)
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
