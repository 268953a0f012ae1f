"""Answers to POST /v1/chat/completions, whole and streamed.

A chunk is a constant head and tail around one encoded value, so that a token costs an encoding of
its text and a write.
"""

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from litestar.types import Send

from tokenix.gateway.answer import Answer, Events, respond
from tokenix.gateway.job import Job
from tokenix.gateway.likely import ChatLogprobs, shown
from tokenix.gateway.serving import Serving
from tokenix.gateway.tools import Call, CallFinder
from tokenix.gateway.usage import Timings, Usage, sum_usage, timings_of, usage_of
from tokenix.syscalls.alarm import Later
from tokenix.syscalls.types import Output, ReadResult, Rusage, text_of

Finish = Literal["stop", "length", "tool_calls"]

encode = msgspec.json.Encoder().encode


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a call."""

    name: str
    arguments: str
    """JSON."""


class MadeCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool that the model has made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[MadeCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None
    """The stop string or stop token that ended it."""


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str
    system_fingerprint: str
    timings: Timings


class Turn:
    """One answer as it comes: its text, its calls, what is held back."""

    def __init__(self, job: Job) -> None:
        self.finder = CallFinder() if job.has_tools else None
        self._parallel = job.parallel
        self.texts: list[str] = []
        self.calls: list[MadeCall] = []
        self.outputs: Sequence[Output] = ()
        """Whose log probabilities are to be reported."""
        self.last = -1
        """Its last token."""
        self.tokens = 0
        self.spoken = False
        """Whether its role has been sent."""

    def push(self, text: str, last: bool) -> Iterable[str | MadeCall]:
        """What is certain after some more output, and at its end."""
        if self.finder is None:
            return (text,) if text else ()
        found: list[str | Call] = list(self.finder.push(text))
        if last:
            found += self.finder.flush()
        made: list[str | MadeCall] = []
        for item in found:
            if isinstance(item, str):
                made.append(item)
            elif self._parallel or not self.calls:
                made.append(self._call(item))
        return made

    def _call(self, call: Call) -> MadeCall:
        arguments = encode(call.arguments).decode()
        made = MadeCall(
            id=f"call_{secrets.token_hex(12)}", function=CalledFunction(call.name, arguments)
        )
        self.calls.append(made)
        return made

    def count(self, result: ReadResult, top: int) -> None:
        """Note the tokens of a result."""
        outputs = result.outputs
        if outputs:
            self.tokens += len(outputs)
            self.last = outputs[-1].token
        if top >= 0:
            self.outputs = shown((*self.outputs, *outputs), result.turn_ended)

    def finish(self, result: ReadResult) -> Finish:
        """Why a turn that ended well is over."""
        assert result.turn_ended is not None
        if self.calls:
            return "tool_calls"
        return "stop" if result.turn_ended.reason.value == "stop" else "length"


def stop_reason(result: ReadResult, last: int, job: Job) -> int | str | None:
    """The stop string or the token of stop_token_ids that ended a turn; `last`: its last token."""
    end = result.turn_ended
    if end is None or end.reason.value != "stop":
        return None
    if end.stopped_by:
        return end.stopped_by
    return last if last in job.stop_tokens else None


class ChatAnswer(Answer):
    """All answers to one chat request."""

    def __init__(self, serving: Serving, job: Job, streams: bool) -> None:
        super().__init__(serving.kernel, serving.generate(job), serving.config)
        self._serving, self._job, self._streams = serving, job, streams
        self._turns = [Turn(job) for _ in range(job.count)]
        self._used: dict[int, Rusage] = {}

    @property
    def streams(self) -> bool:
        return self._streams

    # ---- whole ----

    async def generate(self, send: Send) -> None:
        choices: dict[int, ChatChoice] = {}
        job = self._job

        def take(index: int, result: ReadResult) -> None:
            turn = self._turns[index]
            text = text_of(result)
            turn.texts += [one for one in turn.push(text, False) if isinstance(one, str)]
            turn.count(result, job.top)

        async def ended(index: int, result: ReadResult, usage: Rusage) -> None:
            turn = self._turns[index]
            text = text_of(result)
            turn.texts += [one for one in turn.push(text, True) if isinstance(one, str)]
            turn.count(result, job.top)
            self._used[index] = usage
            logprobs = None
            if job.top >= 0:
                await self._serving.vocabulary.learn(self.kernel, turn.outputs)
                logprobs = self._serving.vocabulary.chat(turn.outputs)
            text = "".join(turn.texts)
            choices[index] = ChatChoice(
                index=index,
                message=Message(
                    content=None if turn.calls and not text else text,
                    tool_calls=turn.calls or msgspec.UNSET,
                ),
                logprobs=logprobs,
                finish_reason=turn.finish(result),
                stop_reason=stop_reason(result, turn.last, job),
            )

        await self.generation.run(take, ended)
        body = ChatCompletion(
            id=self._serving.name("chatcmpl"),
            created=self._serving.created,
            model=self._serving.model,
            choices=[choices[index] for index in sorted(choices)],
            usage=sum_usage(self._used.items(), job.n),
            service_tier=job.tier,
            system_fingerprint=self._serving.fingerprint,
            timings=timings_of(self._used.values()),
        )
        await respond(send, encode(body))

    # ---- streamed ----

    async def stream(self, events: Events) -> None:
        serving, job = self._serving, self._job
        common = {
            "id": serving.name("chatcmpl"), "object": "chat.completion.chunk",
            "created": serving.created, "model": serving.model, "service_tier": job.tier,
            "system_fingerprint": serving.fingerprint,
        }  # fmt: skip
        head = b"data: " + encode(common)[:-1] + b',"choices":['
        heads = [head + b'{"index":%d,"delta":' % index for index in range(job.count)]
        befores = [head + b'{"content":' for head in heads]
        empty = b',"usage":null' if job.usage else b""
        plain = b',"logprobs":null,"finish_reason":null}]' + empty + b"}\n\n"
        behind = b"}" + plain
        simple = not job.has_tools and job.top < 0 and not job.usage_always

        def take(index: int, result: ReadResult) -> Later | None:
            turn = self._turns[index]
            if not simple or not turn.spoken:
                return partial(write_deltas, index, result)
            turn.count(result, -1)
            text = text_of(result)  # the way of nearly all tokens
            return events.push(befores[index] + encode(text) + behind) if text else None

        async def write_deltas(index: int, result: ReadResult) -> None:
            data = await self._deltas(index, result, False, heads[index], plain)
            if data:
                await events.write(data)

        async def ended(index: int, result: ReadResult, usage: Rusage) -> None:
            data = await self._deltas(index, result, True, heads[index], plain)
            self._used[index] = usage
            turn = self._turns[index]
            finish = encode({
                "finish_reason": turn.finish(result),
                "stop_reason": stop_reason(result, turn.last, job),
            })  # fmt: skip
            data += heads[index] + b'{},"logprobs":null,' + finish[1:] + b"]"
            data += await self._usage_now(turn.tokens) if job.usage_always else empty
            data += b',"timings":' + encode(timings_of([usage])) + b"}\n\n"
            await events.write(data)

        await self.generation.run(take, ended)
        if job.usage:
            total = encode(sum_usage(self._used.items(), job.n))
            await events.write(head + b'],"usage":' + total + b"}\n\n")

    async def _deltas(
        self, index: int, result: ReadResult, last: bool, head: bytes, plain: bytes
    ) -> bytes:
        """The chunks of a result: its role first, text, calls, log probabilities."""
        turn, job = self._turns[index], self._job
        turn.count(result, job.top)
        tail = plain
        if job.usage_always:
            tail = b',"logprobs":null,"finish_reason":null}]' + await self._usage_now(turn.tokens)
            tail += b"}\n\n"
        data = b""
        if not turn.spoken:
            turn.spoken = True
            data = head + b'{"role":"assistant","content":"","refusal":null}' + tail
        pieces = turn.push(text_of(result), last)
        if job.top >= 0:
            text = "".join(piece for piece in pieces if isinstance(piece, str))
            if text or (last and turn.outputs):
                data += head + b'{"content":' + encode(text) + b"}" + await self._likely(turn, tail)
            pieces = [piece for piece in pieces if not isinstance(piece, str)]
        for piece in pieces:
            if isinstance(piece, str):
                data += head + b'{"content":' + encode(piece) + b"}" + tail
            else:
                call: dict[str, Any] = {"index": turn.calls.index(piece)}
                call |= msgspec.to_builtins(piece)
                data += head + b'{"tool_calls":[' + encode(call) + b"]}" + tail
        return data

    async def _likely(self, turn: Turn, tail: bytes) -> bytes:
        """The tail of a chunk with the log probabilities of what is shown with it."""
        outputs, turn.outputs = turn.outputs, ()
        await self._serving.vocabulary.learn(self.kernel, outputs)
        logprobs = encode(self._serving.vocabulary.chat(outputs))
        return tail.replace(b'"logprobs":null', b'"logprobs":' + logprobs, 1)

    async def _usage_now(self, tokens: int) -> bytes:
        prompt, cached = await self.generation.find_prompt()
        return b',"usage":' + encode(usage_of(prompt, tokens, cached))
