"""GET /metrics of a gateway that serves the real model."""

import http.client
from typing import Any

import openai
from prometheus_client.parser import text_string_to_metric_families as parse

from tokenix.gateway.keys import hash_key
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Gateway, open_gateway, rest, until


def scrape(port: int, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


def total(text: str, name: str, **labels: str) -> float:
    return sum(
        sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_what_clients_got_is_what_is_shown(gateway: Gateway, client: openai.OpenAI) -> None:
    status, before = scrape(gateway.port)
    assert status == 200
    used = [
        client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=5, service_tier="priority"
        ).usage
        for _ in range(2)
    ]
    _, after = scrape(gateway.port)

    def grown(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert all(one is not None for one in used)
    completion = sum(one.completion_tokens for one in used if one)
    labels = {"class": "interactive", "tenant": "default"}
    assert grown("tokenix_generation_tokens_total", **labels) == completion
    prompt = sum(one.prompt_tokens for one in used if one)
    assert grown("tokenix_prompt_tokens_total", **labels) == prompt
    assert grown("tokenix_prefix_cache_hits_total") == sum(
        one.prompt_tokens_details.cached_tokens
        for one in used if one and one.prompt_tokens_details
    )  # fmt: skip
    assert grown("tokenix_time_to_first_token_seconds_count", **labels) == 2
    assert grown("tokenix_requests_finished_total", **labels) == 2
    path = "/v1/chat/completions"
    assert grown("tokenix_http_requests_total", path=path, method="POST", status="200") == 2
    assert grown("tokenix_http_requests_total", path="/metrics", status="200") == 1
    assert total(after, "tokenix_model_info", model=MODEL) == 1


def test_a_client_that_goes_away_is_counted_and_its_stream_closed(gateway: Gateway) -> None:
    _, before = scrape(gateway.port)
    wire = gateway.chat(stream=True, max_tokens=800, ignore_eos=True)
    assert wire.head().status == 200
    assert total(scrape(gateway.port)[1], "tokenix_http_streams") == 1
    wire.socket.close()
    until(lambda: total(scrape(gateway.port)[1], "tokenix_http_streams") == 0)
    _, after = scrape(gateway.port)
    for name, labels in (
        ("tokenix_http_disconnects_total", {"path": "/v1/chat/completions"}),
        ("tokenix_requests_finished_total", {"finished_reason": "killed"}),
    ):
        assert total(after, name, **labels) - total(before, name, **labels) == 1, name


def test_only_keys_for_it_read_metrics(k: Syscalls) -> None:
    roles = ("metrics", "tenant", "root")
    keys: list[dict[str, Any]] = [
        {"sha256": hash_key(f"sk-{role}"), "tenant": "one", "role": role} for role in roles
    ]
    with open_gateway(k, keys=keys, metrics_compat="vllm") as gateway:
        assert scrape(gateway.port)[0] == 401
        for role, status in (("metrics", 200), ("tenant", 403), ("root", 200)):
            got, text = scrape(gateway.port, Authorization=f"Bearer sk-{role}")
            assert got == status
            assert ("vllm:num_requests_running" in text) == (status == 200)
    rest(k)
