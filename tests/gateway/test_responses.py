"""POST /v1/responses as the `openai` package asks for it, and its events one by one."""

import json
from typing import Any

import openai
import pytest

import tokenix
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import MODEL, Gateway


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {
        "model": MODEL, "input": "Say hello.", "max_output_tokens": 8, "temperature": 0, **fields,
    }  # fmt: skip
    return client.responses.create(**fields)


def test_a_response(client: openai.OpenAI) -> None:
    response = ask(client, metadata={"a": "b"})
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8,
        temperature=0,
    )  # fmt: skip
    assert response.output_text == chat.choices[0].message.content
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == 8 and response.metadata == {"a": "b"}
    assert response.id.startswith("resp-") and response.output[0].id.startswith("msg-")


def test_instructions_and_messages(client: openai.OpenAI) -> None:
    items = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
    ]
    response = ask(client, input=items, instructions="Be brief.")
    assert response.output_text and response.instructions == "Be brief."


def test_its_events(client: openai.OpenAI) -> None:
    whole = ask(client).output_text
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole
    assert [kind for kind in kinds if not kind.endswith("delta")] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == whole
    assert events[-1].response.usage.output_tokens == 8


def test_the_form_of_an_event(gateway: Gateway) -> None:
    body = {"model": MODEL, "input": "Hi", "stream": True, "max_output_tokens": 2}
    with gateway.post("/v1/responses", body) as wire:
        events = wire.body().decode().split("\n\n")
    assert events.pop() == ""
    for event in events:
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    response = ask(client, text=form, max_output_tokens=40)
    assert json.loads(response.output_text)["a"] in (1, 2)
    assert response.status == "completed"


def test_an_error_in_a_stream(gateway: Gateway, k: Syscalls) -> None:
    body = {"model": MODEL, "input": "Hi", "stream": True, "max_output_tokens": 900}
    with gateway.post("/v1/responses", body) as wire:
        wire.head().chunk()
        (process,) = k.ps()
        k.kill(process.pid, tokenix.SIGKILL)
        last = wire.body().decode().split("\n\n")[-2]
        name, data = last.split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["code"] == "terminated"


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"background": True}, "background"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": []}, "input"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
]


@pytest.mark.parametrize(("fields", "param"), UNKNOWN)
def test_what_is_not_supported(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    with gateway.post("/v1/responses", {"model": MODEL, "input": "Hi", **fields}) as wire:
        assert wire.error()["param"] == param
        assert wire.status == 400
