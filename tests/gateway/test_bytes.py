"""The stream contract, byte for byte, over a socket read by hand."""

import json
import re
import time

import pytest

import tokenix
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.conftest import PATIENT
from tokenix.tests.gateway.house import MODEL, Gateway, Wire, open_gateway, rest, until

TIMINGS = re.compile(rb'"timings":\{[^}]*\}')
CREATED = re.compile(rb'"created":\d+')


def plain(data: bytes) -> bytes:
    """Without what differs from run to run."""
    return CREATED.sub(b'"created":0', TIMINGS.sub(b'"timings":{}', data))


def expected(k: Syscalls, tail: str, pieces: list[str], usage: str = "") -> bytes:
    head = (
        '{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":0,"model":"smollm2",'
        f'"service_tier":"default","system_fingerprint":"fp_{k.model().fingerprint[:12]}",'
        '"choices":['
    )
    one = f'data: {head}{{"index":0,"delta":'
    null = f',"logprobs":null,"finish_reason":null}}]{usage}}}\n\n'
    text = f'{one}{{"role":"assistant","content":"","refusal":null}}{null}'
    for piece in pieces:
        text += f'{one}{{"content":{json.dumps(piece, ensure_ascii=False)}}}{null}'
    text += f'{one}{{}},"logprobs":null,{tail}]{usage},"timings":{{}}}}\n\n'
    if usage:
        total = len(k.tokenize([{"role": "user", "content": "Say hello."}]))
        text += (
            f'data: {head}],"usage":{{"prompt_tokens":{total},"completion_tokens":{len(pieces)},'
            f'"total_tokens":{total + len(pieces)},'
            '"prompt_tokens_details":{"cached_tokens":N}}}\n\n'
        )
    return (text + "data: [DONE]\n\n").encode()


def pieces_of(k: Syscalls, count: int) -> list[str]:
    """What each token makes readable."""
    pid = k.spawn([{"role": "user", "content": "Say hello."}], max_tokens=count)
    pieces: list[str] = []
    while True:
        result = k.read(pid)
        pieces += [output.text for output in result.outputs]
        if result.eof:
            k.wait(pid)
            return [piece for piece in pieces if piece]


def merged(data: bytes) -> bytes:
    """One chunk for each piece of text may be one for several: all text in one chunk."""
    chunks = data.split(b"\n\n")
    found: list[bytes] = []
    inner = re.compile(rb'(.*"delta":\{"content":")(.*)("\},"logprobs":null,"finish_reason".*)')
    for chunk in chunks:
        here = inner.fullmatch(chunk)
        before = inner.fullmatch(found[-1]) if found else None
        if here and before and here[1] == before[1]:
            found[-1] = here[1] + before[2] + here[2] + here[3]
        else:
            found.append(chunk)
    return b"\n\n".join(found)


def test_a_stream_byte_for_byte(gateway: Gateway, k: Syscalls) -> None:
    pieces = pieces_of(k, 5)
    with gateway.post(
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [{"role": "user", "content": "Say hello."}],
            "temperature": 0, "max_tokens": 5, "stream": True,
        },
        X_Request_Id="r1",
    ) as wire:  # fmt: skip
        body = wire.body()
        assert wire.status == 200
        assert wire.headers["content-type"] == "text/event-stream"
        assert wire.headers["cache-control"] == "no-cache"
        assert wire.headers["x-request-id"] == "r1"
        assert wire.headers["transfer-encoding"] == "chunked"
    tail = '"finish_reason":"length","stop_reason":null}'
    assert merged(plain(body)) == merged(expected(k, tail, pieces))


def test_a_stream_with_usage_byte_for_byte(gateway: Gateway, k: Syscalls) -> None:
    pieces = pieces_of(k, 5)
    more = {"stream": True, "stream_options": {"include_usage": True}, "request_id": "r1"}
    with gateway.chat(max_tokens=5, **more) as wire:
        body = re.sub(rb'"cached_tokens":\d+', b'"cached_tokens":N', plain(wire.body()))
    tail = '"finish_reason":"length","stop_reason":null}'
    assert merged(body) == merged(expected(k, tail, pieces, ',"usage":null'))


