"""A connection that the caller's event loop reads itself: no thread of ours, and it ends with its
loop. What calls do over it is tested where both kinds are (`test_calls.py`, `test_crowd.py`)."""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread
import pytest

from tokenix import aio
from tokenix.kernel import calls
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.wire import channel, client
from tokenix.tests.wire.raw import until
from tokenix.tests.wire.test_silence import WELCOME, speaking

PROMPT = [1, 2, 3, 4]
LONG = 50_000


def play(path: str, story: Callable[[aio.Syscalls], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with await aio.connect(path) as k:
            await story(k)

    asyncio.run(whole())


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tokenix-client"]


def test_there_is_no_thread(path: str) -> None:
    async def story(k: aio.Syscalls) -> None:
        pid = await k.spawn(PROMPT, max_tokens=20)
        assert len("".join([text async for text in k.stream(pid)]).split()) == 20
        assert len(client_threads()) == before

    before = len(client_threads())
    play(path, story)


def test_calls_from_other_threads(path: str) -> None:
    async def story(k: aio.Syscalls) -> None:
        pid = await k.spawn(PROMPT, max_tokens=LONG)
        blocking = Syscalls(k.port)
        told = await anyio.to_thread.run_sync(blocking.stat, pid)
        assert told.pid == pid
        assert [one.pid for one in await anyio.to_thread.run_sync(blocking.ps)] == [pid]

    play(path, story)


def test_more_than_the_socket_takes_is_sent_bit_by_bit(path: str) -> None:
    """Of calls whose frames are larger together than any buffer all are answered."""

    async def story(k: aio.Syscalls) -> None:
        long = [7] * 200_000
        texts = await asyncio.gather(*(k.detokenize(long) for _ in range(12)))
        assert len(set(texts)) == 1 and texts[0]

    play(path, story)


def test_a_lost_connection_comes_back(path: str, stage: Syscalls) -> None:
    async def story(k: aio.Syscalls) -> None:
        pid = await k.spawn(PROMPT, max_tokens=2, keep_open=True)
        [_ async for _ in k.follow(pid)]
        lost = k.port._line._channel  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_soon(lost._socket.shutdown, socket.SHUT_RDWR)
        with pytest.raises(ConnectionResetError, match="the next call connects again"):
            await k.read(pid)
        again = await k.spawn(PROMPT, max_tokens=2)
        assert again > pid and k.port._line._channel is not lost  # type: ignore[attr-defined]

    play(path, story)
    until(lambda: not stage.ps())


def test_what_was_started_ends_with_the_loop(path: str, stage: Syscalls) -> None:
    async def leave() -> aio.Syscalls:
        k = await aio.connect(path)
        await k.spawn(PROMPT, max_tokens=LONG)
        return k

    k = asyncio.run(leave())
    with pytest.raises(OSError, match="connect") as first:
        asyncio.run(k.ps())  # type: ignore[arg-type]
    assert first.value.errno in (errno.ECONNRESET, errno.ESHUTDOWN)
    with pytest.raises(OSError, match="event loop that has ended; connect anew") as after:
        asyncio.run(k.ps())  # type: ignore[arg-type]
    assert after.value.errno == errno.ESHUTDOWN
    until(lambda: not stage.ps())
    asyncio.run(k.close())


def test_closing_says_so_to_who_waits(path: str, stage: Syscalls) -> None:
    async def story(k: aio.Syscalls) -> None:
        pid = await k.spawn(PROMPT, max_tokens=LONG)
        waiting = asyncio.create_task(k.wait(pid))
        await k.stat(pid)
        await k.close()
        with pytest.raises(ConnectionResetError, match="it was closed"):
            await waiting
        await k.close()
        with pytest.raises(OSError, match="has been closed"):
            await k.ps()

    play(path, story)
    until(lambda: not stage.ps())


def test_a_fork_has_no_connection_and_harms_none(path: str) -> None:
    async def story(k: aio.Syscalls) -> None:
        pid = await k.spawn(PROMPT, max_tokens=LONG)
        child = os.fork()
        if child == 0:
            _, answer = k.port.submit(calls.Stat(pid))
            problem = answer.exception(0)
            k.port.close()
            os._exit(7 if "connect anew" in str(problem) else 8)
        _, status = await anyio.to_thread.run_sync(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert (await k.stat(pid)).pid == pid

    play(path, story)


def test_a_server_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WELCOME_S", 0.1)
    with (
        speaking(tmp_path / "k.sock", lambda _: None) as path,
        pytest.raises(TimeoutError, match=r"has not answered for 0\.1 s"),
    ):
        asyncio.run(aio.connect(path))  # type: ignore[arg-type]


def test_a_server_that_falls_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PING_S", 0.05)
    monkeypatch.setattr(channel, "SILENT_S", 0.2)

    async def story(k: aio.Syscalls) -> None:
        with pytest.raises(ConnectionResetError, match=r"has not answered for 0\.2 s"):
            await k.ps()

    with speaking(tmp_path / "k.sock", lambda peer: peer.sendall(WELCOME)) as path:
        play(path, story)


def test_a_server_that_talks_nonsense(tmp_path: Path) -> None:
    def speak(peer: socket.socket) -> None:
        peer.sendall(WELCOME + b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def story(k: aio.Syscalls) -> None:
        await k.ps()

    with speaking(tmp_path / "k.sock", speak) as path, pytest.raises(OSError) as refused:
        play(path, story)
    assert refused.value.errno == errno.EPROTO


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no kernel listens on"):
        asyncio.run(aio.connect(tmp_path / "none.sock"))  # type: ignore[arg-type]
