"""Valid requests of every route and method, to begin from."""

from dataclasses import dataclass
from typing import Any

from tokenix.tests.gateway.house import HELLO, MODEL

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 1, None]}, "maxItems": 2},
        "more": {"anyOf": [{"const": 1}, {"$ref": "#/$defs/code"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"}},
}
DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is the weather?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 25 degrees"},
    {"role": "user", "name": "ann", "content": "Grüße, 你好, 😀?"},
]


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that is answered with 200."""

    method: str
    path: str
    body: Any = None


def _chat(**fields: Any) -> Sample:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, **fields}
    return Sample("POST", "/v1/chat/completions", body)


def _text(**fields: Any) -> Sample:
    body = {"model": MODEL, "prompt": "One, two,", "max_tokens": 3, **fields}
    return Sample("POST", "/v1/completions", body)


def _response(**fields: Any) -> Sample:
    body = {"model": MODEL, "input": "Say hello.", "max_output_tokens": 3, **fields}
    return Sample("POST", "/v1/responses", body)


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}


CORPUS: list[Sample] = [
    _chat(),
    _chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    _chat(messages=DIALOGUE, tools=[WEATHER]),
    _chat(tools=[WEATHER], tool_choice="required", max_tokens=8),
    _chat(tools=[WEATHER], stream=True, parallel_tool_calls=False, tool_choice={
        "type": "function", "function": {"name": "get_weather"}}),
    _chat(response_format=_format(PERSON)),
    _chat(response_format={"type": "json_object"}, stream=True),
    _chat(structured_outputs={"regex": "[a-f]{1,4}(x|y)"}),
    _chat(structured_outputs={"choice": ["yes", "no"]}),
    _chat(structured_outputs={"json": PERSON}),
    _chat(structured_outputs={"grammar": 'start: "a" b\nb: /[0-9]+/'}),
    _chat(logprobs=True, top_logprobs=3, n=2, seed=7, temperature=0.7, top_p=0.9),
    _chat(stream=True, logprobs=True, top_logprobs=20, stop=["\n", "."], temperature=0),
    _chat(logit_bias={"11": -100, "7": 3.5}, presence_penalty=0.5, frequency_penalty=-0.5),
    _chat(top_k=5, min_p=0.05, repetition_penalty=1.1, min_tokens=1, ignore_eos=True),
    _chat(stop_token_ids=[2, 5], service_tier="flex", priority=5, request_id="mine.1"),
    _chat(max_completion_tokens=2, user="ann", metadata={"a": "b"}, store=False,
          reader_tokens_per_s=30.5, chat_template_kwargs={"enable_thinking": False}),
    _text(),
    _text(stream=True, n=2, stream_options={"include_usage": True}),
    _text(prompt=["One", "Two"], logprobs=2, seed=-1),
    _text(prompt=[504, 264, 3], echo=False, best_of=1),
    _text(prompt=[[504], [264, 3]], stop="x", stream=True, logprobs=0),
    _text(response_format={"type": "text"}, service_tier="priority", priority=-3),
    _response(),
    _response(stream=True, instructions="Be brief.", temperature=0.5, top_p=0.5),
    _response(input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                     {"role": "assistant", "content": "Hello"},
                     {"type": "message", "role": "developer", "content": "Go on."}]),
    _response(text={"format": {"type": "json_schema", "name": "it", "schema": PERSON}}),
    Sample("POST", "/tokenize", {"model": MODEL, "prompt": "Hello <|im_end|> world"}),
    Sample("POST", "/tokenize", {"messages": DIALOGUE}),
    Sample("POST", "/detokenize", {"model": MODEL, "tokens": [1, 2, 3, 504]}),
    Sample("POST", "/apply-template", {"messages": DIALOGUE, "tools": [WEATHER]}),
    Sample("GET", "/v1/models"),
    Sample("GET", f"/v1/models/{MODEL}"),
    Sample("GET", "/health"),
    Sample("GET", "/health/live"),
    Sample("GET", "/health/ready"),
    Sample("GET", "/metrics"),
    Sample("GET", "/schema/openapi.json"),
    Sample("HEAD", "/v1/models"),
]  # fmt: skip
