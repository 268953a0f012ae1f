"""From a body to what the kernel is asked: prompts and the options of `spawn`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tokenix.gateway import dialogue, tools
from tokenix.gateway.bodies import ChatBody, CompletionBody, Sampling, StructuredOutputs
from tokenix.gateway.config import Limits
from tokenix.gateway.errors import invalid
from tokenix.gateway.keys import Caller
from tokenix.syscalls.types import Prompt

COMPLETION_TOKENS: Final = 16
"""max_tokens of a completion that does not say, as OpenAI's. A chat's is the kernel's default."""

MAX_BIAS: Final = 100

_TIERS: Final = {
    None: ("stream", "default"),
    "auto": ("stream", "default"),
    "default": ("stream", "default"),
    "scale": ("stream", "default"),
    "flex": ("batch", "flex"),
    "priority": ("interactive", "priority"),
}
"""service_tier -> the class of the process, and what the answer calls it."""

_PLAIN: Final = (
    "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens",
)  # fmt: skip
"""Fields that are options of the same name."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated. Answer i of prompt p has the index p * n + i."""

    prompts: Sequence[Prompt]
    n: int
    options: dict[str, Any]
    tier: str
    stop_tokens: frozenset[int]
    has_tools: bool = False
    """Calls of tools are looked for in the output."""
    parallel: bool = True
    usage: bool = False
    """A stream ends with its usage."""
    usage_always: bool = False
    top: int = -1
    """How many likely tokens are reported beside each; -1: no log probabilities."""
    names: dict[int, str] = field(default_factory=dict)
    prompt_field: str = "messages"
    """Of the body: where the prompt comes from ..."""
    form_field: str = "response_format"
    """... and the grammar."""

    @property
    def count(self) -> int:
        return len(self.prompts) * self.n


def of_chat(
    body: ChatBody, caller: Caller, limits: Limits, headers: Mapping[str, str], has_tools: bool
) -> Job:
    """`has_tools`: whether the model's template tells it of tools. ApiError 400."""
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    choice = tools.read_choice(body, limits)
    told = choice.offered
    prompt = dialogue.render(body.messages, limits, () if has_tools else told, has_tools)
    options = _options(body, caller, limits, headers)
    tokens = body.max_completion_tokens or body.max_tokens
    if tokens is not None:
        options["max_tokens"] = tokens
    if told and has_tools:
        options["tools"] = told
    if body.chat_template_kwargs:
        options["template"] = body.chat_template_kwargs
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    grammar, form_field = _form(body, limits)
    if choice.grammar is not None:
        if grammar is not None:
            raise invalid(f"a forced tool call leaves no room for {form_field}", form_field)
        grammar, form_field = choice.grammar, "tools"
    if grammar is not None:
        options["grammar"] = grammar
    return _job(
        body, [prompt], options, limits, has_tools=bool(told), parallel=choice.parallel,
        top=(body.top_logprobs or 0) if body.logprobs else -1, form_field=form_field,
    )  # fmt: skip


