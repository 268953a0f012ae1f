"""Spans of requests, as a collector gets them."""

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.spans import Spans, open_spans
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Gateway, open_gateway, rest, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def gateway(k: Syscalls, memory: InMemorySpanExporter) -> Iterator[Gateway]:
    """A gateway whose spans stay in memory."""
    with open_gateway(k) as opened:
        opened.server.application.asgi._spans = Spans([SimpleSpanProcessor(memory)])
        yield opened


def the_span(memory: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    """The only one since the last look."""
    until(memory.get_finished_spans)
    (span,) = memory.get_finished_spans()
    memory.clear()
    return span, dict(span.attributes or {})


def test_a_chat_is_a_span(client: openai.OpenAI, memory: InMemorySpanExporter) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=4,
        n=2,
        extra_body={"ignore_eos": True},
        extra_headers={"traceparent": PARENT},
    )
    span, said = the_span(memory)
    assert span.name == f"chat {MODEL}" and span.kind.name == "SERVER"
    assert span.parent is not None and f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "tokenix"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == MODEL
    assert answer.usage is not None
    assert said["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert said["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens
    assert list(said["gen_ai.response.finish_reasons"]) == ["length", "length"]
    assert 0 < said["gen_ai.server.time_to_first_token"] < 60
    assert said["http.response.status_code"] == 200 and said["tokenix.preemptions"] == 0
    assert span.status.status_code is not StatusCode.ERROR
    assert answer.id.endswith(str(said["tokenix.request_id"]))
    assert not [value for value in said.values() if "hello" in str(value).lower()], "no content"


def test_a_stream_is_a_span_to_its_end(client: openai.OpenAI, memory: InMemorySpanExporter) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt="One, two,",
            max_tokens=6,
            stream=True,
            extra_body={"ignore_eos": True},
        )
    )
    span, said = the_span(memory)
    assert chunks and span.name == f"text_completion {MODEL}"
    assert said["gen_ai.usage.output_tokens"] == 6


def test_failures_are_errors(gateway: Gateway, memory: InMemorySpanExporter) -> None:
    wire = gateway.chat(model="nothing-such")
    assert wire.head().status == 404
    wire.socket.close()
    span, said = the_span(memory)
    assert span.status.status_code is StatusCode.ERROR
    assert said["error.type"] == "404" and "gen_ai.response.model" not in said


def test_a_client_that_goes_away_is_one_too(gateway: Gateway, memory: InMemorySpanExporter) -> None:
    wire = gateway.chat(stream=True, max_tokens=800, ignore_eos=True)
    assert wire.head().status == 200
    wire.socket.close()
    span, said = the_span(memory)
    assert span.status.status_code is StatusCode.ERROR
    assert said["error.type"] == "client_disconnect"
    assert list(said["gen_ai.response.finish_reasons"]) == ["killed"]
    assert said["gen_ai.usage.output_tokens"] > 0


def test_other_paths_have_none(client: openai.OpenAI, memory: InMemorySpanExporter) -> None:
    assert list(client.models.list())
    assert memory.get_finished_spans() == ()


def test_a_collector_gets_them(k: Syscalls) -> None:
    got: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        spans = open_spans(endpoint)
        spans.begin("/v1/chat/completions", {}, "id-1").end(200, {})
        spans.close()
        server.shutdown()
    (told,) = [ExportTraceServiceRequest.FromString(body) for body in got]
    (span,) = told.resource_spans[0].scope_spans[0].spans
    assert span.name == "chat"
    service = {a.key: a.value.string_value for a in told.resource_spans[0].resource.attributes}
    assert service["service.name"] == "tokenix"
    rest(k)


def test_without_an_endpoint_nothing_happens() -> None:
    span = open_spans("").begin("/v1/chat/completions", {}, "id")
    span.note_model("a", "b", "c")
    span.end(200, {})


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://x"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="otlp_endpoint"):
        msgspec.convert({"otlp_endpoint": endpoint}, GatewayConfig)
