"""What a streamed token costs at the socket, in time on the processor; and what short requests
feel of five hundred streams, some of which are never read or break off.

    this process: a kernel in rehearsal, its server        another process: one asyncio client

Beside the first, in the same run, a bare asyncio server and client send as many messages of the
same size, each there and back.
"""

import asyncio
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenix
from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.types import Pid
from tokenix.syscalls.wire.server import Server, serve

MESSAGE = b"x" * 96
"""About what one token of a flow has, with its length."""
PATIENT = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
PROMPT = list(range(32))


@dataclass(frozen=True, slots=True)
class Report:
    streams: int
    tokens: int
    """Of one round, all streams together."""
    client_us: float
    """For each token; medians of the rounds."""
    server_us: float
    """The time of all threads beside the kernel's work with streams that nobody reads."""
    echo_us: float
    """For each message of the bare pair, both sides together."""
    ratio: float
    """Of client and server together to that."""

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def measure(streams: int = 256, tokens: int = 200, step_s: float = 0.03, rounds: int = 3) -> Report:
    """`tokens` of each stream, one in a forward pass of `step_s` seconds. OSError as `serve`."""
    count = streams * tokens
    client_us, server_us, echo_us = [], [], []
    with _served(streams, step_s) as server, _other_process() as other:
        other.submit(_play_all, server.path, streams, 8, True).result()  # warm
        for _ in range(rounds):
            here_s = []
            for read in (False, True):
                before_s = time.process_time()
                spent_s = other.submit(_play_all, server.path, streams, tokens, read).result()
                here_s.append(time.process_time() - before_s)
            client_us.append(spent_s / count * 1e6)
            server_us.append((here_s[1] - here_s[0]) / count * 1e6)
            echo_us.append(other.submit(_echo_all, streams, tokens, step_s).result() / count * 1e6)
    client, side, bare = map(statistics.median, (client_us, server_us, echo_us))
    return Report(streams, count, client, side, bare, (client + side) / bare)


