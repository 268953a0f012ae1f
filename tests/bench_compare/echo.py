"""A server that answers completions at once, for comparisons: python echo.py PORT [--die N].

With --die, the N-th completion ends the process.
"""

import itertools
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMIT = int(sys.argv[3]) if "--die" in sys.argv else 0
numbers = itertools.count(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply(b'{"data":[{"id":"echo"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if next(numbers) == LIMIT:
            os._exit(1)
        chunk = {"choices": [{"index": 0, "text": "x", "finish_reason": None}]}
        last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        events = [chunk] * body["max_tokens"] + [last, {"choices": [], "usage": usage}]
        self.reply(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))

    def reply(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
