"""What can be asked for, by path. Each handler turns a body into a job or an answer."""

from dataclasses import replace
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from litestar.types import ASGIApp

from tokenix.gateway import dialogue, job
from tokenix.gateway.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TemplateBody,
    TokenizeBody,
    tool_specs,
)
from tokenix.gateway.chat import ChatAnswer, ChatCompletion
from tokenix.gateway.completions import Completion, TextAnswer
from tokenix.gateway.errors import ErrorBody, invalid, of_kernel
from tokenix.gateway.jsonbody import JsonBody
from tokenix.gateway.metrics import render
from tokenix.gateway.responsebody import ResponseBody, as_chat
from tokenix.gateway.responses import ResponseAnswer, ResponseObject
from tokenix.gateway.serving import House

_FAILS = (400, 401, 403, 404, 408, 410, 413, 415, 429, 500, 503, 504)


def _responses(kind: Any, what: str) -> dict[int, ResponseSpec]:
    found = {200: ResponseSpec(kind, generate_examples=False, description=what)}
    for status in _FAILS:
        found[status] = ResponseSpec(ErrorBody, generate_examples=False, description="an error")
    return found


def _house(state: State) -> House:
    house = state.house
    assert isinstance(house, House)
    return house


@post(
    "/v1/chat/completions",
    dto=JsonBody[ChatBody],
    status_code=200,
    responses=_responses(ChatCompletion, "the answer; with stream: true, server-sent events"),
)
async def chat_completions(
    data: JSONBody[ChatBody], request: Request[Any, Any, Any], state: State
) -> ASGIApp:
    """Answer a dialogue."""
    house = _house(state)
    serving = house.serve(request, data, data.model)
    limits, has_tools = house.config.limits, serving.info.knows_tools
    asked = job.of_chat(data, serving.caller, limits, serving.headers, has_tools)
    return ChatAnswer(serving, asked, bool(data.stream))


@post(
    "/v1/completions",
    dto=JsonBody[CompletionBody],
    status_code=200,
    responses=_responses(Completion, "the answer; with stream: true, server-sent events"),
)
async def completions(
    data: JSONBody[CompletionBody], request: Request[Any, Any, Any], state: State
) -> ASGIApp:
    """Continue a text."""
    house = _house(state)
    serving = house.serve(request, data, data.model)
    asked = job.of_completion(data, serving.caller, house.config.limits, serving.headers)
    return TextAnswer(serving, asked, bool(data.stream))


@post(
    "/v1/responses",
    dto=JsonBody[ResponseBody],
    status_code=200,
    responses=_responses(ResponseObject, "the response; with stream: true, server-sent events"),
)
async def responses(
    data: JSONBody[ResponseBody], request: Request[Any, Any, Any], state: State
) -> ASGIApp:
    """Answer with text, in the form of OpenAI's newer API."""
    house = _house(state)
    chat = as_chat(data)
    serving = house.serve(request, chat, data.model)
    limits, has_tools = house.config.limits, serving.info.knows_tools
    asked = job.of_chat(chat, serving.caller, limits, serving.headers, has_tools)
    asked = replace(asked, prompt_field="input", form_field="text.format")
    return ResponseAnswer(serving, data, asked)


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tokenix"
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@get("/v1/models", responses=_responses(ModelList, "all models"))
async def models(state: State) -> ModelList:
    """What is served, by all its names."""
    house = _house(state)
    info = house.link.model
    return ModelList(data=[
        ModelCard(id=name, root=info.name, max_model_len=info.context_tokens)
        for name in house.names()
    ])  # fmt: skip


