"""HTTP as clients other than browsers and SDKs speak it: old ones, curious ones, broken ones."""

import json
from typing import Any

import pytest

from tokenix.gateway import door
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Gateway, Wire, open_gateway, rest

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
HTTP_2 = {
    "Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__",
}  # fmt: skip
"""What `curl --http2` and Java's client say to a server that they do not know."""


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_an_upgrade_is_not_made_and_nothing_is_lost(gateway: Gateway, k: Syscalls) -> None:
    body = json.dumps(ASK).encode()
    with gateway.post(CHAT, body) as wire:
        expected = text_of(wire.json())
    with gateway.post(CHAT, body, **HTTP_2) as wire:
        assert text_of(wire.json()) == expected and wire.status == 200
        for _ in range(2):  # the connection goes on, asked for an upgrade again or not
            wire.status = 0
            assert text_of(wire.send("POST", CHAT, body).json()) == expected
            wire.status = 0
            assert wire.send("GET", "/v1/models", **HTTP_2).json()["object"] == "list"
    with gateway.post(CHAT, b"", **HTTP_2, Content_Length=str(len(body))) as wire:
        for byte in body:  # the body comes later, and bit by bit
            wire.socket.sendall(bytes([byte]))
        assert text_of(wire.json()) == expected
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    chunked = {**HTTP_2, "Content-Length": "", "Transfer-Encoding": "chunked"}
    with gateway.post(CHAT, chunks, **chunked) as wire:
        assert text_of(wire.json()) == expected
    closing = {**HTTP_2, "Connection": "Upgrade, close"}
    with gateway.get("/health", **closing) as wire:
        assert wire.json() == {"status": "ok"}
        assert wire.headers["connection"] == "close" and wire.closed()
    with Wire(gateway.port) as wire:
        one = (
            b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        wire.socket.sendall(one * 20)
        for _ in range(20):
            wire.status = 0
            assert wire.json() == {"status": "ok"}
    with Wire(gateway.port) as wire:
        wire.socket.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wire.error()["code"] == "invalid_http" and wire.closed()
    rest(k)


HOSTS = [
    (b"HTTP/1.1", b"", 400),
    (b"HTTP/1.1", b"Host: a\r\nHost: b\r\n", 400),
    (b"HTTP/1.1", b"Host: a\r\n", 200),
    (b"HTTP/1.1", b"host:\r\n", 200),
    (b"HTTP/1.0", b"", 200),
]


@pytest.mark.parametrize(("version", "hosts", "status"), HOSTS)
def test_a_request_says_once_whom_it_is_for(
    gateway: Gateway, version: bytes, hosts: bytes, status: int
) -> None:
    with Wire(gateway.port) as wire:
        wire.socket.sendall(b"GET /health %b\r\n%b\r\n" % (version, hosts))
        assert wire.head().status == status
        if status == 400:
            assert "Host header" in wire.error()["message"] and wire.closed()


@pytest.mark.parametrize("chunks", [b"zz\r\nxx\r\n", b"2\r\nabc\r\n", b"-1\r\n", b"f" * 40])
def test_a_body_in_broken_chunks_is_answered(gateway: Gateway, chunks: bytes) -> None:
    chunked = {"Content-Length": "", "Transfer-Encoding": "chunked"}
    with gateway.post(CHAT, chunks, **chunked) as wire:
        assert wire.error()["code"] == "invalid_http" and wire.status == 400
        assert wire.headers["connection"] == "close" and wire.closed()


def test_what_is_broken_behind_a_request_gives_no_second_answer_to_it(
    gateway: Gateway, k: Syscalls
) -> None:
    body = json.dumps({**ASK, "max_tokens": 400}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with Wire(gateway.port) as wire:
        wire.socket.sendall(head % len(body) + body + b"nonsense\r\n\r\n")
        assert wire.closed()
    rest(k)


def test_a_client_of_http_1_0_is_sent_no_chunks(gateway: Gateway) -> None:
    for streams in (True, False):
        body = json.dumps({**ASK, "stream": streams}).encode()
        with Wire(gateway.port) as wire:
            wire.socket.sendall(
                b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            wire.socket.sendall(body)
            wire.head()
            assert wire.status == 200 and "transfer-encoding" not in wire.headers
            assert ("content-length" in wire.headers) != streams
            said = wire.read
            while more := wire.socket.recv(65536):
                said += more
        if streams:
            *events, done, end = said.split(b"\n\n")
            assert (done, end) == (b"data: [DONE]", b"")
            deltas = [json.loads(one.removeprefix(b"data: ")) for one in events]
            text = "".join(one["choices"][0]["delta"].get("content", "") for one in deltas)
        else:
            assert text_of(json.loads(said)) == text


def test_head_is_get_without_its_body(gateway: Gateway) -> None:
    for path in ("/health", "/health/ready", "/v1/models", "/metrics"):
        with Wire(gateway.port).send("HEAD", path).head() as wire:
            assert wire.status == 200 and int(wire.headers["content-length"]) > 2
            wire.send("GET", path)  # nothing of a body is in the way
            assert wire.head().status == 200
    with Wire(gateway.port).send("HEAD", CHAT).head() as wire:
        assert wire.status == 405


def test_who_sends_all_before_it_reads_is_told_that_it_was_too_much(
    k: Syscalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "SKIPPED_S", 1000.0)
    size = 12 << 20  # more than what two sockets hold between them
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    chunked = {"Content-Length": "", "Transfer-Encoding": "chunked"}
    with open_gateway(k, limits={"body_bytes": 1000}) as gateway:
        for body, headers in ((b" " * size, {}), (chunk * 12 + b"0\r\n\r\n", chunked)):
            with gateway.post(CHAT, body, **headers) as wire:
                assert wire.error()["code"] == "request_too_large" and wire.status == 413
        for headers in ({"Content-Length": str(1 << 40)}, {"Expect": "100-continue"}):
            asks = {"Content-Length": str(size), **headers}
            with gateway.post(CHAT, b"", **asks) as wire:  # nothing is waited for
                assert wire.error()["code"] == "request_too_large"


def test_the_media_type_of_metrics_names_its_charset_once(gateway: Gateway) -> None:
    with gateway.get("/metrics") as wire:
        wire.body()
        assert wire.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
