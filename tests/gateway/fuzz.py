"""Mutated requests for the gateway, from a seed, over HTTP: `mutants.py` says what, `stage.py` to
whom.

    python -m tokenix.tests.gateway.fuzz --inputs 100000
    python -m tokenix.tests.gateway.fuzz --seed 1 --only 4711      one input again, and its answer

Whatever comes is answered within a limit, or hung up on if it is no HTTP; nothing is a fault of the
server's (5xx), each error has OpenAI's shape, and nothing tells of the server's insides. After each
round nothing is left: no process, no descriptor, no thread, no memory, nothing in the logs.
"""

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tokenix.gateway.errors import MESSAGE_CHARS
from tokenix.tests.gateway.corpus import CORPUS
from tokenix.tests.gateway.house import count_used, until
from tokenix.tests.gateway.mutants import Mutant, make, sound
from tokenix.tests.gateway.stage import METRICS_KEY, ROOT_KEY, SECRET, TENANT_KEY, Stage

ANSWER_S = 120.0
"""Within which everything is answered, on a busy machine too."""
CLIENTS = 32
ROUND = 1000
GROWTH_BYTES = 64 << 20
"""Of memory that a process may hold more after all rounds than after the first."""
INSIDES = (b"Traceback", b"site-packages", b'File "', b".py", sys.prefix.encode(), SECRET.encode())
SECRETS = (TENANT_KEY, ROOT_KEY, METRICS_KEY)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(slots=True)
class Answer:
    """What came back, as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Tally:
    """What a run has seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    """0: hung up on."""
    slowest_s: float = 0.0
    number: int = 0
    """Of the next input."""
    faults: list[str] = field(default_factory=list)
    """What went wrong, and how to have it again."""


