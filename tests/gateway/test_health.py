"""Whether it can serve, what it says while it cannot, and how it ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import tokenix
from tokenix.gateway.link import Link
from tokenix.kernel.calls import Plan, Trace
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import Gateway, Wire, open_gateway, until


def ready(gateway: Gateway) -> tuple[int, str]:
    with gateway.get("/health/ready") as wire:
        status = wire.json()["status"]
        return wire.status, status


def call(gateway: Gateway, what: Any) -> None:
    """Run something in the gateway's event loop."""
    loop = gateway.server.loop
    assert loop is not None
    loop.call_soon_threadsafe(what)


def test_ready(gateway: Gateway) -> None:
    for path in ("/health", "/health/live", "/health/ready"):
        with gateway.get(path) as wire:
            assert wire.json() == {"status": "ok"} and wire.status == 200


def test_before_there_is_a_kernel(k: Syscalls) -> None:
    gateway = Gateway.over(k)
    gateway.reachable = False
    gateway.start()
    try:
        status, why = ready(gateway)
        assert status == 503 and "reached" in why
        with gateway.get("/health/live") as wire:
            assert wire.json() == {"status": "ok"}
        with gateway.chat() as wire:
            assert wire.error()["code"] == "service_unavailable"
            assert wire.status == 503 and int(wire.headers["retry-after"]) >= 1
        with gateway.get("/v1/models") as wire:
            assert wire.error()["code"] == "service_unavailable"
        gateway.reachable = True
        until(lambda: ready(gateway) == (200, "ok"))
        with gateway.chat(max_tokens=1) as wire:
            assert wire.json()["choices"]
    finally:
        gateway.close()


def test_looking_at_the_kernel_is_cheap(k: Syscalls) -> None:
    """What an idle gateway asks, twice a second, brings nothing."""
    with open_gateway(k) as gateway:
        gateway.asked.clear()
        until(lambda: len(gateway.asked) >= 2)
        seen = {(type(asked), getattr(asked, "limit", None)) for asked in gateway.asked}
        assert (Trace, 0) in seen and seen <= {(Trace, 0), (Plan, None)}


@pytest.mark.parametrize(("began_s", "why"), [(None, ""), (99.5, ""), (30.0, "in one pass")])
def test_a_device_that_stands_still(began_s: float | None, why: str) -> None:
    """A28: the scheduler goes on, and nothing is computed."""

    class Kernel:
        async def model(self) -> Any:
            return SimpleNamespace(name="x")

        async def trace(self, limit: int) -> None:
            pass

        async def plan(self) -> Any:
            return SimpleNamespace(time_s=100.0, started_s=began_s)

    async def connect() -> Any:
        return Kernel()

    async def look() -> str:
        link = Link(connect, 60.0)
        await link._beat()
        return link.why_not_ready()

    found = asyncio.run(look())
    assert why in found and bool(found) == bool(why)


def test_the_kernel_is_lost_and_comes_back(k: Syscalls) -> None:
    with open_gateway(k) as gateway:
        with gateway.chat(stream=True, max_tokens=900, ignore_eos=True) as wire:
            wire.head().chunk()
            gateway.reachable, gateway.lost = False, True
            *_, error, done = wire.events()
            assert error["error"]["code"] == "service_unavailable" and done == "[DONE]"
        until(lambda: ready(gateway)[0] == 503)
        gateway.reachable, gateway.lost = True, False
        until(lambda: ready(gateway)[0] == 200)
        for process in k.ps():  # over a socket the kernel does this when the connection ends
            k.kill(process.pid, tokenix.SIGKILL)
            k.wait(process.pid)
        with gateway.chat(max_tokens=1) as wire:
            assert wire.json()["choices"]


def test_drain(k: Syscalls) -> None:
    """What runs ends well, nothing new is taken, and then it exits by itself."""
    with open_gateway(k) as gateway:
        wire = gateway.chat(stream=True, max_tokens=30, ignore_eos=True)
        wire.head().chunk()
        call(gateway, gateway.server.drain)
        until(lambda: gateway.server.application.gate.draining)
        with gateway.chat() as late:
            assert late.error()["code"] == "service_unavailable" and late.status == 503
            assert "retry-after" in late.headers
        assert ready(gateway) == (503, "shutting down")
        events = wire.events()
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "length"
        wire.close()
        until(lambda: not gateway.thread.is_alive())


def test_a_drain_that_takes_too_long(k: Syscalls) -> None:
    with open_gateway(k, drain_s=0.2) as gateway:
        wire = gateway.chat(stream=True, max_tokens=900, ignore_eos=True)
        wire.head().chunk()
        call(gateway, gateway.server.drain)
        *_, error, done = wire.events()
        assert error["error"]["code"] == "service_unavailable" and done == "[DONE]"
        wire.close()
        until(lambda: not gateway.thread.is_alive())


def test_a_second_signal_ends_it_now(k: Syscalls) -> None:
    with open_gateway(k) as gateway:
        wire = gateway.chat(stream=True, max_tokens=900, ignore_eos=True)
        wire.head().chunk()
        call(gateway, lambda: gateway.server.handle_exit(15, None))
        until(lambda: gateway.server.application.gate.draining)
        call(gateway, lambda: gateway.server.handle_exit(15, None))
        until(lambda: not gateway.thread.is_alive())
        wire.close()


def test_a_busy_gateway_still_answers(gateway: Gateway, k: Syscalls) -> None:
    """F9: models and health are told while everything decodes."""
    wires = [gateway.chat(stream=True, max_tokens=400, ignore_eos=True) for _ in range(8)]
    until(lambda: len(k.ps()) == 8)
    with Wire(gateway.port).send("GET", "/v1/models") as wire:
        assert wire.json()["data"]
    assert len(k.ps()) == 8
    for wire in wires:
        wire.close()
