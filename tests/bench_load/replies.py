"""Servers that answer with raw bytes."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

CHUNK = '{"choices":[{"index":0,"text":"%s","finish_reason":%s}]}'


@contextlib.contextmanager
def answering(reply: Callable[[int, bytes], bytes]) -> Iterator[str]:
    """A server that answers its n-th request with raw bytes, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        number = 0
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                data = b""
                while b"\r\n\r\n" not in data:
                    data += peer.recv(65536)
                head, _, body = data.partition(b"\r\n\r\n")
                wanted = int(head.lower().partition(b"content-length:")[2].split(b"\r")[0] or b"0")
                while len(body) < wanted:
                    body += peer.recv(65536)
                peer.sendall(reply(number, body))
                number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


def plain(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def events(*data: str, cut: bool = False) -> bytes:
    body = "".join(f"data: {one}\r\n\r\n" for one in data).encode()
    if cut:
        return plain("200 OK", body + b"x" * 50, "text/event-stream")[:-50]
    return plain("200 OK", body, "text/event-stream")


GOOD = (CHUNK % ("a", "null"), CHUNK % ("", '"stop"'), "[DONE]")


def until_closed(*data: str) -> bytes:
    """As HTTP/1.0 has it: the end of the connection is that of the body."""
    body = "".join(f"data: {one}\n\n" for one in data)
    return f"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{body}".encode()


def answer(number: int, body: bytes) -> bytes:
    return events(*GOOD) if body else plain("200 OK", b'{"data":[{"id":"m"}]}')
