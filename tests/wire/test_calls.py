"""The calls over a socket are the calls in process: the same names, tokens, errors."""

import signal
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

import tokenix
from tokenix import aio
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.types import ReadResult, text_of
from tokenix.syscalls.wire.server import Server

PROMPT = "Count from one to twenty."


def run(server: Server, story: Callable[[aio.Syscalls], Awaitable[None]]) -> None:
    async def play() -> None:
        async with await aio.connect(server.path) as k:
            await story(k)

    anyio.run(play)


def test_output_is_the_same_as_in_process(machine: Syscalls, k: Syscalls) -> None:
    options = [
        {"max_tokens": 24},
        {"max_tokens": 24, "temperature": 0.9, "seed": 7, "logprobs": 2},
        {"max_tokens": 24, "stop": [" three", "four"], "repetition_penalty": 1.2},
    ]
    for option in options:
        results = []
        for caller in (machine, k):
            pid = caller.spawn(PROMPT, **option)
            outputs, tail, reason = [], "", None
            while reason is None:
                result = caller.read(pid)
                outputs += result.outputs
                tail += result.turn_ended.tail if result.turn_ended else ""
                reason = result.reason
            assert caller.wait(pid).rusage.output_tokens == len(outputs)
            shown = [(o.token, o.text, o.logprob, o.top) for o in outputs]
            results.append((shown, tail, reason))
        assert results[0] == results[1]


def test_pushed_output_is_the_same_as_read(server: Server, k: Syscalls) -> None:
    pid = k.spawn(PROMPT, max_tokens=200, ignore_eos=True)
    expected = "".join(k.stream(pid))
    k.wait(pid)

    async def story(a: aio.Syscalls) -> None:
        pids = [await a.spawn(PROMPT, max_tokens=200, ignore_eos=True) for _ in range(3)]
        texts: list[str] = []

        async def reader(pid: tokenix.aio.Pid) -> None:
            texts.append("".join([text async for text in a.stream(pid)]))
            assert (await a.wait(pid)).rusage.output_tokens == 200

        async with anyio.create_task_group() as group:
            for pid in pids:
                group.start_soon(reader, pid)
        assert texts == [expected] * 3

    run(server, story)
    assert server.statistics().flows == 0


def test_a_flow_that_is_left_loses_nothing(server: Server, k: Syscalls) -> None:
    pid = k.spawn(PROMPT, max_tokens=60, ignore_eos=True)
    expected = "".join(k.stream(pid))
    k.wait(pid)

    async def story(a: aio.Syscalls) -> None:
        pid = await a.spawn(PROMPT, max_tokens=60, ignore_eos=True)
        got: list[str] = []
        ended, patience_s = False, 0.0
        while not ended:
            patience_s += 0.002
            with anyio.move_on_after(patience_s):
                async for result in a.follow(pid):
                    got += [output.text for output in result.outputs]
                    if result.turn_ended is not None:
                        got.append(result.turn_ended.tail)
                        ended = True
        assert "".join(got) == expected
        await a.wait(pid)

    run(server, story)


def test_output_is_poured_and_what_takes_it_may_wait(k: Syscalls, server: Server) -> None:
    pid = k.spawn(PROMPT, max_tokens=100, ignore_eos=True)
    expected = "".join(k.stream(pid))
    k.wait(pid)

    async def story(a: aio.Syscalls) -> None:
        async def reader(every: int) -> None:
            """Of each `every` results it waits before the next one is taken."""
            pid = await a.spawn(PROMPT, max_tokens=100, ignore_eos=True)
            texts: list[str] = []
            waiting = False

            async def wait() -> None:
                await anyio.sleep(0.001)
                nonlocal waiting
                waiting = False

            def take(result: ReadResult) -> Callable[[], Awaitable[None]] | None:
                nonlocal waiting
                assert not waiting
                texts.append(text_of(result))
                waiting = len(texts) % every == 0
                return wait if waiting else None

            await a.pour(pid, take)
            assert "".join(texts) == expected
            await a.wait(pid)

        async with anyio.create_task_group() as group:
            for every in (1, 3, 1000):
                group.start_soon(reader, every)

    run(server, story)
    assert server.statistics().flows == 0


def test_what_is_poured_and_not_taken_is_kept(k: Syscalls, server: Server) -> None:
    pid = k.spawn(PROMPT, max_tokens=60, ignore_eos=True)
    expected = "".join(k.stream(pid))
    k.wait(pid)

    async def story(a: aio.Syscalls) -> None:
        pid = await a.spawn(PROMPT, max_tokens=60, ignore_eos=True)
        texts: list[str] = []

        def fail_at_times(result: ReadResult) -> None:
            texts.append(text_of(result))
            if len(texts) % 3 == 0 and result.turn_ended is None:  # behind the end there is nothing
                raise ValueError("enough for now")

        patience_s, failures = 0.0, 0
        while True:
            patience_s += 0.002
            try:
                with anyio.move_on_after(patience_s):
                    await a.pour(pid, fail_at_times)
                    break
            except ValueError:
                failures += 1
        assert failures and "".join(texts) == expected
        await a.wait(pid)
        with pytest.raises(ProcessLookupError):
            await a.pour(pid, fail_at_times)

    run(server, story)


