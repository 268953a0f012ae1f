"""What users of other servers send, as their public documentation has it, and plain curl."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Gateway


def test_tokenize_and_back(gateway: Gateway, k: Syscalls) -> None:
    with gateway.post("/tokenize", {"model": MODEL, "prompt": "Hello, world"}) as wire:
        made = wire.json()
    assert made["tokens"] == list(k.tokenize("Hello, world", raw=True))
    assert made["count"] == len(made["tokens"])
    assert made["max_model_len"] == k.model().context_tokens
    with gateway.post("/detokenize", {"model": MODEL, "tokens": made["tokens"]}) as wire:
        assert wire.json() == {"prompt": "Hello, world"}


def test_a_dialogue_is_a_template_and_tokens(gateway: Gateway, k: Syscalls) -> None:
    with gateway.post("/tokenize", {"messages": HELLO}) as wire:
        tokens = wire.json()["tokens"]
    assert tokens == list(k.tokenize(HELLO))
    with gateway.post("/apply-template", {"messages": HELLO}) as wire:
        prompt = wire.json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n")
    with gateway.post("/detokenize", {"tokens": tokens}) as wire:
        assert wire.json()["prompt"] == prompt


def test_a_load_generator(gateway: Gateway) -> None:
    """It wants exactly so many tokens, and their number at the end."""
    body = {
        "model": MODEL, "prompt": "Hello", "temperature": 0.0, "max_tokens": 12, "logprobs": None,
        "stream": True, "ignore_eos": True, "min_tokens": 12, "repetition_penalty": 1.0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    with gateway.post("/v1/completions", body) as wire:
        events = wire.events()
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 12
    assert events[-3]["choices"][0]["finish_reason"] == "length"
    assert {"queue_ms", "prompt_ms", "predicted_per_second"} <= set(events[-3]["timings"])


def test_a_reader_in_a_header(gateway: Gateway) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
    with gateway.post("/v1/completions", body, X_Reader_Tokens_Per_S="2.5") as wire:
        assert wire.json()["choices"]
    with gateway.post("/v1/completions", body, X_Reader_Tokens_Per_S="fast") as wire:
        assert wire.error()["param"] == "x-reader-tokens-per-s"


def test_aliases_are_models(gateway: Gateway, k: Syscalls) -> None:
    from tokenix.tests.gateway.house import open_gateway

    with open_gateway(k, aliases={"gpt-4o": MODEL, "other": "x"}) as named:
        with named.get("/v1/models") as wire:
            assert [model["id"] for model in wire.json()["data"]] == [MODEL, "gpt-4o"]
        with named.chat(model="gpt-4o", max_tokens=1) as wire:
            assert wire.json()["model"] == "gpt-4o"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
class TestCurl:
    def curl(self, gateway: Gateway, path: str, *words: str) -> str:
        return subprocess.run(
            ["curl", "-sS", "--max-time", "60", f"{gateway.url}{path}", *words],
            capture_output=True, text=True, check=True, timeout=90,
        ).stdout  # fmt: skip

    def test_a_chat(self, gateway: Gateway) -> None:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 3}
        said = self.curl(
            gateway, "/v1/chat/completions", "-H", "Content-Type: application/json",
            "-d", json.dumps(body),
        )  # fmt: skip
        answer: Any = json.loads(said)
        assert answer["choices"][0]["message"]["content"]

    def test_a_stream(self, gateway: Gateway) -> None:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "stream": True}
        text = self.curl(
            gateway, "/v1/chat/completions", "-N", "-H", "Content-Type: application/json",
            "-d", json.dumps(body),
        )  # fmt: skip
        assert text.startswith("data: {") and text.endswith("data: [DONE]\n\n")

    def test_without_a_media_type(self, gateway: Gateway) -> None:
        """curl -d alone sends a form; it is told what to do."""
        answer = json.loads(self.curl(gateway, "/v1/chat/completions", "-d", "{}"))
        assert "Content-Type: application/json" in answer["error"]["message"]

    def test_head_and_options(self, gateway: Gateway) -> None:
        assert " 200 " in self.curl(gateway, "/v1/models", "-I")
        assert " 204 " in self.curl(gateway, "/v1/models", "-X", "OPTIONS", "-i")


def test_lines_end_where_events_do(gateway: Gateway, k: Syscalls) -> None:
    """Some clients end a line at U+2028, which a model may write."""
    rest = {str(token): 100 for token in k.tokenize("\u2028", raw=True)}
    with gateway.chat(stream=True, max_tokens=12, logit_bias=rest, seed=1, temperature=1) as wire:
        body = wire.body().decode()
    assert not {"\u2028", "\u2029", "\x85"} & set(body)
    assert all(line == "" or line.startswith("data: ") for line in body.splitlines())
