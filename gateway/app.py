"""The application: routes behind a door, with the kernel at the other end of a link."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.openapi import OpenAPIConfig

from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.description import Description
from tokenix.gateway.door import Door, Gate
from tokenix.gateway.errors import ApiError, ErrorBody, internal, invalid
from tokenix.gateway.keyfile import Watched
from tokenix.gateway.keys import KeyRing
from tokenix.gateway.link import Connect, Link, log
from tokenix.gateway.routes import ROUTES
from tokenix.gateway.serving import House
from tokenix.gateway.spans import open_spans
from tokenix.gateway.traffic import Traffic

KEYS_S = 0.5
"""Between two looks at the file of API keys."""


class Application:
    """An ASGI application, and what its server needs to know of it."""

    def __init__(self, config: GatewayConfig, connect: Connect) -> None:
        self.gate = Gate(config.limits.requests)
        self.link = Link(connect, config.ready_s)
        self.traffic = Traffic()
        self.house = House(config, self.link, self.traffic)
        self.litestar = Litestar(
            ROUTES,
            state=State({"house": self.house}),
            lifespan=[self._lifespan],
            exception_handlers={
                ApiError: _api_error,
                HTTPException: _http_error,
                RecursionError: _too_deep,
                500: _failure,
            },
            openapi_config=OpenAPIConfig(
                title="Tokenix",
                version="1",
                description="OpenAI's API, served by processes",
                render_plugins=[Description()],
            ),
            request_max_body_size=None,
            debug=False,
            logging_config=None,
        )
        self.spans = open_spans(config.otlp_endpoint)
        ring = KeyRing(config.keys, config.tenant)
        self._keys = Watched(Path(config.keys_file), ring) if config.keys_file else None
        self.asgi = Door(self.litestar, config.limits, ring, self.gate, self.traffic, self.spans)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Litestar) -> AsyncIterator[None]:
        await self.link.open()
        watching = asyncio.create_task(self._watch_keys())
        try:
            yield
        finally:
            watching.cancel()
            await self.link.close()
            await anyio.to_thread.run_sync(self.spans.close)

    async def _watch_keys(self) -> None:
        while self._keys is not None:
            self._keys.look()
            await asyncio.sleep(KEYS_S)


def _response(error: ApiError) -> Response[ErrorBody]:
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(ErrorBody(error.info), status_code=error.status, headers=headers)


def _api_error(_: Request[Any, Any, Any], error: ApiError) -> Response[ErrorBody]:
    return _response(error)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[ErrorBody]:
    """What the framework refuses."""
    if isinstance(error, NotFoundException):
        return _response(ApiError(404, f"there is no {request.url.path[:200]}", code="not_found"))
    if isinstance(error, MethodNotAllowedException):
        made = _response(ApiError(
            405, f"{request.method} is not allowed here", code="method_not_allowed"
        ))  # fmt: skip
        made.headers.update(error.headers or {})
        return made
    if error.status_code >= 500:
        log.error("request failed", error=repr(error))
        return _response(internal())
    if error.status_code == 400:  # the framework looks at nothing else of a request
        return _response(invalid("the body is empty; send JSON"))
    return _response(ApiError(error.status_code, error.detail or "the request is not valid"))


def _too_deep(_: Request[Any, Any, Any], error: RecursionError) -> Response[ErrorBody]:
    """Whatever is recursive here goes over what a client has nested: bodies, schemas, arguments."""
    return _response(invalid("the body is nested too deeply; nest it less"))


def _failure(_: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    log.error("request failed", exc_info=error)
    return _response(internal())
