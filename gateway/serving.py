"""What one request is served with: the kernel as its caller sees it, the model, names and times."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from litestar.connection import Request

from tokenix.gateway.bodies import Sampling
from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.errors import ApiError
from tokenix.gateway.generation import Generation
from tokenix.gateway.job import Job
from tokenix.gateway.keys import Caller
from tokenix.gateway.likely import Vocabulary
from tokenix.gateway.link import Link
from tokenix.gateway.traffic import Traffic
from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.texts import ModelInfo


class House:
    """What all requests share."""

    def __init__(self, config: GatewayConfig, link: Link, traffic: Traffic) -> None:
        self.config = config
        self.link = link
        self.traffic = traffic
        self._vocabularies: tuple[str, Vocabulary] = ("", Vocabulary())

    def vocabulary(self) -> Vocabulary:
        """Of the model that is served now."""
        fingerprint = self.link.model.fingerprint
        if self._vocabularies[0] != fingerprint:
            self._vocabularies = (fingerprint, Vocabulary())
        return self._vocabularies[1]

    def names(self) -> list[str]:
        """What the served model may be called."""
        name = self.link.model.name
        return [name, *(alias for alias, of in self.config.aliases.items() if of == name)]

    def check_model(self, name: str) -> None:
        """ApiError 404 for a model that is not served."""
        if name not in self.names():
            raise ApiError(
                404, f"the model {name[:200]!r} is not served; there is {self.link.model.name!r}",
                param="model", code="model_not_found",
            )  # fmt: skip

    def serve(self, request: "Request[Any, Any, Any]", body: Sampling, model: str) -> "Serving":
        """ApiError 404 and 503."""
        self.check_model(model)
        state = request.scope["state"]
        caller: Caller = state["caller"]
        state["span"].note_model(model, self.link.model.name, caller.tenant)
        return Serving(
            config=self.config,
            kernel=self.link.of(caller),
            info=self.link.model,
            caller=caller,
            vocabulary=self.vocabulary(),
            model=model,
            request_id=body.request_id or state["request_id"],
            headers=request.headers,
        )


@dataclass(frozen=True, slots=True)
class Serving:
    """One request."""

    config: GatewayConfig
    kernel: Syscalls
    info: ModelInfo
    caller: Caller
    vocabulary: Vocabulary
    model: str
    """As its client calls it."""
    request_id: str
    headers: Mapping[str, str]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def fingerprint(self) -> str:
        return f"fp_{self.info.fingerprint[:12]}"

    def name(self, kind: str) -> str:
        """The id of an answer."""
        return f"{kind}-{self.request_id}"

    def generate(self, job: Job) -> Generation:
        job.options["name"] = self.request_id  # in `ps`, and in the log of the daemon
        return Generation(self.kernel, job)
