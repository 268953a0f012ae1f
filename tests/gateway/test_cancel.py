"""A client that goes away takes its processes with it, whatever they were doing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from litestar.types import Send

import tokenix
from tokenix.gateway.answer import Answer, Events
from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.generation import Generation
from tokenix.gateway.job import Job
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import Gateway, count_used, open_gateway, rest, until

LONG = {"max_tokens": 700, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
def test_while_it_decodes(gateway: Gateway, k: Syscalls, stream: bool) -> None:
    wire = gateway.chat(stream=stream, **LONG)
    until(lambda: any(process.output_tokens > 2 for process in k.ps()))
    wire.close()
    rest(k)


@pytest.mark.parametrize("stream", [False, True])
def test_while_its_prompt_is_computed(gateway: Gateway, k: Syscalls, stream: bool) -> None:
    messages = [{"role": "user", "content": "word " * 400}]
    wire = gateway.chat(stream=stream, messages=messages, max_tokens=5)
    until(lambda: any(process.output_tokens == 0 for process in k.ps()))
    wire.close()
    rest(k)


@pytest.mark.parametrize("stream", [False, True])
def test_while_it_is_queued(gateway: Gateway, k: Syscalls, stream: bool) -> None:
    big = k.spawn("Wait.", max_tokens=900, ignore_eos=True)
    k.read(big)
    wires = [gateway.chat(stream=stream, **LONG) for _ in range(4)]
    until(lambda: len(k.ps()) == 5)
    for wire in wires:
        wire.close()
    until(lambda: len(k.ps()) == 1)
    k.kill(big, tokenix.SIGKILL)
    k.wait(big)


@pytest.mark.parametrize("stream", [False, True])
def test_while_it_is_stopped(gateway: Gateway, k: Syscalls, stream: bool) -> None:
    wire = gateway.chat(stream=stream, **LONG)
    (process,) = until(k.ps)
    k.kill(process.pid, tokenix.SIGSTOP)
    until(lambda: k.stat(process.pid).held)
    wire.close()
    rest(k)


@pytest.mark.parametrize("stream", [False, True])
def test_while_further_requests_wait_behind_it(gateway: Gateway, k: Syscalls, stream: bool) -> None:
    wire = gateway.chat(stream=stream, **LONG)
    (process,) = until(k.ps)
    k.kill(process.pid, tokenix.SIGSTOP)  # so that it does not end by itself
    for _ in range(3):
        wire.send("GET", "/v1/models")
    wire.close()
    rest(k)


def test_one_of_several_answers(gateway: Gateway, k: Syscalls) -> None:
    wire = gateway.chat(stream=True, n=4, **{**LONG, "max_tokens": 100})
    until(lambda: len(k.ps()) == 4)
    wire.close()
    rest(k)


def test_if_one_answer_fails_the_others_end(gateway: Gateway, k: Syscalls) -> None:
    with gateway.chat(n=3, **{**LONG, "max_tokens": 100}) as wire:
        until(lambda: len(k.ps()) == 3)
        k.kill(k.ps()[1].pid, tokenix.SIGTERM)
        assert wire.error()["code"] == "terminated"
    rest(k)


class Mute(Answer):
    """An answer that says nothing."""

    streams = True

    async def generate(self, send: Send) -> None:
        await anyio.sleep_forever()

    async def stream(self, events: Events) -> None:
        await anyio.sleep_forever()


def test_a_client_that_takes_no_ping() -> None:
    async def send(_: Any) -> None:
        await anyio.sleep_forever()

    async def run() -> None:
        config = msgspec.convert(
            {"ping_s": 0.02, "queue_s": 0.02, "limits": {"stalled_s": 0.1}}, GatewayConfig
        )
        kernel: Any = None
        answer = Mute(kernel, Generation(kernel, Job([[1]], 1, {}, "auto", frozenset())), config)
        body: Any = SimpleNamespace(begin=lambda: None, send=send)
        notes: dict[str, Any] = {}
        with anyio.CancelScope() as whole:
            await answer._pings(Events(send, body), whole, notes)
        assert notes == {"stalled": True}

    async def limited() -> None:
        with anyio.fail_after(60):
            await run()

    asyncio.run(limited())


def test_a_client_that_does_not_read(k: Syscalls) -> None:
    """It blocks its own process and nobody else's, and it is let go after a while."""
    limits = {"stalled_s": 0.5}
    with open_gateway(k, ping_s=0.1, limits=limits) as gateway:
        lazy = gateway.chat(
            room_bytes=4096,
            stream=True,
            max_tokens=900,
            ignore_eos=True,
            logprobs=True,
            top_logprobs=20,
        )
        until(lambda: any(process.unread_tokens > 2 for process in k.ps()))
        with gateway.chat(max_tokens=3) as wire:
            assert wire.json()["choices"]
        rest(k)
        lazy.close()


def test_many_at_once(gateway: Gateway, k: Syscalls) -> None:
    wires = [gateway.chat(stream=i % 2 == 0, **LONG) for i in range(12)]
    until(lambda: len(k.ps()) == 12)
    for i, wire in enumerate(wires):
        if i % 3:
            wire.close()
    until(lambda: len(k.ps()) == 4)
    for wire in wires:
        wire.close()
    rest(k)
    assert count_used(k) == 0
