"""What clients may send, as they send it: the bodies of requests, field by field.

Unknown fields are ignored, as OpenAI's own server does, but for those that would have made the
answer another one (`REFUSED`); a wrong type is an error with its path.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Tier = Literal["auto", "default", "flex", "scale", "priority"]


REFUSED: Final = {
    "audio": "answers are text",
    "allowed_token_ids": "use structured_outputs or logit_bias",
    "bad_words": "use logit_bias",
    "chat_template": "the model's own is used",
    "continue_final_message": "an answer is a message of its own",
    "echo": "an answer is what is generated",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "guided_choice": "use structured_outputs",
    "guided_grammar": "use structured_outputs",
    "guided_json": "use structured_outputs",
    "guided_regex": "use structured_outputs",
    "prompt_embeds": "a prompt is text or tokens",
    "prompt_logprobs": "only of what is generated there are log probabilities",
    "suffix": "a text is only continued",
    "truncate_prompt_tokens": "a prompt is taken whole or refused",
    "use_beam_search": "answers are drawn; ask for n",
    "web_search_options": "nothing is searched",
}
"""Fields of other servers that change what is answered -> what to do instead."""


class StreamOptions(Struct, frozen=True):
    """What else a stream brings."""

    include_usage: bool = False
    """A last chunk with the usage of the request."""
    continuous_usage_stats: bool = False
    """The usage so far in every chunk."""


class StructuredOutputs(Struct, frozen=True):
    """The form of an answer, as vLLM's clients say it. One of these."""

    json: dict[str, Any] | str | None = None
    """A JSON schema, or the text of one."""
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    grammar: str | None = None
    """In Lark's syntax."""


class Sampling(Struct, frozen=True, kw_only=True):
    """What all requests for text may say about how it is drawn and served."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Default 1, as OpenAI's; 0 is greedy."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    """0 or -1: all."""
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=1024)] | None = None
    """Token id, as a string -> what is added to its logit, -100 to 100."""
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    """Same seed, same text, however busy the machine is."""
    max_tokens: Positive | None = None
    min_tokens: Count | None = None
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=256)] | None = None
    n: Positive | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] | None = None
    """The nice value of the process: lower is served earlier; 0 to 19 for tenants."""
    service_tier: Tier | None = None
    """priority: first token first; flex: when nobody else wants the machine."""
    reader_tokens_per_s: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """How fast the text is read. Output that is further ahead may be paused for others."""
    request_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")] | None = None
    """Becomes part of the answer's id."""
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None


class ContentPart(Struct, frozen=True):
    """A part of a message. Only text is understood."""

    type: str
    text: str | None = None


class FunctionCall(Struct, frozen=True):
    """Which function is called, and with what."""

    name: str
    arguments: str
    """JSON."""


class ToolCall(Struct, frozen=True):
    """A call that the model has made."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True):
    """One message of a dialogue."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionSpec(Struct, frozen=True, omit_defaults=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None


class Tool(Struct, frozen=True):
    """A tool; functions are all there is."""

    function: FunctionSpec
    type: Literal["function"] = "function"


class FunctionName(Struct, frozen=True):
    """The function that must be called."""

    name: str


class NamedTool(Struct, frozen=True):
    """tool_choice: this function."""

    function: FunctionName
    type: Literal["function"] = "function"


class JsonSchema(Struct, frozen=True):
    """The form of an answer."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(Sampling, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the model's chat template (enable_thinking and the like)."""


class CompletionBody(Sampling, frozen=True, kw_only=True):
    """POST /v1/completions."""

    model: str
    prompt: str | list[str | Count | list[Count]]
    """A text, texts, tokens, or lists of tokens."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Positive | None = None
    response_format: ResponseFormat | None = None


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """POST /tokenize: a text as it is, or a dialogue."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: Annotated[list[Count], Meta(max_length=1 << 20)]
    model: str | None = None


class TemplateBody(Struct, frozen=True, kw_only=True):
    """POST /apply-template."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_REFUSED = msgspec.json.Decoder(
    msgspec.defstruct("_Refused", [(name, Any, None) for name in REFUSED], frozen=True)
)


def read_refused(body: bytes) -> str | None:
    """The first field of `REFUSED` that a body, sound JSON, has and that asks for something."""
    found = _REFUSED.decode(body)
    return next((name for name in REFUSED if getattr(found, name)), None)


def tool_specs(tools: list[Tool]) -> list[dict[str, Any]]:
    """Tools as templates expect them."""
    return [{"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in tools]
