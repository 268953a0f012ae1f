"""Mutated requests; `fuzz.py` says what, and does more of it if run by itself."""

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest

from tokenix.tests.gateway.corpus import CORPUS
from tokenix.tests.gateway.fuzz import Client, answer_samples, fuzz
from tokenix.tests.gateway.mutants import Mutant, make, request, sound
from tokenix.tests.gateway.stage import SECRET, Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as running:
        yield running


def test_there_is_a_sample_of_every_route(stage: Stage) -> None:
    async def ask() -> bytes:
        (sample,) = [one for one in CORPUS if one.path.startswith("/schema")]
        async with contextlib.aclosing(Client(stage.port)) as client:
            return (await client.ask(sound(sample))).body

    paths = json.loads(asyncio.run(ask()))["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    tried = {(sample.method, sample.path) for sample in CORPUS}
    tried |= {("GET", "/v1/models/{name}") for _, path in tried if path.startswith("/v1/models/")}
    assert described <= tried


def test_what_the_samples_are_is_answered(stage: Stage) -> None:
    asyncio.run(answer_samples(stage.port))


def test_some_hundred_inputs(stage: Stage, seed: int) -> None:
    tally = fuzz(stage, seed, 400)
    assert tally.statuses[200] > 20 and tally.statuses[400] > 100, tally.statuses


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_inputs(stage: Stage, seed: int) -> None:
    fuzz(stage, seed + 1000, 20_000)


def test_an_input_is_a_function_of_its_number() -> None:
    assert [make(3, number) for number in range(40)] == [make(3, number) for number in range(40)]
    assert len({mutant.kind for mutant in (make(3, number) for number in range(200))}) > 6


ANSWERS: dict[str, tuple[bytes, str]] = {
    "a fault of ours": (b"HTTP/1.1 500 x\r\nx-request-id: 1\r\ncontent-length: 2\r\n\r\n{}", "500"),
    "an error in another form": (
        b"HTTP/1.1 400 x\r\nx-request-id: 1\r\ncontent-type: application/json\r\n"
        b"content-length: 2\r\n\r\n{}", "{}"),
    "a secret": (
        b"HTTP/1.1 200 x\r\nx-request-id: 1\r\ncontent-length: %d\r\n\r\n%b"
        % (len(SECRET), SECRET.encode()), SECRET),
    "no answer": (b"", "hung up"),
    "a stream that breaks off": (
        b"HTTP/1.1 200 x\r\nx-request-id: 1\r\ncontent-type: text/event-stream\r\n"
        b"content-length: 14\r\n\r\ndata: {\"a\":1}\n", "data"),
}  # fmt: skip
"""What a gateway must not say -> a word of the complaint."""


@pytest.mark.parametrize("name", ANSWERS)
def test_what_may_not_be_is_noticed(name: str) -> None:
    said, word = ANSWERS[name]

    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, contextlib.aclosing(Client(port)) as client:
            await client.send(Mutant("x", [request(CORPUS[0], b"{}")], whole=True))

    with pytest.raises(AssertionError) as complaint:
        asyncio.run(run())
    assert word in str(complaint.value)