def test_text_is_whole_characters(gateway: Gateway) -> None:
    """Each event is valid UTF-8 by itself, although a token is not."""
    tokens = gateway.k.tokenize("🙂世界", raw=True)
    fields = {"max_tokens": 24, "logit_bias": {str(token): 20 for token in tokens}, "seed": 3}
    with gateway.chat(stream=True, **fields) as wire:
        events = wire.events()
    with gateway.chat(**fields) as wire:
        whole = wire.json()["choices"][0]["message"]["content"]
    texts = [event["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(texts) == whole
    assert any(len(character.encode()) > 2 for character in whole)


def test_one_end(gateway: Gateway) -> None:
    with gateway.chat(max_tokens=3, stream=True, n=2) as wire:
        events = wire.events()
    assert events.count("[DONE]") == 1 and events[-1] == "[DONE]"
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert [reason for reason in reasons if reason is not None] == ["length", "length"]


def test_killed_by_an_operator(gateway: Gateway, k: Syscalls) -> None:
    """The error is an event, [DONE] follows, and no finish_reason says that all is well."""
    with gateway.chat(max_tokens=400, stream=True, ignore_eos=True) as wire:
        wire.head()
        wire.chunk()
        (process,) = k.ps()
        k.kill(process.pid, tokenix.SIGKILL)
        *_, error, done = wire.events()
        assert error["error"]["code"] == "terminated"
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert done == "[DONE]"


def test_killed_before_the_first_byte(gateway: Gateway, k: Syscalls) -> None:
    with gateway.chat(max_tokens=400) as wire:
        (process,) = until(k.ps)
        k.kill(process.pid, tokenix.SIGTERM)
        assert wire.error()["code"] == "terminated"
        assert wire.status == 410


def test_pings_while_it_is_stopped(k: Syscalls) -> None:
    with (
        open_gateway(k, ping_s=0.05) as gateway,
        gateway.chat(max_tokens=400, stream=True, ignore_eos=True) as wire,
    ):
        wire.head()
        (process,) = k.ps()
        k.kill(process.pid, tokenix.SIGSTOP)
        assert until(lambda: wire.chunk() == b": ping\n\n")
        k.kill(process.pid, tokenix.SIGCONT)
        until(lambda: wire.chunk().startswith(b"data: "))


def test_the_place_in_the_queue() -> None:
    """Those that wait for the machine are told how many are before them."""
    with (
        tokenix.boot("smollm2", device_pages=64, tunables={**PATIENT, "max_running": 1}) as k,
        open_gateway(k, queue_s=0.02) as gateway,
    ):
        wires = []
        for count in (1, 2, 3):
            wires.append(gateway.chat(max_tokens=900, stream=True, ignore_eos=True))
            until(lambda count=count: len(k.ps()) == count)
        places = [wire.head().chunk() for wire in wires[1:]]
        assert places == [b": queued 0 ahead\n\n", b": queued 1 ahead\n\n"]
        wires[0].close()
        until(lambda: wires[1].chunk().startswith(b"data: "))
        until(lambda: wires[2].chunk() == b": queued 0 ahead\n\n")
        for wire in wires[1:]:
            wire.close()
        rest(k)


def test_keep_alive(gateway: Gateway) -> None:
    """Requests follow one another on a connection, errors among them."""
    with Wire(gateway.port) as wire:
        for _ in range(2):
            wire.status = 0
            wire.send("GET", "/v1/models")
            assert wire.json()["object"] == "list"
            wire.status = 0
            wire.send("POST", "/v1/chat/completions", {"model": 3})
            assert wire.error()["param"] == "model"


@pytest.mark.parametrize("given", ["a b", "x" * 200, "é"])
def test_request_ids_that_are_none(gateway: Gateway, given: str) -> None:
    with Wire(gateway.port).send("GET", "/health/live", X_Request_Id=given) as wire:
        wire.body()
        assert re.fullmatch("[0-9a-f]{24}", wire.headers["x-request-id"])


def test_time_to_the_first_byte_is_that_of_the_first_token(gateway: Gateway) -> None:
    began_s = time.monotonic()
    with gateway.chat(max_tokens=300, stream=True, ignore_eos=True) as wire:
        wire.head()
        head_s = time.monotonic() - began_s
        for _ in range(20):
            wire.chunk()
        assert head_s < time.monotonic() - began_s
