"""What the exported description promises, tried by schemathesis with whatever fits it, and what
does not."""

import json
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import MODEL, Gateway, rest

CHECKED = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
SHORT = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "n": 2}
"""So that what is generated does not take minutes."""


def load(gateway: Gateway) -> Any:
    with gateway.get("/schema/openapi.json") as wire:
        description = json.loads(wire.body())
    return schemathesis.openapi.from_dict(description)


def test_all_routes_are_described(gateway: Gateway) -> None:
    with gateway.get("/schema/openapi.json") as wire:
        description = wire.json()
    assert {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/tokenize",
        "/detokenize", "/apply-template", "/health", "/health/live", "/health/ready",
    } <= set(description["paths"])  # fmt: skip
    chat = description["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) >= {"200", "400", "401", "404", "429", "503"}
    name = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
    fields = description["components"]["schemas"][name]["properties"]
    assert {"messages", "model", "tools", "response_format", "stream_options", "n"} <= set(fields)


def fuzz(gateway: Gateway, k: Syscalls, examples: int, seed: int) -> None:
    for result in load(gateway).get_all_operations():
        operation = result.ok()

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=examples, deadline=None, database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.as_strategy())
        def one(case: Any) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                short = {name: value for name, value in SHORT.items() if name in case.body}
                limit = "max_output_tokens" if "responses" in case.path else "max_tokens"
                case.body = {**case.body, "model": MODEL, limit: 2, **short}
            case.call_and_validate(base_url=gateway.url, checks=CHECKED, timeout=60)

        one()
    rest(k)


def test_a_few_of_everything(gateway: Gateway, k: Syscalls, seed: int) -> None:
    fuzz(gateway, k, 4, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_of_everything(gateway: Gateway, k: Syscalls, seed: int) -> None:
    fuzz(gateway, k, 500, seed)
