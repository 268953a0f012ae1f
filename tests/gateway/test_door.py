"""Who is let in, how much may be brought, and for how long the door is held."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.keyfile import Watched, add_key, drop_key
from tokenix.gateway.keys import ApiKey, KeyRing, hash_key
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Wire, open_gateway, until

KEYS = [
    {"sha256": hash_key("red-secret"), "tenant": "red"},
    {"sha256": hash_key("blue-secret"), "tenant": "blue"},
    {"sha256": hash_key("ops-secret"), "tenant": "ops", "role": "metrics"},
    {"sha256": hash_key("root-secret"), "tenant": "root", "role": "root"},
]
ASK = {"model": MODEL, "messages": HELLO, "max_tokens": 300, "stream": True, "ignore_eos": True}
CLOSED = ["/v1/models", "/v1/models/smollm2", "/schema/openapi.json", "/nothing", "/metrics"]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_keys(k: Syscalls) -> None:
    with open_gateway(k, keys=KEYS) as gateway:
        for path in CLOSED:
            for headers in ({}, bearer("no-secret"), {"Authorization": "Basic red-secret"}):
                with gateway.get(path, **headers) as wire:
                    error = wire.error()
                    assert wire.status == 401 and error["code"] == "invalid_api_key"
                    assert wire.headers["www-authenticate"] == "bearer"
                    assert ("no such API key" if headers else "is needed") in error["message"]
        for path in ("/health", "/health/live", "/health/ready"):
            with gateway.get(path) as wire:
                assert wire.json() == {"status": "ok"}
        with gateway.get("/v1/models", **bearer("red-secret")) as wire:
            assert wire.json()["data"]
        for secret, status in (("red-secret", 403), ("ops-secret", 200), ("root-secret", 200)):
            with gateway.get("/metrics", **bearer(secret)) as wire:
                wire.body()
                assert wire.status == status
        with gateway.get("/v1/models", **bearer("ops-secret")) as wire:
            assert wire.error()["code"] == "permission_denied"


def test_a_key_is_a_tenant(k: Syscalls) -> None:
    with open_gateway(k, keys=KEYS) as gateway:
        red = gateway.post("/v1/chat/completions", ASK, **bearer("red-secret"))
        blue = gateway.post(
            "/v1/chat/completions", {**ASK, "priority": -5}, **bearer("blue-secret")
        )
        root = gateway.post(
            "/v1/chat/completions", {**ASK, "priority": -5}, **bearer("root-secret")
        )
        found = until(lambda: processes if len(processes := k.ps()) == 3 else None)
        assert sorted((process.tenant, process.nice) for process in found) == [
            ("blue", 0), ("default", -5), ("red", 0),
        ]  # fmt: skip
        for wire in (red, blue, root):
            wire.close()
        until(lambda: not k.ps())


def test_the_file_of_keys_is_read_again_when_it_changes(k: Syscalls, tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    with open_gateway(k, keys_file=str(path)) as gateway:

        def status(secret: str = "") -> int:
            with gateway.get("/v1/models", **(bearer(secret) if secret else {})) as wire:
                wire.body()
                return wire.status

        assert status() == 200  # nobody has made a key yet
        red, red_kept = add_key(path, "red", "tenant")
        until(lambda: status() == 401)
        assert status(red) == 200
        blue, _ = add_key(path, "blue", "tenant")
        until(lambda: status(blue) == 200)
        drop_key(path, red_kept.id)
        until(lambda: status(red) == 401)
        kept = path.read_bytes()
        path.write_bytes(b"no key at all\n" + kept)
        drained = Watched(path, ring := KeyRing([ApiKey(sha256=hash_key("x"), tenant="x")], ""))
        drained.look()  # says so in the log, and changes nothing
        assert ring.find(b"Bearer x") is not None
        assert status(blue) == 200
        path.unlink()
        until(lambda: status(blue) == 401)  # and is not open again
        assert status() == 401
        path.write_bytes(kept)
        until(lambda: status(blue) == 200)


def test_beyond_this_machine_keys_are_needed() -> None:
    for host in ("0.0.0.0", "10.1.2.3", "::", "example.org"):
        with pytest.raises(msgspec.ValidationError, match="without API keys"):
            msgspec.convert({"host": host}, GatewayConfig)
        msgspec.convert({"host": host, "keys": KEYS}, GatewayConfig)
    for host in ("127.0.0.1", "::1", "localhost"):
        msgspec.convert({"host": host}, GatewayConfig)


def test_only_hashes_are_kept() -> None:
    assert hash_key("x") == hashlib.sha256(b"x").hexdigest()
    for bad in ({"sha256": "red-secret", "tenant": "red"}, {"sha256": "0" * 64, "tenant": ""}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"keys": [bad]}, GatewayConfig)


LIMITS = {
    "body_bytes": 2000, "header_bytes": 2000, "header_s": 0.2, "body_s": 0.2, "requests": 2,
    "schema_bytes": 300, "prompt_chars": 1000, "messages": 3,
}  # fmt: skip


def test_limits(k: Syscalls) -> None:
    chat = "/v1/chat/completions"
    with open_gateway(k, limits=LIMITS) as gateway:
        big = {**ASK, "messages": [{"role": "user", "content": "x" * 3000}]}
        with gateway.post(chat, big) as wire:
            assert wire.error()["code"] == "request_too_large" and wire.status == 413
            assert wire.closed()
        with gateway.post(chat, b"7d0\r\n" + b" " * 2000 + b"\r\n7d0\r\n" + b" " * 2000, **{
            "Content-Length": "", "Transfer-Encoding": "chunked",
        }) as wire:  # fmt: skip
            assert wire.error()["code"] == "request_too_large"
        with gateway.get("/v1/models", X_Long="x" * 3000) as wire:
            assert wire.error()["code"] == "headers_too_large" and wire.status == 431
        with gateway.chat(messages=[{"role": "user", "content": "x" * 1500}]) as wire:
            assert wire.error()["code"] == "context_length_exceeded"
        with gateway.chat(messages=HELLO * 4) as wire:
            assert wire.error()["param"] == "messages"
        schema = {"type": "object", "description": "x" * 400}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with gateway.chat(response_format=form) as wire:
            assert wire.error()["param"] == "response_format.json_schema.schema"
        wires = [gateway.post(chat, ASK) for _ in range(2)]
        until(lambda: len(k.ps()) == 2)
        with gateway.post(chat, ASK) as wire:
            assert wire.error()["code"] == "rate_limit_exceeded" and wire.status == 429
            assert wire.headers["retry-after"] == "1"
        for wire in wires:
            wire.close()
        until(lambda: not k.ps())


def test_slow_clients_are_not_waited_for(k: Syscalls) -> None:
    with open_gateway(k, limits=LIMITS) as gateway:
        with Wire(gateway.port) as wire:
            assert wire.closed(), "it never says anything"
        with Wire(gateway.port) as wire:
            wire.socket.sendall(b"GET /v1/models HT")
            assert wire.error()["code"] == "request_timeout" and wire.status == 408
            assert wire.closed()
        with Wire(gateway.port).send(
            "POST", "/v1/chat/completions", b"{", **{"Content-Length": "9"}
        ) as wire:
            assert wire.error()["code"] == "request_timeout" and wire.status == 408
            assert wire.closed()
        with Wire(gateway.port).send("GET", "/health/live") as wire:
            assert wire.json() == {"status": "ok"}
            wire.socket.sendall(b"GET ")
            wire.status = 0
            assert wire.error()["code"] == "request_timeout", "a further request may be slow too"


def test_a_configuration_that_makes_no_sense() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for text in (b"", b'{"host": "0.0.0.0"}', b'{"prot": 1}'):
        run = subprocess.run(
            [sys.executable, "-m", "tokenix.gateway"], input=text, capture_output=True, env=env,
            timeout=60, check=False,
        )  # fmt: skip
        assert run.returncode == 2
        assert run.stderr.count(b"\n") == 1 and b"Traceback" not in run.stderr