def of_completion(
    body: CompletionBody, caller: Caller, limits: Limits, headers: Mapping[str, str]
) -> Job:
    """ApiError 400."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of other than n is not supported", "best_of")
    options = _options(body, caller, limits, headers)
    options["raw"] = True
    options["max_tokens"] = body.max_tokens or COMPLETION_TOKENS
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    grammar, form_field = _form(body, limits)
    if grammar is not None:
        options["grammar"] = grammar
    top = -1 if body.logprobs is None else body.logprobs
    prompts = _prompts(body.prompt, limits)
    return _job(
        body, prompts, options, limits, top=top, prompt_field="prompt", form_field=form_field
    )


def _job(
    body: Sampling, prompts: Sequence[Prompt], options: dict[str, Any], limits: Limits, **more: Any
) -> Job:
    n = body.n or 1
    if len(prompts) > limits.choices:
        raise invalid(
            f"{len(prompts)} prompts are more than the {limits.choices} a request may have",
            "prompt",
        )
    if n * len(prompts) > limits.choices:
        raise invalid(
            f"{n * len(prompts)} answers are more than the {limits.choices} a request may have", "n"
        )
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true", "stream_options")
    if n > 1:
        options["keep_open"] = True  # so that it can be forked even when it has ended
    stream = body.stream_options
    return Job(
        prompts, n, options, _TIERS[body.service_tier][1],
        frozenset(body.stop_token_ids or ()),
        usage=stream is not None and (stream.include_usage or stream.continuous_usage_stats),
        usage_always=stream is not None and stream.continuous_usage_stats,
        **more,
    )  # fmt: skip


def _options(
    body: Sampling, caller: Caller, limits: Limits, headers: Mapping[str, str]
) -> dict[str, Any]:
    """Options of `spawn` that all requests have."""
    options: dict[str, Any] = {
        name: value for name in _PLAIN if (value := getattr(body, name)) is not None
    }
    options["temperature"] = 1.0 if body.temperature is None else body.temperature
    options["qos"] = _TIERS[body.service_tier][0]
    if body.top_k is not None and body.top_k > 0:
        options["top_k"] = body.top_k
    if body.ignore_eos:
        options["ignore_eos"] = True
    if body.seed is not None:
        options["seed"] = body.seed & 0x7FFF_FFFF_FFFF_FFFF
    if body.logit_bias:
        options["logit_bias"] = {
            _token(key): _bias(key, bias) for key, bias in body.logit_bias.items()
        }
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > limits.stop_strings:
        raise invalid(f"at most {limits.stop_strings} stop strings, not {len(stops)}", "stop")
    if stops:
        options["stop"] = stops
    if body.stop_token_ids:
        options["stop_tokens"] = body.stop_token_ids
    if body.priority:
        options["nice"] = max(-20 if caller.role == "root" else 0, min(19, body.priority))
    rate = body.reader_tokens_per_s or _rate_of(headers)
    if rate is not None:
        options["tokens_per_s"] = rate
    return options


def _rate_of(headers: Mapping[str, str]) -> float | None:
    given = headers.get("x-reader-tokens-per-s")
    if given is None:
        return None
    try:
        rate = float(given)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1e6:
        raise invalid(
            "the header X-Reader-Tokens-Per-S is a number above 0", "x-reader-tokens-per-s"
        )
    return rate


def _token(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        where = f"logit_bias.{text[:40]}"
        raise invalid(f"logit_bias: {text[:40]!r} is not a token id", where)
    return int(text)


def _bias(key: str, bias: float) -> float:
    if not -MAX_BIAS <= bias <= MAX_BIAS:
        raise invalid(
            f"logit_bias of {key} is {bias:g}; give {-MAX_BIAS} to {MAX_BIAS}", f"logit_bias.{key}"
        )
    return bias


def _form(body: ChatBody | CompletionBody, limits: Limits) -> tuple[dict[str, Any] | None, str]:
    """The grammar of an answer, if it is to have one, and the field that says so."""
    asked, field_name = _structured(body.structured_outputs, limits), "structured_outputs"
    given = body.response_format
    if given is None or given.type == "text":
        return asked, field_name if asked is not None else "response_format"
    if asked is not None:
        raise invalid("structured_outputs leaves no room for response_format", "response_format")
    if given.type == "json_object":
        return {"json_object": True}, "response_format"
    if given.json_schema is None:
        raise invalid(
            "response_format json_schema needs json_schema", "response_format.json_schema"
        )
    check_size(given.json_schema.schema, "response_format.json_schema.schema", limits)
    return {"json_schema": given.json_schema.schema}, "response_format"


def _structured(given: StructuredOutputs | None, limits: Limits) -> dict[str, Any] | None:
    if given is None:
        return None
    forms = {
        name: value
        for name in ("json", "json_object", "regex", "choice", "grammar")
        if (value := getattr(given, name)) not in (None, False)
    }
    if len(forms) != 1:
        what = " and ".join(forms) or "none"
        raise invalid(
            f"structured_outputs has one of json, json_object, regex, choice, grammar, not {what}",
            "structured_outputs",
        )
    ((name, form),) = forms.items()
    check_size(form, f"structured_outputs.{name}", limits)
    if name == "json" and isinstance(form, str):
        try:
            form = msgspec.json.decode(form, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise invalid(
                "structured_outputs.json is no JSON object", "structured_outputs.json"
            ) from None
    return {{"json": "json_schema", "grammar": "lark"}.get(name, name): form}


def check_size(value: object, where: str, limits: Limits) -> None:
    """400 for a schema that is too large to be worth compiling."""
    size = len(msgspec.json.encode(value))
    if size > limits.schema_bytes:
        raise invalid(f"{where} has {size} bytes, at most {limits.schema_bytes} are allowed", where)


def _prompts(given: str | Sequence[str | int | Sequence[int]], limits: Limits) -> list[Prompt]:
    if isinstance(given, str):
        prompts: list[Prompt] = [given]
    elif all(isinstance(item, int) for item in given):
        prompts = [[item for item in given if isinstance(item, int)]]
    elif any(isinstance(item, int) for item in given):
        raise invalid("prompt mixes tokens with texts or lists", "prompt")
    else:
        prompts = [item for item in given if not isinstance(item, int)]
    for prompt in prompts:
        if not prompt:
            raise invalid("the prompt is empty; give text or tokens", "prompt")
        if len(prompt) > limits.prompt_chars:
            raise invalid(
                f"the prompt is longer than {limits.prompt_chars} characters", "prompt",
                "context_length_exceeded",
            )  # fmt: skip
    return prompts
