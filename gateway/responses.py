"""Answers to POST /v1/responses, whole and as OpenAI's named events."""

from typing import Any, Literal

import msgspec
from litestar.types import Send

from tokenix.gateway.answer import Answer, Events, respond
from tokenix.gateway.errors import ApiError
from tokenix.gateway.job import Job
from tokenix.gateway.responsebody import ResponseBody, TextOptions
from tokenix.gateway.serving import Serving
from tokenix.gateway.usage import PromptDetails, Timings, timings_of
from tokenix.syscalls.alarm import Later
from tokenix.syscalls.types import ExitReason, ReadResult, Rusage, text_of

encode = msgspec.json.Encoder().encode

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says."""

    type: Literal["message"] = "message"
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why it was cut off."""

    reason: Literal["max_output_tokens"]


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: PromptDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    service_tier: str
    store: bool = False
    temperature: float
    text: TextOptions
    tool_choice: Literal["auto"] = "auto"
    tools: list[Any] = []
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, Any]
    timings: Timings | None = None


class ResponseAnswer(Answer):
    """The answer to one request."""

    done_event = b""

    def __init__(self, serving: Serving, body: ResponseBody, job: Job) -> None:
        super().__init__(serving.kernel, serving.generate(job), serving.config)
        self._serving, self._body, self._job = serving, body, job
        self._texts: list[str] = []
        self._events = 0
        """Written so far."""
        self._length = False
        """Whether it was cut off."""
        self._usage: Rusage | None = None

    @property
    def streams(self) -> bool:
        return bool(self._body.stream)

    def error_event(self, error: ApiError) -> bytes:
        info = error.info
        return self._event("error", code=info.code, message=info.message, param=info.param)

    async def generate(self, send: Send) -> None:
        def take(_: int, result: ReadResult) -> None:
            self._texts.append(text_of(result))

        await self.generation.run(take, self._ended)
        await respond(send, encode(self._response(self._status)))

    async def _ended(self, _: int, result: ReadResult, usage: Rusage) -> None:
        end = result.turn_ended
        self._texts.append(text_of(result))
        self._length = end is not None and end.reason is ExitReason.LENGTH
        self._usage = usage

    async def stream(self, events: Events) -> None:
        place = {"item_id": self._serving.name("msg"), "output_index": 0, "content_index": 0}
        begun = False

        def say(text: str) -> bytes:
            nonlocal begun
            data = b"" if begun else self._beginning()
            begun = True
            if text:
                data += self._event("response.output_text.delta", **place, delta=text, logprobs=[])
            return data

        def take(_: int, result: ReadResult) -> Later | None:
            text = text_of(result)
            self._texts.append(text)
            data = say(text)
            return events.push(data) if data else None

        async def ended(index: int, result: ReadResult, usage: Rusage) -> None:
            await self._ended(index, result, usage)
            data = say(self._texts[-1])
            if data:
                await events.write(data)

        await self.generation.run(take, ended)
        message = self._message(self._status)
        text = message.content[0].text
        kind = "response.incomplete" if self._length else "response.completed"
        await events.write(
            self._event("response.output_text.done", **place, text=text, logprobs=[])
            + self._event("response.content_part.done", **place, part=message.content[0])
            + self._event("response.output_item.done", output_index=0, item=message)
            + self._event(kind, response=self._response(self._status))
        )

    def _beginning(self) -> bytes:
        """The events before the first text."""
        begun = self._response("in_progress")
        message = self._message("in_progress", content=False)
        return (
            self._event("response.created", response=begun)
            + self._event("response.in_progress", response=begun)
            + self._event("response.output_item.added", output_index=0, item=message)
            + self._event(
                "response.content_part.added", item_id=message.id, output_index=0,
                content_index=0, part=OutputText(text=""),
            )
        )  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        data = encode({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    @property
    def _status(self) -> Status:
        return "incomplete" if self._length else "completed"

    def _message(self, status: Status, content: bool = True) -> OutputMessage:
        return OutputMessage(
            id=self._serving.name("msg"),
            status=status,
            content=[OutputText(text="".join(self._texts))] if content else [],
        )

    def _response(self, status: Status) -> ResponseObject:
        body, used = self._body, self._usage
        return ResponseObject(
            id=self._serving.name("resp"),
            created_at=self._serving.created,
            status=status,
            incomplete_details=IncompleteDetails("max_output_tokens") if self._length else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=self._serving.model,
            output=[] if status == "in_progress" else [self._message(status)],
            service_tier=self._job.tier,
            temperature=1.0 if body.temperature is None else body.temperature,
            text=body.text or TextOptions(),
            top_p=1.0 if body.top_p is None else body.top_p,
            usage=None if used is None else _usage_of(used),
            user=body.user,
            metadata=body.metadata or {},
            timings=None if used is None else timings_of([used]),
        )


def _usage_of(used: Rusage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=used.prompt_tokens,
        input_tokens_details=PromptDetails(used.cached_tokens),
        output_tokens=used.output_tokens,
        total_tokens=used.prompt_tokens + used.output_tokens,
    )
