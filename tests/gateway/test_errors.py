"""Every error has OpenAI's shape, the right status, and names what is wrong."""

from collections.abc import Callable
from typing import Any

import msgspec
import openai
import pytest

import tokenix
from tokenix.gateway.errors import MESSAGE_CHARS
from tokenix.gateway.tools import CallFinder
from tokenix.models.tokenizer import Tokenizer
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Gateway, Wire, open_gateway

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
DEEP = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
FUNCTION = {"type": "function", "function": {"name": "f"}}
CALLED = {"role": "assistant", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip

BAD: dict[str, tuple[str, Any, str | None]] = {
    "not JSON": (CHAT, b"{", None),
    "not an object": (CHAT, [], None),
    "no messages": (CHAT, {"messages": ...}, "messages"),
    "no model": (CHAT, {"model": ...}, "model"),
    "empty messages": (CHAT, {"messages": []}, "messages"),
    "a role that is none": (CHAT, {"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
    "a number as text": (CHAT, {"messages": [{"role": "user", "content": 3}]},
                         "messages[0].content"),
    "an image": (CHAT, {"messages": DEEP}, "messages[0].content[0]"),
    "a text as number": (CHAT, {"temperature": "1"}, "temperature"),
    "too hot": (CHAT, {"temperature": 2.1}, "temperature"),
    "top_p 0": (CHAT, {"top_p": 0}, "top_p"),
    "no tokens": (CHAT, {"max_tokens": 0}, "max_tokens"),
    "min above max": (CHAT, {"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    "no answers": (CHAT, {"n": 0}, "n"),
    "too many answers": (CHAT, {"n": 17}, "n"),
    "too many stops": (CHAT, {"stop": ["a"] * 17}, "stop"),
    "an empty stop": (CHAT, {"stop": [""]}, "stop"),
    "a bias of no token": (CHAT, {"logit_bias": {"x": 1}}, "logit_bias.x"),
    "a bias of an unknown token": (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias"),
    "too much bias": (CHAT, {"logit_bias": {"5": 101}}, "logit_bias.5"),
    "too many likely ones": (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "likely ones without logprobs": (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    "options without a stream": (CHAT, {"stream_options": {"include_usage": True}},
                                 "stream_options"),
    "a schema without a schema": (CHAT, {"response_format": {"type": "json_schema"}},
                                  "response_format.json_schema"),
    "a form that is none": (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
    "a choice without tools": (CHAT, {"tool_choice": "required"}, "tool_choice"),
    "a choice that is none": (CHAT, {"tools": [FUNCTION], "tool_choice": {
        "type": "function", "function": {"name": "g"}}}, "tool_choice"),
    "two tools of one name": (CHAT, {"tools": [FUNCTION, FUNCTION]}, "tools"),
    "what no tool was called for": (CHAT, {"messages": [*HELLO, {
        "role": "tool", "tool_call_id": "1", "content": "x"}]}, "messages[1].role"),
    "what another call was for": (CHAT, {"messages": [CALLED, {
        "role": "tool", "tool_call_id": "2", "content": "x"}]}, "messages[1].tool_call_id"),
    "what was given long after a call": (CHAT, {"messages": [CALLED, *HELLO, {
        "role": "tool", "tool_call_id": "1", "content": "x"}]}, "messages[2].role"),
    "for which call is not said": (CHAT, {"messages": [CALLED, {
        "role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    "a user who says nothing": (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    "an answer that is heard": (CHAT, {"modalities": ["text", "audio"]}, "modalities[1]"),
    "a conversation of before": ("/v1/responses", {"input": "x", "conversation": "c"},
                                 "conversation"),
    "a prompt that is kept": ("/v1/responses", {"input": "x", "prompt": {"id": "p"}}, "prompt"),
    "likely ones of a response": ("/v1/responses", {"input": "x", "top_logprobs": 2},
                                  "top_logprobs"),
    "a tier that is none": (CHAT, {"service_tier": "gold"}, "service_tier"),
    "a reader that stands still": (CHAT, {"reader_tokens_per_s": 0}, "reader_tokens_per_s"),
    "echo": (TEXT, {"echo": True}, "echo"),
    "suffix": (TEXT, {"suffix": "x"}, "suffix"),
    "best of more": (TEXT, {"best_of": 3}, "best_of"),
    "no prompt": (TEXT, {"prompt": ...}, "prompt"),
    "an empty prompt": (TEXT, {"prompt": ""}, "prompt"),
    "a mixed prompt": (TEXT, {"prompt": ["a", 3]}, "prompt"),
    "too many prompts": (TEXT, {"prompt": ["a"] * 1000}, "prompt"),
    "a prompt for too long an answer": (TEXT, {"max_tokens": 100_000}, "prompt"),
    "a dialogue that is too long": (CHAT, {"messages": [
        {"role": "user", "content": "word " * 2000}]}, "messages"),
    "a schema that is none": (CHAT, {"response_format": {"type": "json_schema", "json_schema": {
        "schema": {"type": "nonsense"}}}}, "response_format"),
    "too large a multiple": (CHAT, {"response_format": {"type": "json_schema", "json_schema": {
        "schema": {"multipleOf": 1e9}}}}, "response_format"),
    "a tool's schema that is none": (CHAT, {"tool_choice": "required", "tools": [
        {"function": {"name": "f", "parameters": {"type": "nonsense"}}}]}, "tools"),
    "an input that is too long": ("/v1/responses", {"input": "word " * 2000}, "input"),
    "a format that is none": ("/v1/responses", {"input": "x", "text": {"format": {
        "type": "json_schema", "schema": {"type": "nonsense"}}}}, "text.format"),
    "a token that is none": (TEXT, {"prompt": [49999999]}, "prompt"),
    "tokenize nothing": ("/tokenize", {"prompt": ...}, "prompt"),
    "detokenize nonsense": ("/detokenize", {"tokens": [1 << 30]}, "tokens"),
    "a template of nothing": ("/apply-template", {"messages": ...}, "messages"),
}  # fmt: skip


def body_for(path: str, changes: Any) -> Any:
    if not isinstance(changes, dict):
        return changes
    body = {"model": MODEL, "messages": HELLO, "prompt": "1, 2,"}
    if path == "/tokenize":
        del body["messages"]
    if path == "/v1/responses":
        del body["prompt"]
    return {name: value for name, value in (body | changes).items() if value is not ...}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(gateway: Gateway, name: str) -> None:
    path, changes, param = BAD[name]
    with gateway.post(path, body_for(path, changes)) as wire:
        error = wire.error()
        assert wire.status == 400, error
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, error
        assert "\n" not in error["message"]


def test_the_context_is_never_cut(gateway: Gateway, k: Syscalls) -> None:
    long = [{"role": "user", "content": "word " * 2000}]
    with gateway.chat(messages=long) as wire:
        assert wire.error()["code"] == "context_length_exceeded"
        assert wire.status == 400
    with gateway.chat(max_tokens=100_000) as wire:
        assert wire.error()["code"] == "context_length_exceeded"
    with gateway.chat(stream=True, max_tokens=100_000) as wire:
        assert wire.error()["code"] == "context_length_exceeded"
        assert wire.status == 400


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def chat_with(name: str, value: bytes) -> bytes:
    body = msgspec.json.encode({"model": MODEL, "messages": HELLO, "max_tokens": 1})
    return b'%s,"%s":%s}' % (body[:-1], name.encode(), value)


NESTING: dict[str, Callable[[bytes], bytes]] = {
    "body": lambda value: value,
    "metadata": lambda value: chat_with("metadata", value),
    "schema": lambda value: chat_with(
        "response_format", b'{"type":"json_schema","json_schema":{"schema":%s}}' % value
    ),
    "tools": lambda value: chat_with(
        "tools", b'[{"type":"function","function":{"name":"f","parameters":%s}}]' % value
    ),
    "template": lambda value: chat_with("chat_template_kwargs", b'{"x":%s}' % value),
    "arguments": lambda value: chat_with(
        "messages",
        b'[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":%s}}]}]'
        % msgspec.json.encode(value.decode()),
    ),
}


@pytest.mark.parametrize("where", NESTING)
def test_what_is_nested_too_deeply(
    gateway: Gateway, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by so little too deep that only a later step sees it."""
    for depth in (*range(940, 1000, 4), 50_000):
        with gateway.post(CHAT, NESTING[where](nested(depth))) as wire:
            body = wire.json()
            assert wire.status in (200, 400), (depth, body)
    assert "nested too deeply" in body["error"]["message"]
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_call_that_is_nested_too_deeply_is_text() -> None:
    written = f"<tool_call>{nested(50_000).decode()}</tool_call>"
    assert list(CallFinder().push(written)) == [written]


@pytest.mark.parametrize(
    "path", [CHAT, TEXT, "/v1/responses", "/tokenize", "/detokenize", "/apply-template"]
)
def test_no_path_takes_what_is_nested_too_deeply(gateway: Gateway, path: str) -> None:
    with gateway.post(path, nested(50_000)) as wire:
        assert "nested too deeply" in wire.error()["message"]
        assert wire.status == 400


LONG = "x " * 1_900_000
TOO_LONG: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": LONG}]},
    TEXT: {"prompt": LONG},
    "/tokenize": {"prompt": LONG},
    "/apply-template": {"messages": [{"role": "user", "content": LONG}]},
    "/detokenize": {"tokens": [1] * 100_000},
}


@pytest.mark.parametrize("path", TOO_LONG)
def test_what_can_never_fit_is_not_tokenized(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", None)
    monkeypatch.setattr(Tokenizer, "decode", None)
    with gateway.post(path, {"model": MODEL, **TOO_LONG[path]}) as wire:
        assert wire.error()["code"] == "context_length_exceeded"
        assert wire.status == 400


ODD = [
    ("GET", "/nothing", 404, "not_found"),
    ("POST", "/v1/embeddings", 404, "not_found"),
    ("GET", CHAT, 405, "method_not_allowed"),
    ("DELETE", "/v1/models", 405, "method_not_allowed"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), ODD)
def test_paths_and_methods(
    gateway: Gateway, method: str, path: str, status: int, code: str
) -> None:
    with Wire(gateway.port).send(method, path, {} if method == "POST" else None) as wire:
        assert wire.error()["code"] == code
        assert wire.status == status
        assert status != 405 or "allow" in wire.headers


def test_an_unknown_model(gateway: Gateway) -> None:
    with gateway.chat(model="gpt-5") as wire:
        error = wire.error()
        assert wire.status == 404 and error["code"] == "model_not_found"
        assert error["param"] == "model"


@pytest.mark.parametrize("said", ["x" * 100_000, "a\r\nb\x1b[31m", "\u2028\u202e"])
def test_what_is_quoted_is_one_line_of_bounded_length(gateway: Gateway, said: str) -> None:
    with gateway.chat(messages=[{"role": said, "content": "x"}]) as wire:
        error = wire.error()
        assert error["param"] == "messages[0].role" and "Invalid enum value" in error["message"]
        assert error["message"].isprintable() and len(error["message"]) <= MESSAGE_CHARS


WORDS: list[tuple[str, bytes, str]] = [
    (CHAT, b"", "the body is empty"),
    (CHAT, b" \n", "the body is empty"),
    (CHAT, b'{"model":"\\ud83dx"}', "\\ud83d is half a character"),
    (CHAT, b'{"model":"x\\ude00"}', "\\ude00 is half a character"),
    (CHAT, b'{"model":"\\ud83d\\ude00"', "truncated"),
    ("/v1/responses", b'{"model":"smollm2","input":"x","background":true}', "use stream"),
    ("/v1/responses", b'{"model":"smollm2","input":"x","previous_response_id":"r"}', "not kept"),
]


@pytest.mark.parametrize(("path", "body", "words"), WORDS)
def test_the_message_says_what_is_wrong(
    gateway: Gateway, path: str, body: bytes, words: str
) -> None:
    with Wire(gateway.port).send("POST", path, body) as wire:
        assert words in wire.error()["message"]
        assert wire.status == 400


MEDIA = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
         "application/json; charset=latin-1"]  # fmt: skip


@pytest.mark.parametrize("media", MEDIA)
def test_other_media(gateway: Gateway, media: str) -> None:
    with gateway.post(CHAT, b"{}", Content_Type=media) as wire:
        assert wire.error()["code"] == "unsupported_media_type"
        assert wire.status == 415


def test_what_is_not_http(gateway: Gateway) -> None:
    with Wire(gateway.port) as wire:
        wire.socket.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert wire.error()["code"] == "invalid_http"
        assert wire.closed()


HURRY = {"target_interactive_s": 1e-6, "target_stream_s": 1e-6}


def test_overload_is_429_with_retry_after(client: openai.OpenAI) -> None:
    """The pool is busy, and first tokens are wanted at once."""
    with (
        tokenix.boot("smollm2", device_pages=16, tunables=HURRY) as k,
        open_gateway(k) as gateway,
    ):
        wires = [
            gateway.chat(messages=[{"role": "user", "content": "word " * 100}], max_tokens=60)
            for _ in range(6)
        ]
        statuses = []
        for wire in wires:
            body = wire.json()
            statuses.append(wire.status)
            if wire.status == 429:
                assert body["error"]["code"] == "rate_limit_exceeded"
                assert int(wire.headers["retry-after"]) >= 1
            wire.close()
        assert 429 in statuses


def test_the_openai_package_knows_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=100_000)
    assert bad.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="x", messages=HELLO)
    assert unknown.value.code == "model_not_found"
