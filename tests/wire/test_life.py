"""What ends when something ends: calls, connections, clients, servers."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

import tokenix
from tokenix import aio
from tokenix.kernel import calls
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.texts import SpawnText
from tokenix.syscalls.wire import abi
from tokenix.tests.tidy.tree import ROOT
from tokenix.tests.wire.conftest import PIPE_TOKENS, Serving
from tokenix.tests.wire.raw import Raw, until

PROMPT = [1, 2, 3, 4]
LONG = 50_000
"""Tokens that no test waits for."""


def last_events(stage: Syscalls, pid: int) -> list[str]:
    return [event.kind for event in stage.trace(pid)]  # type: ignore[arg-type]


def test_processes_end_with_their_connection(stage: Syscalls, path: str) -> None:
    with tokenix.connect(path) as k:
        pid = k.spawn(PROMPT, max_tokens=LONG)
        k.read(pid)
        k.fork(pid, 2)
        assert len(stage.ps()) == 3
    until(lambda: not stage.ps())
    assert "exit" in last_events(stage, pid)


def test_what_was_detached_goes_on(stage: Syscalls, path: str) -> None:
    with tokenix.connect(path) as k:
        pid = k.spawn(PROMPT, max_tokens=200, detach=True)
        mine = k.spawn(PROMPT, max_tokens=LONG)
    until(lambda: [process.pid for process in stage.ps()] == [pid], f"{mine} is not gone")
    with tokenix.connect(path) as k:
        assert len("".join(k.stream(pid)).split()) == 200
        k.wait(pid)


def test_what_was_waited_for_is_forgotten(path: str, serving: Serving) -> None:
    server = serving("other.sock")
    with tokenix.connect(server.path) as k:
        for _ in range(3):
            pid = k.spawn(PROMPT, max_tokens=2)
            "".join(k.stream(pid))
            k.wait(pid)
        assert server.statistics().processes == 0


def test_scenario_f8_a_closed_connection_ends_its_process_in_every_state(
    stage: Syscalls, path: str
) -> None:
    """Generation does not go on when the connection is closed, whatever the process was doing."""

    def running(k: Syscalls) -> None:
        k.read(k.spawn(PROMPT, max_tokens=LONG))

    def stopped(k: Syscalls) -> None:
        pid = k.spawn(PROMPT, max_tokens=LONG)
        k.kill(pid, tokenix.SIGSTOP)

    def waiting_for_input(k: Syscalls) -> None:
        pid = k.spawn(PROMPT, max_tokens=2, keep_open=True)
        "".join(k.stream(pid))

    def unread(k: Syscalls) -> None:
        k.spawn(PROMPT, max_tokens=LONG)
        until(lambda: any(process.unread_tokens >= PIPE_TOKENS for process in stage.ps()))

    def finished(k: Syscalls) -> None:
        k.spawn(PROMPT, max_tokens=1)
        until(lambda: any(process.state == "zombie" for process in stage.ps()))

    def queued(k: Syscalls) -> None:
        k.spawn([1] * 10_000, max_tokens=LONG)

    for state in (running, stopped, waiting_for_input, unread, finished, queued):
        with tokenix.connect(path) as k:
            state(k)
        until(lambda: not stage.ps(), state.__name__)


def test_a_client_that_is_killed(stage: Syscalls, path: str, tmp_path: Path) -> None:
    program = (
        "import sys, tokenix\n"
        f"k = tokenix.connect({path!r})\n"
        f"a = k.spawn([1, 2], max_tokens={LONG}); b = k.spawn([1, 2], max_tokens=9, detach=True)\n"
        "print(a, b, flush=True)\n"
        "k.wait(a)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".lib")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    owned, detached = map(int, client.stdout.readline().split())
    client.kill()
    client.wait()
    client.stdout.close()
    until(lambda: owned not in [process.pid for process in stage.ps()])
    with tokenix.connect(path) as k:
        assert k.wait(detached).rusage.output_tokens == 9  # type: ignore[arg-type]


def test_the_server_stops(serving: Serving, stage: Syscalls) -> None:
    server = serving()
    k = tokenix.connect(server.path)
    pid = k.spawn(PROMPT, max_tokens=4, keep_open=True)
    "".join(k.stream(pid))
    threading.Timer(0.1, server.close).start()
    with pytest.raises(OSError, match="shutting down") as stopped:
        k.read(pid)
    assert stopped.value.errno == errno.ESHUTDOWN
    until(lambda: not Path(server.path).exists())
    with pytest.raises(FileNotFoundError, match=r"no kernel listens on .*tokenix serve"):
        k.ps()
    serving()
    assert k.ps() == ()  # the same object has connected again
    k.close()
    with pytest.raises(OSError, match="has been closed"):
        k.ps()


def test_a_connection_that_is_lost_fails_its_calls_and_comes_back(
    serving: Serving, stage: Syscalls
) -> None:
    server = serving()
    with tokenix.connect(server.path) as k:
        pid = k.spawn(PROMPT, max_tokens=2, keep_open=True)
        "".join(k.stream(pid))
        channel = k.port._line._channel  # type: ignore[attr-defined]
        threading.Timer(0.1, channel._socket.shutdown, (2,)).start()
        with pytest.raises(ConnectionResetError, match="the next call connects again"):
            k.read(pid)
        with pytest.raises(ProcessLookupError):
            until(lambda: not k.stat(pid))
        assert k.spawn(PROMPT, max_tokens=2) > pid


def test_a_flow_over_a_lost_connection_fails(serving: Serving) -> None:
    server = serving()

    async def story() -> None:
        async with await aio.connect(server.path) as k:
            pid = await k.spawn(PROMPT, max_tokens=LONG)
            with pytest.raises(ConnectionResetError):
                async for _ in k.follow(pid):
                    k.port._line._channel._socket.shutdown(2)  # type: ignore[attr-defined]

    anyio.run(story)


def test_a_fork_of_the_client_has_no_connection(path: str, stage: Syscalls) -> None:
    with tokenix.connect(path) as k:
        pid = k.spawn(PROMPT, max_tokens=LONG)
        child = os.fork()
        if child == 0:
            try:
                k.ps()
            except OSError as problem:
                k.close()
                os._exit(7 if "connect anew" in str(problem) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert k.stat(pid).pid == pid


def test_a_fork_that_lives_on_does_not_keep_the_connection(path: str, stage: Syscalls) -> None:
    reading, writing = os.pipe()
    k = tokenix.connect(path)
    k.spawn(PROMPT, max_tokens=LONG)
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    k.close()
    until(lambda: not stage.ps())
    os.close(writing)
    os.waitpid(child, 0)


def test_what_a_call_was_waiting_for_is_cancelled(serving: Serving, stage: Syscalls) -> None:
    server = serving()
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText(PROMPT, {"max_tokens": 2, "keep_open": True, "detach": True}))
        while raw.call(calls.Read(pid)).turn_ended is None:
            pass
        for _ in range(3):
            raw.ask(calls.Read(pid))
        raw.ask(calls.Wait(pid))
        raw.send(abi.Follow(77, pid, 8))
        until(lambda: server.statistics().flows == 1)
    until(lambda: server.statistics().connections == 0)
    stage.write(pid, [5, 6], eof=True)
    assert len("".join(stage.stream(pid)).split()) == 2, "a dead client's read has taken it"
    stage.wait(pid)


def test_taking_back_a_call_before_it_is_in_the_kernel(path: str, stage: Syscalls) -> None:
    with Raw(path) as raw:
        text = "x" * 1_000_000
        for number in range(2, 12):
            raw.send(abi.Ask(number, SpawnText(text, {"raw": True})))
            raw.send(abi.Ask(100 + number, calls.CancelCall(number)))
        seen = {}
        while len(seen) < 20:
            message = raw.receive()
            seen[message.id] = message
        for number in range(2, 12):
            taken = abi.answer_decoder(calls.CancelCall).decode(seen[100 + number].value)
            failed = isinstance(seen[number], abi.Fail)
            assert failed and (not taken or seen[number].errno == errno.EINTR)
    assert not stage.ps()


def test_a_spawn_whose_client_goes_away_meanwhile(stage: Syscalls, serving: Serving) -> None:
    server = serving()
    for _ in range(20):
        raw = Raw(server.path)
        raw.send(*[abi.Ask(n, SpawnText(PROMPT, {"max_tokens": LONG})) for n in range(1, 9)])
        raw.close()
    until(lambda: server.statistics().connections == 0)
    until(lambda: not stage.ps())


def test_scenario_g7_every_exit_is_logged_with_a_reason(stage: Syscalls, path: str) -> None:
    """A process whose client disconnects leaves the running set with a reason that can be read."""
    since = stage.trace(limit=1 << 20)[-1].seq if stage.trace(limit=1 << 20) else 0
    pids = []
    for _ in range(5):
        with tokenix.connect(path) as k:
            pids.append(k.spawn(PROMPT, max_tokens=LONG))
    until(lambda: not stage.ps())
    for pid in pids:
        exits = [dict(e.detail) for e in stage.trace(pid, since) if e.kind == "exit"]
        assert [end["reason"] for end in exits] == ["killed"]


def test_draining(serving: Serving) -> None:
    server = serving()
    with tokenix.connect(server.path) as k:
        pid = k.spawn(PROMPT, max_tokens=2, keep_open=True)
        server.drain("the machine goes down")
        with pytest.raises(OSError, match="the machine goes down"):
            k.spawn(PROMPT)
        assert "".join(k.stream(pid))


def test_ctrl_c_in_a_program(path: str, stage: Syscalls, tmp_path: Path) -> None:
    program = (
        "import signal, tokenix\n"
        f"k = tokenix.connect({path!r})\n"
        f"pid = k.spawn([1], max_tokens={LONG})\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    k.wait(pid)\n"
        "except KeyboardInterrupt:\n"
        "    print(k.stat(pid).pid == pid, flush=True)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".lib")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None and client.stdout.readline() == "ready\n"
    until(lambda: any(p.output_tokens for p in stage.ps()))
    client.send_signal(signal.SIGINT)
    out, _ = client.communicate(timeout=60)
    assert out == "True\n" and client.returncode == 0


def test_processes_that_are_gone_are_forgotten(
    serving: Serving, stage: Syscalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that never waits does not grow the server."""
    monkeypatch.setattr("tokenix.syscalls.wire.inflight.LOOK_AT", 16)
    server = serving()
    with tokenix.connect(server.path) as k:
        kept = k.spawn(PROMPT, max_tokens=LONG)
        for _ in range(60):
            pid = k.spawn(PROMPT, max_tokens=1)
            stage.wait(pid)
            assert server.statistics().processes <= 17
        assert k.stat(kept)
