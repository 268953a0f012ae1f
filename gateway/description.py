"""The OpenAPI description, at /schema: what litestar finds out, and the structs as msgspec reads
them, with every bound."""

from typing import Any, Final

import msgspec
from litestar.connection import Request
from litestar.openapi.plugins import JsonRenderPlugin

from tokenix.gateway import bodies
from tokenix.gateway.chat import ChatCompletion
from tokenix.gateway.completions import Completion
from tokenix.gateway.errors import ErrorBody
from tokenix.gateway.responsebody import ResponseBody
from tokenix.gateway.responses import ResponseObject

_STRUCTS: Final = (
    bodies.ChatBody, bodies.CompletionBody, bodies.TokenizeBody, bodies.DetokenizeBody,
    bodies.TemplateBody, ResponseBody, ChatCompletion, Completion, ResponseObject, ErrorBody,
)  # fmt: skip
_STREAMED: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


class Description(JsonRenderPlugin):
    """Renders it."""

    def __init__(self) -> None:
        super().__init__(path=["/", "/openapi.json"])

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        _, exact = msgspec.json.schema_components(
            _STRUCTS, ref_template="#/components/schemas/{name}"
        )
        schemas = openapi_schema["components"]["schemas"]
        assert set(schemas) & set(exact), "both call a struct by its name"
        paths = openapi_schema["paths"]
        for path in _STREAMED:
            content = paths[path]["post"]["responses"]["200"]["content"]
            content["text/event-stream"] = {"schema": {}}
        made = {**openapi_schema, "components": {"schemas": {**schemas, **exact}}}
        return msgspec.json.encode(made)