class Client:
    """One client, with a connection that it keeps as long as it can."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, mutant: Mutant) -> list[int]:
        """Send it; the statuses of its answers. AssertionError for an answer that may not be."""
        async with asyncio.timeout(ANSWER_S):
            if mutant.whole:
                answer = await self.ask(mutant)
                check(mutant, answer)
                return [answer.status]
            said = await self.throw(mutant)
        check_raw(mutant, said)
        return [int(status) for status in STATUS.findall(said)] or [0]

    async def aclose(self) -> None:
        """Hang up."""
        if self._streams is not None:
            (_, writer), self._streams = self._streams, None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ask(self, mutant: Mutant) -> Answer:
        """One answer to one request. Again, where the server hung up on a connection that idled."""
        fresh = self._streams is None
        reader, writer = await self._open()
        try:
            writer.writelines(mutant.pieces)
            answer = await read_answer(reader, mutant.method)
        except (ConnectionError, asyncio.IncompleteReadError) as why:
            await self.aclose()
            assert not fresh, f"hung up without an answer: {why!r}"
            return await self.ask(mutant)
        if answer.headers.get("connection") == "close":
            await self.aclose()
        return answer

    async def throw(self, mutant: Mutant) -> bytes:
        """All that comes back for what may be no HTTP, until the connection is closed."""
        await self.aclose()
        reader, writer = await self._open()
        said = b""
        with contextlib.suppress(OSError):  # hung up on
            for piece in mutant.pieces:
                writer.write(piece)
                await writer.drain()
                if mutant.pause_s:
                    await asyncio.sleep(mutant.pause_s)
            if mutant.hang_up:
                writer.write_eof()
            while more := await reader.read(1 << 16):
                said += more
        await self.aclose()
        return said

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        return self._streams


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    status = int(first.removeprefix("HTTP/1.1 ")[:3])
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = b""
    if method == "HEAD":
        pass
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        assert headers["transfer-encoding"] == "chunked", headers
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    return Answer(status, headers, body)


def check(mutant: Mutant, answer: Answer) -> None:
    """The answer to one request of sound HTTP."""
    status, body, headers = answer.status, answer.body, answer.headers
    check_insides(mutant, body + repr(headers).encode())
    assert "x-request-id" in headers, headers
    assert status < 500 or (status in (503, 504) and "retry-after" in headers), (status, body)
    assert status != 429 or "retry-after" in headers, headers
    if mutant.method == "HEAD":
        return
    media = headers.get("content-type", "").partition(";")[0]
    if status >= 400:
        assert media == "application/json", headers
        error = json.loads(body)
        assert set(error) == {"error"}, error
        assert set(error["error"]) == {"message", "type", "param", "code"}, error
        message = error["error"]["message"]
        assert message and message.isprintable() and len(message) <= MESSAGE_CHARS, message
    elif media == "text/event-stream":
        check_stream(body)
    elif media in ("application/json", "application/vnd.oai.openapi+json"):
        json.loads(body)
    else:
        assert media == "text/plain", headers


def check_stream(body: bytes) -> None:
    """A stream of events is whole, and each of its events JSON."""
    assert body.endswith(b"\n\n"), body[-200:]
    data = [
        line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")
    ]
    last = data.pop() if data and data[-1] == b"[DONE]" else None
    events = [json.loads(event) for event in data]
    assert last is not None or "response" in events[-1], events[-1]
    assert "error" not in events[-1], events[-1]


def check_raw(mutant: Mutant, said: bytes) -> None:
    """All that came back for what may be no HTTP."""
    check_insides(mutant, said)
    assert not said or said.startswith(b"HTTP/1.1 "), said[:200]
    for status in STATUS.findall(said):
        assert int(status) < 500 or int(status) in (503, 504), said


def check_insides(mutant: Mutant, said: bytes) -> None:
    """Nothing of the server that its clients need not know, unless they have sent it."""
    for word in INSIDES:
        assert word not in said or any(word in piece for piece in mutant.pieces), (word, said)
    for secret in SECRETS:
        assert secret.encode() not in said or secret in mutant.secrets, (secret, said)


def check_logs(stage: Stage) -> None:
    """A client's mistakes are no faults of the server's."""
    for name in stage.processes:
        log = stage.log(name)
        assert "Traceback" not in log and '"level": "error"' not in log, log[-4000:]
        assert "kernel lost" not in log, log[-4000:]
        assert "request failed" not in log and "generation failed" not in log, log[-4000:]


async def play(stage: Stage, seed: int, inputs: int, tally: Tally) -> None:
    """One round."""
    last = tally.number + inputs

    async def client() -> None:
        async with contextlib.aclosing(Client(stage.port)) as one:
            while (number := tally.number) < last:
                tally.number += 1
                mutant, began_s = make(seed, number), time.monotonic()
                try:
                    tally.statuses.update(await one.send(mutant))
                except (AssertionError, OSError, ValueError, KeyError, EOFError) as why:
                    what = f"--seed {seed} --only {number} ({mutant.kind}): {why!r}"
                    tally.faults.append(what[:600])
                    await one.aclose()
                if mutant.whole:
                    tally.slowest_s = max(tally.slowest_s, time.monotonic() - began_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())


def fuzz(stage: Stage, seed: int, inputs: int) -> Tally:
    """`inputs` of `seed`, in rounds; what is left is looked for after each."""
    tally = Tally()
    with stage.calls() as k:
        first = None
        while tally.number < inputs:
            asyncio.run(play(stage, seed, min(ROUND, inputs - tally.number), tally))
            assert not tally.faults, "\n".join(tally.faults[:20])
            until(lambda: not k.ps(), ANSWER_S)
            until(lambda: count_used(k) == 0, ANSWER_S)
            check_logs(stage)
            if first is None:
                first = stage.sizes()
            for name, size in first.items():
                until(lambda name=name, size=size: (
                    (now := stage.sizes()[name]).files <= size.files
                    and now.threads <= size.threads
                ), ANSWER_S)  # fmt: skip
                grown = stage.sizes()[name].resident_bytes - size.resident_bytes
                assert grown < GROWTH_BYTES, f"the {name} holds {grown >> 20} MiB more"
    return tally


async def answer_samples(port: int) -> None:
    """Whatever the mutants are made of is answered with 200; on a busy machine perhaps not the
    first time, since the stage lets go of what takes long."""
    async with contextlib.aclosing(Client(port)) as client:
        for sample in CORPUS:
            statuses = [await client.send(sound(sample))]
            while statuses[-1] in ([408], [503]) and len(statuses) < 10:
                statuses.append(await client.send(sound(sample)))
            assert statuses[-1] == [200], (sample, statuses)


async def show(port: int, mutant: Mutant) -> None:
    """Send one input, and print it and its answer."""
    print(mutant.kind, mutant.pieces)  # noqa: T201
    async with contextlib.aclosing(Client(port)) as client:
        print(await (client.ask(mutant) if mutant.whole else client.throw(mutant)))  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder)) as stage:
        if options.only is not None:
            asyncio.run(show(stage.port, make(options.seed, options.only)))
            check_logs(stage)
            return
        asyncio.run(answer_samples(stage.port))
        before, began_s = stage.sizes(), time.monotonic()
        tally = fuzz(stage, options.seed, options.inputs)
        took_s = time.monotonic() - began_s
        print(  # noqa: T201
            f"{tally.number} inputs in {took_s:.0f} s, slowest answer {tally.slowest_s:.1f} s, "
            f"statuses {dict(sorted(tally.statuses.items()))}\n{before}\n{stage.sizes()}"
        )


if __name__ == "__main__":
    main()
