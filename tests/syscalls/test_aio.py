"""The async calls: the same names, and cancellation that loses nothing."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from tokenix import aio
from tokenix.syscalls.inproc import Syscalls

PROMPT = "Count from one to twenty."


def run(k: Syscalls, story: Callable[[aio.Syscalls], Awaitable[None]]) -> None:
    """Play `story` with the async face of the machine `k`."""
    anyio.run(story, aio.Syscalls(k.port))


def test_streams_of_many_tasks(k: Syscalls) -> None:
    async def story(a: aio.Syscalls) -> None:
        texts: list[str] = []

        async def client() -> None:
            pid = await a.spawn(PROMPT, max_tokens=8)
            texts.append("".join([text async for text in a.stream(pid)]))
            assert (await a.wait(pid)).rusage.output_tokens == 8

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(client)
        assert len(texts) == 12 and len(set(texts)) == 1 and texts[0]

    run(k, story)


def test_cancelled_reads_lose_nothing(k: Syscalls) -> None:
    async def story(a: aio.Syscalls) -> None:
        alone = await a.spawn(PROMPT, max_tokens=40, ignore_eos=True)
        expected = [text async for text in a.stream(alone)]
        pid = await a.spawn(PROMPT, max_tokens=40, ignore_eos=True)
        got: list[str] = []
        ended, patience_s = False, 0.0
        while not ended:
            patience_s += 0.001
            with anyio.move_on_after(patience_s):
                result = await a.read(pid)
                got += [output.text for output in result.outputs]
                if result.turn_ended is not None:
                    got.append(result.turn_ended.tail)
                ended = result.eof
        assert "".join(got) == "".join(expected)
        for each in (alone, pid):
            await a.wait(each)

    run(k, story)


def test_errors_are_those_of_python(k: Syscalls) -> None:
    async def story(a: aio.Syscalls) -> None:
        with pytest.raises(ProcessLookupError):
            await a.read(a_dead_pid := 999_999)  # type: ignore[arg-type]
        with pytest.raises(ChildProcessError):
            await a.wait(a_dead_pid)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="prompt is empty"):
            await a.spawn("")

    run(k, story)


def test_boot_and_leave() -> None:
    async def story() -> None:
        async with await aio.boot("smollm2", device_pages=16) as a:
            pid = await a.spawn("Hi", max_tokens=2)
            assert [text async for text in a.stream(pid)]

    anyio.run(story)
