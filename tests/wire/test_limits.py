"""What a client may not do, and what it is told: by hand, message by message."""

import errno
import re
import time

import pytest
from msgspec import msgpack

import tokenix
from tokenix.kernel import calls
from tokenix.kernel.answers import Listing
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.texts import Detokenize, SpawnText
from tokenix.syscalls.wire import abi
from tokenix.tests.wire.conftest import Serving
from tokenix.tests.wire.raw import Raw, framed, until

HELLO = framed(msgpack.encode(abi.Hello(abi.VERSION)))
QUICK = {"ping_s": 0.1, "silent_s": 0.4, "hello_s": 0.2, "frame_s": 0.2}


def last_words(raw: Raw) -> abi.Bye:
    """What the server says before it closes."""
    bye = raw.receive()
    assert isinstance(bye, abi.Bye), bye
    assert raw.receive() is None
    raw.close()
    return bye


@pytest.mark.parametrize(
    ("sent", "number", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", errno.EMSGSIZE, "a frame of"),
        (framed(msgpack.encode(abi.Hello(1))), errno.EPROTONOSUPPORT, "version 2 .* version 1"),
        (framed(msgpack.encode(abi.Ping())), errno.EPROTO, "first message must be a hello"),
        (framed(b"\xc1"), errno.EPROTO, "cannot be read"),
        (framed(msgpack.encode({"msg": "hello"})), errno.EPROTO, "version"),
        (b"\0\0\0\0", errno.EMSGSIZE, "a frame of 0 bytes"),
        (b"\xff\xff\xff\xff", errno.EMSGSIZE, "it may have 1 to"),
        (HELLO + HELLO, errno.EPROTO, "second hello"),
        (HELLO + framed(msgpack.encode([1, 2])), errno.EPROTO, "cannot be read"),
        (HELLO + framed(b"\x93" * 100_000), errno.EPROTO, "cannot be read"),
        (HELLO + (5 << 20).to_bytes(4, "little"), errno.EMSGSIZE, "1 to 4194304"),
        (HELLO + framed(msgpack.encode(abi.Ask(0, calls.Ps()))), errno.EPROTO, "not above 0"),
    ],
    ids=range(12),
)
def test_nonsense_ends_the_connection(path: str, sent: bytes, number: int, words: str) -> None:
    raw = Raw(path, greet=False)
    raw.socket.sendall(sent)
    bye = raw.receive()
    if isinstance(bye, abi.Welcome):
        bye = raw.receive()
    assert isinstance(bye, abi.Bye) and bye.errno == number
    assert re.search(words, bye.message), bye.message
    assert raw.receive() is None
    raw.close()


def test_a_client_of_another_version_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "VERSION", 99)
    with tokenix.connect(path) as k:
        assert k.ps() == ()
    with Raw(path, greet=False) as raw:
        raw.send(abi.Hello(1))
        assert last_words(raw).errno == errno.EPROTONOSUPPORT


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "nosuchcall"},
        {"type": "kill", "pid": 1, "signal": 3},
        {"type": "read", "pid": "one"},
        {"type": "read"},
        {"type": "spawn", "prompt": "Hi", "options": [1]},
        {"type": "imagedir", "directory": "/"},
        [1, 2],
    ],
)
def test_a_call_that_makes_no_sense_fails_alone(path: str, request_: object) -> None:
    with Raw(path) as raw:
        raw.send({"msg": "ask", "id": 7, "request": request_})
        fail = raw.receive()
        assert isinstance(fail, abi.Fail) and (fail.id, fail.errno) == (7, errno.EINVAL)
        assert raw.call(calls.Ps()) == Listing(())


def test_unknown_fields_are_ignored(path: str) -> None:
    with Raw(path) as raw:
        request = {"type": "ps", "colour": "red"}
        raw.send({"msg": "ask", "id": 3, "request": request, "later": {"a": [1]}})
        assert isinstance(raw.receive(), abi.Answer)


def test_a_number_in_flight_is_taken(path: str) -> None:
    with Raw(path) as raw:
        pid = raw.call(SpawnText([1], {"max_tokens": 1, "keep_open": True}))
        while raw.call(calls.Read(pid)).turn_ended is None:
            pass
        raw.send(abi.Ask(50, calls.Read(pid)), abi.Ask(50, calls.Ps()))
        bye = last_words(raw)
        assert bye.errno == errno.EPROTO and "in flight already: 50" in bye.message


def test_hello_in_time(serving: Serving) -> None:
    server = serving(**QUICK)
    began_s = time.monotonic()
    raw = Raw(server.path, greet=False)
    raw.socket.sendall(HELLO[:-1])
    assert "no hello within 0.2 s" in last_words(raw).message
    assert time.monotonic() - began_s >= 0.2


def test_slow_loris(serving: Serving) -> None:
    """A frame that comes byte by byte is given up, however busily the bytes come."""
    server = serving(**QUICK)
    raw = Raw(server.path)
    frame = framed(msgpack.encode(abi.Ask(1, Detokenize((1,) * 100_000))))
    sent = 0
    try:
        while sent < len(frame):
            raw.socket.sendall(frame[sent : sent + 1])
            sent += 1
            time.sleep(0.001)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert "did not end within 0.2 s" in last_words(raw).message


