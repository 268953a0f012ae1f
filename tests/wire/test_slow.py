"""Clients that do not read: they cost bounded memory, hold only themselves, and lose nothing."""

import contextlib
import threading
import time

import anyio
import pytest

import tokenix
from tokenix import aio
from tokenix.kernel import calls
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.texts import SpawnText
from tokenix.syscalls.wire import abi
from tokenix.tests.wire.conftest import PIPE_TOKENS, Serving
from tokenix.tests.wire.raw import Raw, until

PROMPT = [1, 2, 3]


def test_scenario_g1_an_unread_stream_is_bounded(serving: Serving, stage: Syscalls) -> None:
    """A stream whose credit is used up fills its pipe and is held there: neither the socket nor the
    server grow, and all of it comes when it is read."""
    server = serving()
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText(PROMPT, {"max_tokens": 3 * PIPE_TOKENS}))
        raw.send(abi.Follow(50, pid, 16))
        until(lambda: stage.stat(pid).unread_tokens >= PIPE_TOKENS)
        until(lambda: "pipe" in stage.stat(pid).held)
        assert stage.stat(pid).output_tokens <= 16 + PIPE_TOKENS + 1
        assert server.statistics().unsent_bytes == 0
        got: list[int] = []
        ended = False
        while not ended:
            result = raw.receive().result
            got += [output.token for output in result.outputs]
            ended = result.eof
            raw.send(abi.Grant(50, len(result.outputs)))
        assert len(got) == 3 * PIPE_TOKENS


def test_a_client_that_reads_nothing_is_not_read_either(serving: Serving, stage: Syscalls) -> None:
    """It asks and asks and never takes an answer: then its budget is full and the rest waits in its
    own socket. When it reads at last, everything is answered."""
    server = serving(client_out_bytes=20_000, answer_bytes=1 << 20)
    asked = 3000
    with Raw(server.path) as raw, tokenix.connect(server.path) as good:
        raw.socket.setblocking(False)
        sent, unsent = 0, b""
        from msgspec import msgpack

        from tokenix.tests.wire.raw import framed

        while sent < asked:
            unsent = unsent or framed(msgpack.encode(abi.Ask(sent + 1, calls.Vmstat())))
            try:
                unsent = unsent[raw.socket.send(unsent) :]
            except BlockingIOError:
                break
            sent += not unsent
        until(lambda: server.statistics().blocked == 1)
        assert server.statistics().unsent_bytes < 1_000_000  # of 5 MB: what was asked at one go
        assert good.vmstat()  # others do not notice
        raw.socket.setblocking(True)
        raw.socket.settimeout(60)
        for number in range(1, sent + 1):
            assert raw.receive().id == number
        raw.socket.sendall(unsent)
        until(lambda: server.statistics().blocked == 0)


def test_flows_of_a_blocked_client_take_nothing_from_the_kernel(
    serving: Serving, stage: Syscalls
) -> None:
    server = serving(client_out_bytes=4096, answer_bytes=1 << 20)
    with Raw(server.path) as raw:
        pids = [raw.call(SpawnText(PROMPT, {"max_tokens": 1000, "logprobs": 0})) for _ in range(40)]
        for pid in pids:
            raw.send(abi.Follow(1000 + pid, pid, 1024))
        until(lambda: server.statistics().blocked == 1)
        until(lambda: all("pipe" in process.held for process in stage.ps()))
        before = sum(process.output_tokens for process in stage.ps())
        assert before < 40 * 1000
        got = {1000 + pid: 0 for pid in pids}
        ended = 0
        while ended < len(pids):
            delta = raw.receive()
            got[delta.id] += len(delta.result.outputs)
            ended += delta.result.eof
        assert set(got.values()) == {1000}


def test_scenario_g2_a_stalled_client_does_not_hold_the_others(
    serving: Serving, stage: Syscalls
) -> None:
    """Pings and output to a client whose socket is full wait for that client alone."""
    server = serving(client_out_bytes=4096, answer_bytes=1 << 20, ping_s=0.05, silent_s=60)
    stalled = [Raw(server.path) for _ in range(8)]
    for raw in stalled:
        raw.send(*[abi.Ask(number, calls.Vmstat()) for number in range(1, 1000)])
    until(lambda: server.statistics().blocked == 8)
    with tokenix.connect(server.path) as k:
        for _ in range(5):
            began_s = time.monotonic()
            pid = k.spawn(PROMPT, max_tokens=20)
            assert len("".join(k.stream(pid)).split()) == 20
            k.wait(pid)
            assert time.monotonic() - began_s < 30
    for raw in stalled:
        raw.close()
    until(lambda: server.statistics().connections == 0)