@get("/v1/models/{name:path}", responses=_responses(ModelCard, "the model"))
async def one_model(name: FromPath[str], state: State) -> ModelCard:
    """One model by its name."""
    house = _house(state)
    name = name.removeprefix("/")
    house.check_model(name)
    info = house.link.model
    return ModelCard(id=name, root=info.name, max_model_len=info.context_tokens)


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a text."""

    tokens: list[int]
    count: int
    max_model_len: int


@post(
    "/tokenize", dto=JsonBody[TokenizeBody], status_code=200, responses=_responses(Tokens, "tokens")
)
async def tokenize(
    data: JSONBody[TokenizeBody], request: Request[Any, Any, Any], state: State
) -> Tokens:
    """The tokens of a text, or of a dialogue as the model sees it."""
    house = _house(state)
    kernel, info = house.link.of(request.scope["state"]["caller"]), house.link.model
    _check(house, data.model)
    if (data.prompt is None) == (data.messages is None):
        raise invalid("give prompt or messages", "prompt")
    try:
        if data.messages is None:
            tokens = await kernel.tokenize(data.prompt or "", raw=True)
        else:
            rendered = dialogue.render(data.messages, house.config.limits, (), info.knows_tools)
            tokens = await kernel.tokenize(rendered)
    except OSError as why:
        raise of_kernel(why, "prompt" if data.messages is None else "messages") from why
    return Tokens(tokens=list(tokens), count=len(tokens), max_model_len=info.context_tokens)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    prompt: str


@post(
    "/detokenize", dto=JsonBody[DetokenizeBody], status_code=200, responses=_responses(Text, "text")
)
async def detokenize(
    data: JSONBody[DetokenizeBody], request: Request[Any, Any, Any], state: State
) -> Text:
    """The text of tokens, special ones by their names."""
    house = _house(state)
    kernel = house.link.of(request.scope["state"]["caller"])
    _check(house, data.model)
    try:
        return Text(prompt=await kernel.detokenize(data.tokens, special=True))
    except OSError as why:
        raise of_kernel(why, "tokens") from why


@post(
    "/apply-template",
    dto=JsonBody[TemplateBody],
    status_code=200,
    responses=_responses(Text, "text"),
)
async def apply_template(
    data: JSONBody[TemplateBody], request: Request[Any, Any, Any], state: State
) -> Text:
    """A dialogue as the model sees it."""
    house = _house(state)
    kernel, info = house.link.of(request.scope["state"]["caller"]), house.link.model
    _check(house, data.model)
    told = tool_specs(data.tools or [])
    knows = info.knows_tools
    rendered = dialogue.render(data.messages, house.config.limits, () if knows else told, knows)
    options: dict[str, Any] = {"tools": told} if told and knows else {}
    if data.chat_template_kwargs:
        options["template"] = data.chat_template_kwargs
    try:
        tokens = await kernel.tokenize(rendered, **options)
        return Text(prompt=await kernel.detokenize(tokens, special=True))
    except OSError as why:
        raise of_kernel(why, "messages") from why


def _check(house: House, model: str | None) -> None:
    if model is not None:
        house.check_model(model)


class Health(msgspec.Struct, frozen=True):
    """How it is."""

    status: str


@get("/health/live")
async def live() -> Health:
    """The gateway runs."""
    return Health("ok")


@get(["/health", "/health/ready"], raises=[])
async def ready(state: State, request: Request[Any, Any, Any]) -> Response[Health]:
    """The model is loaded and the scheduler goes on; 503 if not, and while shutting down."""
    house = _house(state)
    why = house.link.why_not_ready()
    if request.scope["state"]["gate"].draining:
        why = "shutting down"
    if why:
        return Response(Health(why), status_code=503, headers={"Retry-After": "2"})
    return Response(Health("ok"))


@get("/metrics", include_in_schema=False)
async def metrics(state: State, request: Request[Any, Any, Any]) -> Response[bytes]:
    """What Prometheus reads."""
    house = _house(state)
    kernel, model = house.link.kernel, house.link.model.name
    try:
        report, figures = await kernel.metrics(), await kernel.vmstat()
    except OSError as why:
        raise of_kernel(why) from why
    compat, accept = house.config.metrics_compat, request.headers.get("accept", "")
    body, media_type = render(report, figures, model, compat, house.traffic, accept)
    return Response(body, headers={"Content-Type": media_type})


ROUTES = [
    chat_completions, completions, responses, models, one_model, tokenize, detokenize,
    apply_template, live, ready, metrics,
]  # fmt: skip
