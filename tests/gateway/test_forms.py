"""Output of a given form: JSON of a schema, calls of tools."""

import json
import re
from typing import Any

import openai
import pytest

from tokenix.gateway.bodies import REFUSED
from tokenix.gateway.tools import Call, CallFinder
from tokenix.tests.gateway.house import MODEL, Gateway

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "people": {"type": "integer", "maximum": 99},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 60, **fields}
    return client.chat.completions.create(**fields)


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
def test_json_of_a_schema(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, response_format=form(SCHEMA), stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
    value = json.loads(text)
    assert value["city"] in ("Paris", "Rome") and isinstance(value["people"], int)


def test_any_json_object(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=60)
    choice = answer.choices[0]
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def test_several_answers_of_a_schema(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=form(SCHEMA), n=3, temperature=1.5, seed=1)
    for choice in answer.choices:
        assert set(json.loads(choice.message.content)) == {"city", "people"}


def test_plain_text_is_a_form_too(client: openai.OpenAI) -> None:
    assert ask(client, response_format={"type": "text"}, max_tokens=3).choices[0].message.content


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"json": {"enum": ["x", "y"]}}, '"[xy]"'),
        ({"json": '{"enum": ["x", "y"]}'}, '"[xy]"'),
        ({"grammar": 'start: "a" /[0-9]/'}, "a[0-9]"),
    ],
)
def test_structured_outputs(client: openai.OpenAI, asked: dict[str, Any], allowed: str) -> None:
    more = {"structured_outputs": asked}
    answer = ask(client, extra_body=more).choices[0]
    assert re.fullmatch(allowed, answer.message.content) and answer.finish_reason == "stop"
    text = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=20, temperature=0, extra_body=more
    )
    assert re.fullmatch(allowed, text.choices[0].text)


FORCED = {"tools": [TIME], "tool_choice": "required"}


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "not none"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs",
         "json_object and regex"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json", "no JSON object"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "length >= 1"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "response_format", "no room"),
        ({"structured_outputs": {"regex": "a"}, **FORCED}, "structured_outputs", "no room"),
        ({"response_format": {"type": "json_object"}, **FORCED}, "response_format", "no room"),
        *(({name: [1]}, name, "not supported") for name in REFUSED),
    ],
)  # fmt: skip
def test_forms_that_are_none(
    gateway: Gateway, asked: dict[str, Any], param: str, said: str
) -> None:
    with gateway.chat(**asked) as wire:
        error = wire.error()
        assert (wire.status, error["param"]) == (400, param) and said in error["message"]


def test_fields_that_ask_for_nothing_are_not_refused(client: openai.OpenAI) -> None:
    nothing = {"echo": False, "suffix": None, "functions": [], "guided_json": None, "foo": [1]}
    assert ask(client, max_tokens=1, extra_body=nothing).choices[0].message.content


def test_the_schema_of_a_tool_that_is_none(gateway: Gateway) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "no such type"}}}
    with gateway.chat(tools=[tool], tool_choice="required") as wire:
        error = wire.error()
        assert (wire.status, error["param"]) == (400, "tools")
        assert error["message"].endswith("Invalid type: no such type")


def test_a_schema_that_is_none(gateway: Gateway) -> None:
    with gateway.chat(response_format=form({"type": "no such type"})) as wire:
        error = wire.error()
        assert wire.status == 400 and "\n" not in error["message"]


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_forced(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    tools = [WEATHER] if choice == "required" else [TIME, WEATHER]
    answer = ask(client, tools=tools, tool_choice=choice, stream=stream, parallel_tool_calls=False)
    if stream:
        chunks = list(answer)
        calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
        assert [c.choices[0].finish_reason for c in chunks][-1] == "tool_calls"
        assert not any(c.choices[0].delta.content for c in chunks)
        assert [call.index for call in calls] == [0]
    else:
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
    (call,) = calls
    assert call.function.name == "get_weather" and call.id.startswith("call_")
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_a_dialogue_with_calls(client: openai.OpenAI) -> None:
    """What was called and what it gave go back to the model."""
    answer = ask(client, tools=[WEATHER], tool_choice=NAMED)
    call = answer.choices[0].message.tool_calls[0]
    messages = [
        *QUESTION,
        answer.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 25 degrees"},
    ]
    assert ask(client, messages=messages, tools=[WEATHER], max_tokens=5).choices


def test_the_model_is_told_of_tools(gateway: Gateway) -> None:
    """By a system message, where the template has no place for them."""
    with gateway.post("/apply-template", {"messages": QUESTION, "tools": [WEATHER]}) as wire:
        prompt = wire.json()["prompt"]
    assert "get_weather" in prompt and "<tool_call>" in prompt
    with gateway.post("/apply-template", {"messages": QUESTION}) as wire:
        assert "<tool_call>" not in wire.json()["prompt"]


def test_no_tools_if_none_are_wanted(client: openai.OpenAI) -> None:
    plain = ask(client, max_tokens=6)
    none = ask(client, max_tokens=6, tools=[WEATHER], tool_choice="none")
    assert none.choices == plain.choices


# ---- calls in a text ----

TAGGED = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL = Call("f", {"a": 1})

TEXTS: dict[str, tuple[str, list[str | Call]]] = {
    "no call": ("just text", ["just text"]),
    "a call": (TAGGED, [CALL]),
    "a call behind text": (f"Let me see.{TAGGED}", ["Let me see.", CALL]),
    "two calls": (f"{TAGGED}\n{TAGGED}", [CALL, CALL]),
    "text behind a call": (f"{TAGGED}done", [CALL, "done"]),
    "a tag that is none": ("a <tool_cat> b", ["a <tool_cat> b"]),
    "a call that is none": ("<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
    "a call that does not end": (TAGGED.removesuffix("</tool_call>"), [CALL]),
    "half a tag at the end": ("a <tool_", ["a <tool_"]),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_found(name: str, size: int) -> None:
    text, expected = TEXTS[name]
    finder, found = CallFinder(), []
    for start in range(0, len(text), size):
        found += finder.push(text[start : start + size])
    found += finder.flush()
    joined: list[str | Call] = []
    for item in found:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    assert joined == expected