def test_output_does_not_wait_for_a_busy_server(serving: Serving, stage: Syscalls) -> None:
    """Whoever has it writes it into the socket. What needs the server comes when that has time, in
    its place: the end, and output for which the socket has no room."""
    server = serving()
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText(PROMPT, {"max_tokens": 400}))
        raw.send(abi.Follow(50, pid, 1000))
        first = raw.receive()
        busy, released = threading.Event(), threading.Event()
        server._loop.call_soon_threadsafe(lambda: (busy.set(), released.wait(60)))
        assert busy.wait(60)
        got = [output.token for output in first.result.outputs]
        try:
            while len(got) < 200:
                got += [output.token for output in raw.receive().result.outputs]
            assert not released.is_set()
        finally:
            released.set()
        delta = None
        while delta is None or delta.result.turn_ended is None:
            delta = raw.receive()
            got += [output.token for output in delta.result.outputs]
        assert got == list(stage.tail(pid, 400))


def test_what_all_have_unsent_is_bounded(serving: Serving, stage: Syscalls) -> None:
    limits = {"client_out_bytes": 300_000, "all_out_bytes": 400_000, "answer_bytes": 1 << 20}
    server = serving(calls=20, **limits)
    stalled = [Raw(server.path) for _ in range(12)]
    for raw in stalled:
        raw.send(*[abi.Ask(number, calls.Vmstat()) for number in range(1, 1000)])

    def bounded() -> bool:
        now = server.statistics()
        assert now.unsent_bytes <= 400_000 + 12 * 20 * 4000, "a turn of the loop is on top"
        return now.blocked + 12 - now.connections == 12

    until(bounded)
    until(lambda: server.statistics().unsent_bytes <= 400_000)
    for raw in stalled:
        raw.close()
    until(lambda: server.statistics().connections == 0)


def test_scenario_g4_there_is_one_end_always(serving: Serving, stage: Syscalls) -> None:
    """Whatever ends a stream, its reader is told once, by an end or an error, never by silence."""
    server = serving()

    async def story() -> None:
        async with await aio.connect(server.path) as k:
            ends: list[str] = []

            async def reader(pid: calls.Pid) -> None:
                try:
                    async for result in k.follow(pid):
                        if result.eof:
                            assert result.reason is not None
                            ends.append(result.reason.value)
                except OSError as problem:
                    ends.append(type(problem).__name__)

            async def end_by(how: str, **options: object) -> None:
                pid = await k.spawn(PROMPT, **{"max_tokens": 50_000, **options})  # type: ignore[arg-type]
                async with anyio.create_task_group() as group:
                    group.start_soon(reader, pid)
                    if how == "killed":
                        await k.read(pid)
                        await k.kill(pid, tokenix.SIGKILL)
                    elif how == "reaped":
                        await k.kill(pid, tokenix.SIGSTOP)
                        await k.kill(pid, tokenix.SIGTERM)
                with contextlib.suppress(ChildProcessError):
                    await k.wait(pid)
                assert len(ends) == 1, ends
                ends.clear()

            await end_by("length", max_tokens=30)
            await end_by("killed")
            await end_by("reaped")
            await end_by("deadline", deadline_s=0.05)
            await end_by("pages", max_pages=2)

    anyio.run(story)
    assert server.statistics().flows == 0


def test_a_flow_whose_process_is_reaped_by_another(serving: Serving, stage: Syscalls) -> None:
    server = serving()
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText(PROMPT, {"max_tokens": 1, "keep_open": True}))
        while raw.call(calls.Read(pid)).turn_ended is None:
            pass
        raw.send(abi.Follow(50, pid, 5))
        until(lambda: server.statistics().flows == 1)
        stage.kill(pid, tokenix.SIGKILL)
        assert raw.receive().result.eof
        stage.wait(pid)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_flow_can_be_taken_back(serving: Serving, stage: Syscalls, stopped: bool) -> None:
    server = serving()
    with Raw(server.path) as raw:
        pid = raw.call(SpawnText(PROMPT, {"max_tokens": 100}))
        raw.send(abi.Follow(50, pid, 10))
        got = 0
        if stopped:  # its credit is used up, and no read is in the kernel
            while got < 10:
                got += len(raw.receive().result.outputs)
        raw.send(abi.Ask(51, calls.CancelCall(50)))
        kinds = []
        while not kinds or not isinstance(kinds[-1], abi.Answer):
            kinds.append(raw.receive())
            if isinstance(kinds[-1], abi.Delta):
                got += len(kinds.pop().result.outputs)
        assert isinstance(kinds[0], abi.Fail) and kinds[0].id == 50
        rest = 0
        while got + rest < 100:
            rest += len(raw.call(calls.Read(pid)).outputs)
        assert got + rest == 100
    assert server.statistics().flows == 0
