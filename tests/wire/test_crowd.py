"""Five hundred streams, over one connection and over several, of which some are never read and
some break off, while short requests come: everybody is served, and all pages are back at the end.
"""

import random

import anyio
import pytest

from tokenix import aio
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.wire import server as serving_module
from tokenix.tests.wire.conftest import PIPE_TOKENS, Serving
from tokenix.tests.wire.fuzz import resident_bytes, watched_log
from tokenix.tests.wire.raw import until

STREAMS = 500
TOKENS = 2 * PIPE_TOKENS
PROMPT = list(range(20))


async def crowd(path: str, connections: int, seed: int) -> tuple[int, list[int]]:
    """Play it. Short requests that were served, and the tokens that each reader got."""
    draw = random.Random(seed)
    lines = [await aio.connect(path) for _ in range(connections)]
    got: list[int] = []
    served = 0

    async def read(k: aio.Syscalls, tokens: int) -> None:
        pid = await k.spawn(PROMPT, max_tokens=tokens, ignore_eos=True)
        count = 0
        async for result in k.follow(pid):
            count += len(result.outputs)
        got.append(count)

    async def break_off(own: bool) -> None:
        """Half of them close their connection, half only stop to follow and kill their process."""
        k = await aio.connect(path) if own else lines[0]
        pid = await k.spawn(PROMPT, max_tokens=1 << 14)
        with anyio.move_on_after(draw.uniform(0, 2)):
            async for _ in k.follow(pid):
                pass
        if own:
            await k.close()
        else:
            await k.kill(pid, aio.calls.Signal.KILL)
            await k.wait(pid)

    async def short(k: aio.Syscalls) -> None:
        nonlocal served
        pid = await k.spawn(PROMPT, max_tokens=4, qos="interactive")
        async for _ in k.follow(pid):
            pass
        await k.wait(pid)
        served += 1

    async with anyio.create_task_group() as group:
        for number in range(STREAMS):
            k = lines[number % connections]
            if number % 10 == 0:
                group.start_soon(break_off, number % 20 == 0)
            elif number % 10 == 1:
                await k.spawn(PROMPT, max_tokens=1 << 14)  # and nobody ever reads it
            else:
                group.start_soon(read, k, TOKENS if number % 50 == 2 else 40)
        for _ in range(40):
            group.start_soon(short, draw.choice(lines))
            await anyio.sleep(0.05)
    for k in lines:
        await k.close()
    return served, got


@pytest.mark.parametrize("connections", [1, 12])
def test_a_crowd(serving: Serving, stage: Syscalls, seed: int, connections: int) -> None:
    server = serving()
    before = resident_bytes()
    with watched_log() as errors:
        served, got = anyio.run(crowd, server.path, connections, seed)
    assert not errors.records and served == 40
    assert resident_bytes() - before < 256 << 20
    assert sorted(got) == [40] * 390 + [TOKENS] * 10
    until(lambda: server.statistics().connections == 0)
    until(lambda: not stage.ps())
    left = server.statistics()
    assert (left.calls, left.flows, left.processes, left.unsent_bytes) == (0, 0, 0, 0)
    counts = stage.vmstat()
    assert counts["frames.free"] + counts["frames.cached"] == counts["frames.total"]
    assert counts["frames.held"] == counts["frames.in_transfer"] == 0


def test_without_uvloop(
    serving: Serving, stage: Syscalls, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(serving_module, "_new_loop", asyncio.new_event_loop)
    server = serving()
    assert type(server._loop).__module__.startswith("asyncio")
    served, got = anyio.run(crowd, server.path, 3, seed)
    assert served == 40 and len(got) == 400
    until(lambda: server.statistics().connections == 0)