def test_a_silent_client_is_closed(serving: Serving, stage: Syscalls) -> None:
    server = serving(**QUICK)
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText([1], {"max_tokens": 50_000}))
        assert stage.stat(pid)
        assert raw.receive() is None  # and answers no ping
    until(lambda: not stage.ps())


def test_an_idle_client_that_lives_stays(serving: Serving) -> None:
    server = serving(**QUICK)
    with tokenix.connect(server.path) as k:
        began_s = time.monotonic()
        until(lambda: time.monotonic() - began_s > 1.0)
        assert k.port._line._channel.lost is None  # type: ignore[attr-defined]


def test_a_ping_is_answered(path: str) -> None:
    with Raw(path) as raw:
        raw.send(abi.Ping(), abi.Pong(), abi.Ping())
        assert [type(raw.receive()) for _ in range(2)] == [abi.Pong, abi.Pong]


def test_so_many_connections(serving: Serving) -> None:
    server = serving(connections=3)
    clients = [Raw(server.path) for _ in range(3)]
    with pytest.raises(BlockingIOError, match="3 programs are connected already"):
        tokenix.connect(server.path)
    clients.pop().close()
    until(lambda: server.statistics().connections == 2)
    with tokenix.connect(server.path) as k:
        assert k.ps() == ()
    for client in clients:
        client.close()


def test_calls_above_the_limit_wait_unread(serving: Serving) -> None:
    server = serving(calls=4)
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText([1], {"max_tokens": 1, "keep_open": True}))
        while raw.call(calls.Read(pid)).turn_ended is None:
            pass
        blocked = [raw.ask(calls.Read(pid)) for _ in range(5)]
        raw.ask(calls.Ps())
        until(lambda: server.statistics().calls == 5)
        with tokenix.connect(server.path) as k:
            k.write(pid, [1], eof=True)
        answered = [raw.receive().id for _ in range(6)]
        assert sorted(answered) == sorted([*blocked, blocked[-1] + 1])


def test_a_client_that_hangs_up_while_it_is_not_read(serving: Serving, stage: Syscalls) -> None:
    server = serving(calls=2)
    raw = Raw(server.path)
    pid = raw.call(SpawnText([1], {"max_tokens": 1, "keep_open": True}))
    while raw.call(calls.Read(pid)).turn_ended is None:
        pass
    for _ in range(4):
        raw.ask(calls.Read(pid))
    until(lambda: server.statistics().calls == 3)
    raw.close()
    until(lambda: not stage.ps())
    assert server.statistics().connections == 0


def test_the_library_does_not_go_above_the_limit(serving: Serving) -> None:
    server = serving(calls=3)
    with tokenix.connect(server.path) as k:
        pid = k.spawn([1], max_tokens=1, keep_open=True)
        "".join(k.stream(pid))
        futures = [k.port.submit(calls.Read(pid)) for _ in range(3)]
        with pytest.raises(BlockingIOError, match="3 calls are in flight") as refused:
            k.ps()
        assert refused.value.retry_after_s == 0.1  # type: ignore[attr-defined]
        assert k.port.submit(calls.CancelCall(futures[0][0]))[1].result(60) is True
        assert k.ps()


def test_an_answer_that_is_too_long(serving: Serving) -> None:
    server = serving(answer_bytes=1024)
    with Raw(server.path) as raw:
        fail = raw.call(calls.Vmstat())
        assert isinstance(fail, abi.Fail) and fail.errno == errno.EMSGSIZE
        assert raw.call(calls.Ps()) == Listing(())


def test_many_begun_frames(serving: Serving) -> None:
    server = serving(frame_bytes=60_000, call_bytes=60_000, all_in_bytes=100_000)
    clients = [Raw(server.path) for _ in range(3)]
    for client in clients:
        client.socket.sendall((50_000).to_bytes(4, "little") + b"x" * 40_000)
    until(lambda: server.statistics().connections == 2)
    for client in clients:
        client.close()


@pytest.mark.parametrize("window", [0, -5, 1 << 40])
def test_a_window_that_cannot_be(path: str, window: int) -> None:
    with Raw(path) as raw:
        raw.send(abi.Follow(5, Pid(1), window))
        fail = raw.receive()
        assert isinstance(fail, abi.Fail) and (fail.id, fail.errno) == (5, errno.EINVAL)


def test_a_flow_of_nobody(path: str) -> None:
    with Raw(path) as raw:
        raw.send(abi.Follow(5, Pid(999_999), 8))
        assert raw.receive().errno == errno.ESRCH
        raw.send(abi.Grant(5, 10), abi.Grant(6, 10))
        assert raw.call(calls.Ps()) == Listing(())


def test_credit_bounds_what_is_pushed(path: str, stage: Syscalls) -> None:
    with Raw(path) as raw:
        pid = raw.call(SpawnText([1], {"max_tokens": 100}))
        raw.send(abi.Follow(90, pid, 10))
        got = 0
        while got < 10:
            got += len(raw.receive().result.outputs)
        assert got == 10
        until(lambda: stage.stat(pid).unread_tokens == 90)
        raw.send(abi.Grant(90, -5), abi.Grant(90, 30))
        while got < 40:
            got += len(raw.receive().result.outputs)
        assert got == 40 and stage.stat(pid).unread_tokens == 60
        raw.send(abi.Grant(90, 1 << 50))
        while True:
            result = raw.receive().result
            got += len(result.outputs)
            if result.eof:
                break
        assert got == 100