def test_a_blocking_stream_is_one_flow(server: Server, k: Syscalls) -> None:
    expected = ""
    for left_after in (1000, 1, 20):
        pid = k.spawn(PROMPT, max_tokens=80, ignore_eos=True)
        pieces: list[str] = []
        stream = k.stream(pid)
        for piece in stream:
            pieces.append(piece)
            if len(pieces) == 1:
                assert server.statistics().flows == 1
            if len(pieces) == left_after:
                break
        stream.close()  # type: ignore[attr-defined]
        assert server.statistics().flows == 0
        if left_after < 1000:
            pieces += k.stream(pid)
        expected = expected or "".join(pieces)
        assert "".join(pieces) == expected
        assert k.wait(pid).rusage.output_tokens == 80


def test_a_further_turn(k: Syscalls) -> None:
    pid = k.spawn("Say hello.", max_tokens=8, keep_open=True)
    first = "".join(k.stream(pid))
    k.write(pid, "And now goodbye.", eof=True)
    assert first and "".join(k.stream(pid))
    k.wait(pid)


def test_errors_are_those_of_python(k: Syscalls) -> None:
    with pytest.raises(ProcessLookupError, match="no process 999999"):
        k.read(999_999)
    with pytest.raises(ChildProcessError):
        k.wait(999_999)
    with pytest.raises(OSError, match="prompt is empty"):
        k.spawn("")
    with pytest.raises(OSError, match=r"no option 'colour'; there are .*nice"):
        k.spawn("Hi", colour="red")  # type: ignore[call-arg]
    with pytest.raises(OSError, match="KV pages"):
        k.spawn("Hi", max_tokens=8000)
    with pytest.raises(OSError, match="cannot be sent"):
        k.spawn(object())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="cannot be sent"):
        k.spawn("Hi", seed=1 << 80)
    with pytest.raises(OSError, match="a number in it has more than 64 bits"):
        k.swapon("/tmp", 10**30)
    with pytest.raises(OSError, match="longer than"):
        k.spawn("x" * (5 << 20))
    assert k.vmstat()


def test_what_the_machine_says_of_itself(machine: Syscalls, k: Syscalls) -> None:
    assert k.model() == machine.model()
    assert k.tokenize("Hi") == machine.tokenize("Hi")
    assert k.detokenize(k.tokenize("Hi", raw=True)).endswith("Hi")
    assert k.sysctl("sched.target_stream_s") == 600.0
    k.sysctl("sched.target_stream_s", 600.0)
    assert machine.sysctl("sched.target_stream_s") == 600.0
    assert set(k.vmstat()) == set(machine.vmstat())
    pid = k.spawn(PROMPT, max_tokens=4, name="mine")
    assert [process.name for process in k.ps()] == ["mine"] and k.stat(pid).tenant == "default"
    assert "".join(k.stream(pid))
    assert k.trace(pid) == machine.trace(pid)
    assert k.maps(pid) == machine.maps(pid)
    assert k.framemap("host").total == machine.framemap("host").total
    assert [process.pid for process in k.ps([pid, 999_999])] == [pid]
    assert [node.name for node in k.prefixes()] == [node.name for node in machine.prefixes()]
    assert k.plan().decisions == machine.plan().decisions
    k.wait(pid)


def test_forks(k: Syscalls) -> None:
    pid = k.spawn(PROMPT, max_tokens=30, ignore_eos=True)
    k.read(pid, max_tokens=1)
    children = k.fork(pid, 2)
    texts = ["".join(k.stream(child)) for child in (pid, *children)]
    assert texts[1] == texts[2] and texts[0].endswith(texts[1])
    for each in (pid, *children):
        k.wait(each)


def test_as_a_tenant(k: Syscalls) -> None:
    tenant = k.as_tenant("ann")
    pid = tenant.spawn(PROMPT, max_tokens=4)
    assert [process.tenant for process in tenant.ps()] == ["ann"]
    with pytest.raises(ProcessLookupError):
        k.as_tenant("bob").stat(pid)
    with pytest.raises(PermissionError):
        tenant.trace()
    assert "".join(tenant.stream(pid))
    tenant.wait(pid)


def test_an_interrupted_call_takes_nothing(k: Syscalls) -> None:
    pid = k.spawn(PROMPT, max_tokens=2, keep_open=True)
    "".join(k.stream(pid))
    caller = threading.get_ident()
    threading.Timer(0.2, signal.pthread_kill, (caller, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        k.read(pid)
    with pytest.raises(TimeoutError):
        k.read(pid, timeout_s=0.05)
    k.write(pid, "Go on.", eof=True)
    assert "".join(k.stream(pid))
    k.wait(pid)
