"""A server that does not answer, or answers nonsense: the client gives up, and says why."""

import asyncio
import errno
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import msgpack

import tokenix
from tokenix.syscalls.wire import abi, channel, client
from tokenix.syscalls.wire.limits import WireLimits
from tokenix.tests.wire.raw import framed

WELCOME = framed(
    msgpack.encode(abi.Welcome(abi.VERSION, "mute", 1, abi.Peer("default", True), WireLimits()))
)


@contextmanager
def speaking(path: Path, speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server whose connections are each handled by `speak`, and kept open."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                taken.append(listening.accept()[0])
            except OSError:
                return
            speak(taken[-1])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (listening, *taken):
            each.close()


def test_no_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WELCOME_S", 0.1)
    with (
        speaking(tmp_path / "k.sock", lambda _: None) as path,
        pytest.raises(TimeoutError, match=r"has not answered for 0\.1 s"),
    ):
        tokenix.connect(path)


LISTEN = """import socket, sys
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1])
one.listen()
print("listens", flush=True)
sys.stdin.read()
"""


def test_a_stopped_kernel_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "GREETING_S", 0.05)
    path = str(tmp_path / "k.sock")
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as kernel:
        try:
            assert kernel.stdout is not None and kernel.stdout.readline()
            monkeypatch.setattr(client, "WELCOME_S", 0.2)
            with pytest.raises(TimeoutError, match="has not answered"):
                tokenix.connect(path)
            monkeypatch.setattr(client, "WELCOME_S", 600.0)
            kernel.send_signal(signal.SIGSTOP)
            words = f"is stopped, and answers nothing; let it go on: kill -CONT {kernel.pid}"
            with pytest.raises(TimeoutError, match=words):
                tokenix.connect(path)
            with pytest.raises(TimeoutError, match=words):
                asyncio.run(tokenix.aio.connect(path))  # type: ignore[arg-type]
        finally:
            kernel.kill()


def test_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PING_S", 0.05)
    monkeypatch.setattr(channel, "SILENT_S", 0.2)
    with (
        speaking(tmp_path / "k.sock", lambda peer: peer.sendall(WELCOME)) as path,
        tokenix.connect(path) as k,
        pytest.raises(ConnectionResetError, match=r"has not answered for 0\.2 s"),
    ):
        k.ps()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        framed(b"\xc1"),
        framed(msgpack.encode({"msg": "later", "id": 4})),
        framed(msgpack.encode({"msg": "answer", "id": 1, "value": "text"})),
        framed(msgpack.encode({"msg": "answer", "id": 1})),
    ],
    ids=range(5),
)
def test_nonsense(tmp_path: Path, nonsense: bytes) -> None:
    def speak(peer: socket.socket) -> None:
        peer.sendall(WELCOME)
        asked = b""
        while b"ps" not in asked:
            asked += peer.recv(1 << 16)
        peer.sendall(nonsense)

    with speaking(tmp_path / "k.sock", speak) as path:
        k = tokenix.connect(path)
        with pytest.raises(OSError) as refused:
            k.ps()
        assert refused.value.errno == errno.EPROTO
        k.close()
