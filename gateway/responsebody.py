"""What POST /v1/responses may be sent, and the chat that it is."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tokenix.gateway.bodies import (
    ChatBody,
    ChatMessage,
    ContentPart,
    JsonSchema,
    Positive,
    ResponseFormat,
    Tier,
)
from tokenix.gateway.dialogue import text_of
from tokenix.gateway.errors import invalid


class InputItem(Struct, frozen=True):
    """One message of the input."""

    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    type: str = "message"


class TextFormat(Struct, frozen=True):
    """text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True):
    """Of the output's text."""

    format: TextFormat = TextFormat()


class ResponseBody(Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    model: str
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    service_tier: Tier | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    top_logprobs: Any = None
    background: bool | None = None
    tools: list[dict[str, Any]] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] | None = None
    reader_tokens_per_s: Annotated[float, Meta(gt=0, le=1e6)] | None = None


_UNSUPPORTED = {
    "previous_response_id": "responses are not kept; send the whole dialogue as input",
    "conversation": "conversations are not kept; send the whole dialogue as input",
    "prompt": "no prompts are kept; send it as input",
    "top_logprobs": "use /v1/chat/completions for log probabilities",
    "background": "a response ends with its connection; use stream",
    "tools": "use /v1/chat/completions for tools",
}


def as_chat(body: ResponseBody) -> ChatBody:
    """The chat that it asks for. ApiError 400 for what only OpenAI's own server keeps or calls."""
    for name, instead in _UNSUPPORTED.items():
        if getattr(body, name):
            raise invalid(f"{name} is not supported: {instead}", name)
    messages = []
    if body.instructions:
        messages.append(ChatMessage("system", body.instructions))
    if isinstance(body.input, str):
        messages.append(ChatMessage("user", body.input))
    else:
        messages += [_message(item, i) for i, item in enumerate(body.input)]
    return ChatBody(
        model=body.model, messages=messages, max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature, top_p=body.top_p, service_tier=body.service_tier,
        seed=body.seed, priority=body.priority, reader_tokens_per_s=body.reader_tokens_per_s,
        response_format=None if body.text is None else _format(body.text.format),
    )  # fmt: skip


def _message(item: InputItem, number: int) -> ChatMessage:
    where = f"input[{number}]"
    if item.type != "message":
        raise invalid(f"{where}: items of type {item.type[:40]!r} are not supported", where)
    if item.role is None:
        raise invalid(f"{where}.role is missing", f"{where}.role")
    return ChatMessage(item.role, text_of(item.content, f"{where}.content"))


def _format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        return ResponseFormat(given.type)
    if given.schema is None:
        raise invalid("text.format json_schema needs a schema", "text.format.schema")
    return ResponseFormat("json_schema", JsonSchema(given.schema, given.name))
