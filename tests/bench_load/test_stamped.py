"""A connection that tells when bytes came, whatever its reader was doing then."""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from tokenix.bench.load import stamped
from tokenix.bench.load.run import in_loop
from tokenix.bench.load.stamped import Stamped

LONG = b"a long body" * 1_000_000


class Reader:
    """Keeps what comes."""

    def __init__(self) -> None:
        self.pieces: list[tuple[bytes, float]] = []
        self.came = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def received(self, data: bytes, time_s: float) -> None:
        self.pieces.append((data, time_s))
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def play(story: Callable[[Stamped, Reader, socket.socket], Awaitable[None]]) -> None:
    """With a connection and the other end of it."""

    async def whole() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            connected = await stamped.connect(host, port)
            peer, _ = listener.accept()
            with peer:
                reader = Reader()
                connection = Stamped(connected, reader)
                async with asyncio.timeout(100):
                    await story(connection, reader, peer)
                connection.close()
                await reader.lost

    in_loop(whole)


def test_bytes_have_the_time_they_came_however_late_they_are_read() -> None:
    async def story(connection: Stamped, reader: Reader, peer: socket.socket) -> None:
        for _ in range(20):  # the system notes no times for a moment after somebody wants them
            reader.came.clear()
            before_s = time.monotonic()
            peer.send(b"here")
            time.sleep(0.3)  # the loop reads nothing meanwhile
            late_s = time.monotonic()
            await reader.came.wait()
            data, time_s = reader.pieces[-1]
            assert data == b"here"
            if time_s < late_s - 0.1:
                break
        assert before_s - 0.05 < time_s < late_s - 0.1

    play(story)


def test_a_look_at_two_clocks_that_was_interrupted_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_s = iter([0.4])
    told_ns = time.time_ns

    def interrupted_once() -> int:
        time.sleep(next(waits_s, 0))
        return told_ns()

    async def story(connection: Stamped, reader: Reader, peer: socket.socket) -> None:
        before_s = time.monotonic()
        monkeypatch.setattr(time, "time_ns", interrupted_once)
        peer.send(b"here")
        await reader.came.wait()
        assert next(waits_s, None) is None and reader.pieces[0][1] > before_s - 0.2

    play(story)


def test_who_stopped_to_read_gets_it_when_he_goes_on() -> None:
    async def story(connection: Stamped, reader: Reader, peer: socket.socket) -> None:
        connection.pause_reading()
        peer.send(b"here")
        for _ in range(10):  # looks of the loop at its sockets
            await asyncio.sleep(0)
        assert not reader.pieces
        resumed_s = time.monotonic()
        connection.resume_reading()
        await reader.came.wait()
        assert reader.pieces[0][1] >= resumed_s

    play(story)


def test_a_long_request_goes_out_bit_by_bit() -> None:
    async def story(connection: Stamped, reader: Reader, peer: socket.socket) -> None:
        def take() -> None:
            left = len(LONG)
            while left:
                left -= len(peer.recv(1 << 16))
            peer.send(b"all of it")

        connection.write(LONG[:1000])
        connection.write(LONG[1000:])
        thread = threading.Thread(target=take)
        thread.start()
        await reader.came.wait()
        thread.join()

    play(story)


@pytest.mark.parametrize("how", ["ended", "broken off"])
def test_the_other_side_ends_it(how: str) -> None:
    async def story(connection: Stamped, reader: Reader, peer: socket.socket) -> None:
        if how == "broken off":  # with something unread: a reset
            connection.write(b"never read")
            await asyncio.to_thread(peer.recv, 1, socket.MSG_PEEK)
        peer.close()
        problem = await reader.lost
        assert connection.is_closing() and (problem is None) == (how == "ended")
        connection.write(b"into nothing")

    play(story)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    for name in (host, "no.such.name.invalid"):
        with pytest.raises(OSError):
            in_loop(lambda name=name: stamped.connect(name, port))
