"""A span of each request that generates, by the OpenTelemetry conventions for generative AI. Off
unless there is an endpoint to send them to; nothing of OpenTelemetry is imported then.

    gen_ai.*    operation, models, tokens, why it ended, time to the first token
    tokenix.*   what preemption did to it: seconds in the queue and paused, preemptions, stalls

No prompt and no output is in a span.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tokenix.gateway.generation import Generation

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span

OPERATIONS: Final = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""Paths that generate."""

EXPORT_S: Final = 5.0
"""A collector that does not take spans for so long does not get them."""


class RequestSpan:
    """The span of one request, or nothing."""

    def __init__(self, span: "Span | None", operation: str = "") -> None:
        self._span = span
        self._operation = operation
        self._began_s = time.monotonic()

    def note_model(self, asked: str, served: str, tenant: str) -> None:
        """Which model it is for, as its client and as the server call it; whose it is."""
        if self._span is not None:
            self._span.update_name(f"{self._operation} {served}")
            self._span.set_attributes({
                "gen_ai.request.model": asked,
                "gen_ai.response.model": served,
                "tokenix.tenant": tenant,
            })  # fmt: skip

    def note_generation(self, generation: Generation) -> None:
        """All that was generated, however it ended."""
        if self._span is None:
            return
        ends = [reason for _, reason, _ in generation.used]
        usages = [usage for _, _, usage in generation.used]
        prompts = [usage for head, _, usage in generation.used if head]
        self._span.set_attributes({
            "gen_ai.usage.input_tokens": sum(usage.prompt_tokens for usage in prompts),
            "gen_ai.usage.cache_read.input_tokens": sum(usage.cached_tokens for usage in prompts),
            "gen_ai.usage.output_tokens": sum(usage.output_tokens for usage in usages),
            "gen_ai.response.finish_reasons": ends,
            "tokenix.queue_s": sum(usage.queue_s for usage in usages),
            "tokenix.paused_s": sum(usage.paused_s for usage in usages),
            "tokenix.preemptions": sum(usage.preemptions for usage in usages),
            "tokenix.stalls": sum(usage.stalls for usage in usages),
        })  # fmt: skip
        if generation.begun_s is not None:
            ttft_s = generation.begun_s - self._began_s
            self._span.set_attribute("gen_ai.server.time_to_first_token", ttft_s)

    def end(self, status: int, notes: Mapping[str, Any]) -> None:
        """The request is over. `notes`: what the log says of it."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        if status:
            self._span.set_attribute("http.response.status_code", status)
        problem = "client_disconnect" if "aborted" in notes else str(notes.get("error", ""))
        if problem or status >= 400:
            self._span.set_attribute("error.type", problem or str(status))
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class Spans:
    """Where spans come from, and where they go."""

    def __init__(self, processors: "Sequence[SpanProcessor]" = ()) -> None:
        """Without processors every span is nothing."""
        self._provider = _provide(processors) if processors else None

    def begin(self, path: str, headers: Mapping[bytes, bytes], request_id: str) -> RequestSpan:
        """The span of a request that has just come; within that of its client, if it says so."""
        operation = OPERATIONS.get(path)
        if self._provider is None or operation is None:
            return RequestSpan(None)
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        fields = ("traceparent", "tracestate")
        carrier = {name: headers.get(name.encode(), b"").decode("latin-1") for name in fields}
        span = self._provider.get_tracer("tokenix.gateway").start_span(
            operation,
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "tokenix",
                "tokenix.request_id": request_id,
            },
        )
        return RequestSpan(span, operation)

    def close(self) -> None:
        """Send what is left. Blocks, for some seconds if nobody takes it."""
        if self._provider is not None:
            self._provider.shutdown()


def _provide(processors: "Sequence[SpanProcessor]") -> "TracerProvider":
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource.create({"service.name": "tokenix"}))
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def open_spans(endpoint: str) -> Spans:
    """Spans are sent to `endpoint` (OTLP over HTTP); "": there are none."""
    if not endpoint:
        return Spans()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return Spans([BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_S))])