@dataclass(frozen=True, slots=True)
class Crowd:
    """First tokens of short requests, in milliseconds, beside the readers alone, and with those who
    do not read or break off."""

    streams: int
    requests: int
    alone_p50_ms: float
    alone_p95_ms: float
    beside_p50_ms: float
    beside_p95_ms: float
    ratio_p50: float
    ratio_p95: float
    most_unsent_bytes: int

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def measure_crowd(
    streams: int = 500,
    seconds: float = 5.0,
    rate: float = 20.0,
    step_s: float = 0.05,
    rounds: int = 4,
) -> Crowd:
    """Short requests at `rate` a second, beside `streams` streams over ten connections, of which a
    tenth is never read and a tenth breaks off at random times; in turns with and without these, so
    long each, as what else the machine does changes."""
    unsent = 0
    alone: list[float] = []
    beside: list[float] = []
    with _served(streams + 200, step_s) as server, _other_process() as other:
        other.submit(_crowd, server.path, streams // 10, False, 2.0, rate).result()  # warm
        for _ in range(rounds):
            for rude, times_s in ((False, alone), (True, beside)):
                played = other.submit(_crowd, server.path, streams, rude, seconds, rate)
                while not played.done():
                    unsent = max(unsent, server.statistics().unsent_bytes)
                    time.sleep(0.1)
                times_s.extend(played.result())
    old, new = _quantiles(alone), _quantiles(beside)
    return Crowd(streams, len(alone), *old, *new, new[0] / old[0], new[1] / old[1], unsent)


# ---- this process ----


@contextmanager
def _served(running: int, step_s: float) -> Iterator[Server]:
    tunables = {**PATIENT, "max_running": float(running + 8), "step_tokens": 16_384.0}
    with (
        tempfile.TemporaryDirectory() as folder,
        rehearse(pages=1 << 17, host_pages=1024, step_s=step_s, tunables=tunables) as k,
        serve(k.port, Path(folder) / "k.sock") as server,
    ):
        yield server


@contextmanager
def _other_process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


# ---- the other process ----


def _play_all(path: str, streams: int, tokens: int, read: bool) -> float:
    """Seconds on the processor for all tokens of so many streams over one connection; without
    `read` only their ends are waited for."""

    async def follow(k: Syscalls, pid: Pid) -> None:
        async for _ in k.follow(pid):
            pass

    async def play() -> float:
        async with await tokenix.aio.connect(path) as k:
            pids = [
                await k.spawn(PROMPT, max_tokens=tokens, tokens_per_s=1000.0)
                for _ in range(streams)
            ]
            before_s = time.process_time()
            if read:
                await asyncio.gather(*(follow(k, pid) for pid in pids))
            for pid in pids:
                await k.wait(pid)
            return time.process_time() - before_s

    return asyncio.run(play())


def _echo_all(streams: int, messages: int, step_s: float) -> float:
    """Seconds on the processor for a bare server and client, `streams` messages in each step."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(data)

    async def play(path: str) -> float:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(Echo, path)
        reader, writer = await asyncio.open_unix_connection(path)
        frame = len(MESSAGE).to_bytes(4, "little") + MESSAGE
        before_s = time.process_time()
        for _ in range(messages):
            for _ in range(streams):
                writer.write(frame)
            for _ in range(streams):
                size = int.from_bytes(await reader.readexactly(4), "little")
                await reader.readexactly(size)
            await asyncio.sleep(step_s / 10)
        spent_s = time.process_time() - before_s
        writer.close()
        server.close()
        return spent_s

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(play(f"{folder}/echo.sock"))


def _crowd(path: str, streams: int, rude: bool, seconds: float, rate: float) -> list[float]:
    """Seconds to the first token of each short request. Of the streams the rude fifth is there only
    if `rude`."""
    return asyncio.run(_play_crowd(path, streams, rude, seconds, rate))


async def _play_crowd(
    path: str, streams: int, rude: bool, seconds: float, rate: float
) -> list[float]:
    draw = random.Random(1)
    lines = [await tokenix.aio.connect(path) for _ in range(10)]

    async def read(k: Syscalls) -> None:
        pid = await k.spawn(PROMPT, max_tokens=1 << 14)
        async for _ in k.follow(pid):
            pass

    async def break_off() -> None:
        async with await tokenix.aio.connect(path) as k:
            task = asyncio.create_task(read(k))
            await asyncio.sleep(draw.uniform(0, seconds))
            task.cancel()
            await asyncio.wait([task])

    tasks = []
    for number in range(streams):
        k = lines[number % len(lines)]
        if number % 10 > 1:
            tasks.append(asyncio.create_task(read(k)))
        elif rude and number % 10 == 1:
            await k.spawn(PROMPT, max_tokens=1 << 14)
        elif rude:
            tasks.append(asyncio.create_task(break_off()))
    await asyncio.sleep(1.0)
    times_s = await _short_requests(path, seconds, rate)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for k in lines:
        await k.close()
    return times_s


async def _short_requests(path: str, seconds: float, rate: float) -> list[float]:
    times_s: list[float] = []

    async def ask(k: Syscalls) -> None:
        began_s = time.monotonic()
        pid = await k.spawn(PROMPT, max_tokens=4, qos="interactive")
        results = k.follow(pid)
        await anext(results)
        times_s.append(time.monotonic() - began_s)
        async for _ in results:
            pass
        await k.wait(pid)

    async with await tokenix.aio.connect(path) as k, asyncio.TaskGroup() as group:
        for _ in range(int(seconds * rate)):
            group.create_task(ask(k))
            await asyncio.sleep(1 / rate)
    return times_s


def _quantiles(times_s: list[float]) -> tuple[float, float]:
    """P50 and P95, in milliseconds."""
    ordered = sorted(times_s)
    return 1e3 * statistics.median(ordered), 1e3 * ordered[int(0.95 * (len(ordered) - 1))]
