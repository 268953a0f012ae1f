"""Answers to POST /v1/completions, whole and streamed."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec
from litestar.types import Send

from tokenix.gateway.answer import Answer, Events, respond
from tokenix.gateway.chat import stop_reason
from tokenix.gateway.job import Job
from tokenix.gateway.likely import TextLogprobs, shown
from tokenix.gateway.serving import Serving
from tokenix.gateway.usage import Timings, Usage, sum_usage, timings_of, usage_of
from tokenix.syscalls.alarm import Later
from tokenix.syscalls.types import Output, ReadResult, Rusage, text_of

encode = msgspec.json.Encoder().encode


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: str
    timings: Timings


class Passage:
    """One answer as it comes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.outputs: Sequence[Output] = ()
        """Whose log probabilities are to be reported."""
        self.last = -1
        """Its last token."""
        self.tokens = 0
        self.chars = 0
        """Characters of its tokens that were reported."""

    def count(self, result: ReadResult, top: int) -> None:
        """Note the tokens of a result."""
        outputs = result.outputs
        if outputs:
            self.tokens += len(outputs)
            self.last = outputs[-1].token
        if top >= 0:
            self.outputs = shown((*self.outputs, *outputs), result.turn_ended)


def finish_reason(result: ReadResult) -> Literal["stop", "length"]:
    assert result.turn_ended is not None
    return "stop" if result.turn_ended.reason.value == "stop" else "length"


class TextAnswer(Answer):
    """All answers to one completion request."""

    def __init__(self, serving: Serving, job: Job, streams: bool) -> None:
        super().__init__(serving.kernel, serving.generate(job), serving.config)
        self._serving, self._job, self._streams = serving, job, streams
        self._passages = [Passage() for _ in range(job.count)]
        self._used: dict[int, Rusage] = {}

    @property
    def streams(self) -> bool:
        return self._streams

    async def generate(self, send: Send) -> None:
        serving, job = self._serving, self._job
        choices: dict[int, TextChoice] = {}

        def take(index: int, result: ReadResult) -> None:
            passage = self._passages[index]
            passage.texts.append(text_of(result))
            passage.count(result, job.top)

        async def ended(index: int, result: ReadResult, usage: Rusage) -> None:
            passage = self._passages[index]
            passage.texts.append(text_of(result))
            passage.count(result, job.top)
            self._used[index] = usage
            choices[index] = TextChoice(
                index=index,
                text="".join(passage.texts),
                logprobs=await self._likely(passage),
                finish_reason=finish_reason(result),
                stop_reason=stop_reason(result, passage.last, job),
            )

        await self.generation.run(take, ended)
        body = Completion(
            id=serving.name("cmpl"),
            created=serving.created,
            model=serving.model,
            choices=[choices[index] for index in sorted(choices)],
            usage=sum_usage(self._used.items(), job.n),
            system_fingerprint=serving.fingerprint,
            service_tier=job.tier,
            timings=timings_of(self._used.values()),
        )
        await respond(send, encode(body))

    async def stream(self, events: Events) -> None:
        serving, job = self._serving, self._job
        common = {
            "id": serving.name("cmpl"), "object": "text_completion", "created": serving.created,
            "model": serving.model, "service_tier": job.tier,
            "system_fingerprint": serving.fingerprint,
        }  # fmt: skip
        head = b"data: " + encode(common)[:-1] + b',"choices":['
        heads = [head + b'{"index":%d,"text":' % index for index in range(job.count)]
        empty = b',"usage":null' if job.usage else b""
        plain = b',"logprobs":null,"finish_reason":null}]' + empty + b"}\n\n"
        simple = job.top < 0 and not job.usage_always

        def take(index: int, result: ReadResult) -> Later | None:
            passage, text = self._passages[index], text_of(result)
            passage.count(result, job.top)
            if not text:
                return None
            if not simple:
                return partial(write_with_rest, passage, heads[index] + encode(text))
            return events.push(heads[index] + encode(text) + plain)  # the way of nearly all tokens

        async def write_with_rest(passage: Passage, data: bytes) -> None:
            await events.write(data + await self._rest(passage, empty))

        async def ended(index: int, result: ReadResult, usage: Rusage) -> None:
            passage, text = self._passages[index], text_of(result)
            passage.count(result, job.top)
            self._used[index] = usage
            data = b""
            if text or passage.outputs:
                data = heads[index] + encode(text) + await self._rest(passage, empty)
            finish = encode({
                "finish_reason": finish_reason(result),
                "stop_reason": stop_reason(result, passage.last, job),
            })  # fmt: skip
            data += heads[index] + b'"","logprobs":null,' + finish[1:] + b"]"
            data += await self._usage(passage, empty)
            data += b',"timings":' + encode(timings_of([usage])) + b"}\n\n"
            await events.write(data)

        await self.generation.run(take, ended)
        if job.usage:
            total = encode(sum_usage(self._used.items(), job.n))
            await events.write(head + b'],"usage":' + total + b"}\n\n")

    async def _rest(self, passage: Passage, empty: bytes) -> bytes:
        """What is behind the text of a chunk."""
        logprobs = encode(await self._likely(passage))
        usage = await self._usage(passage, empty)
        return b',"logprobs":' + logprobs + b',"finish_reason":null}]' + usage + b"}\n\n"

    async def _likely(self, passage: Passage) -> TextLogprobs | None:
        """Of the tokens that were not reported yet."""
        if self._job.top < 0:
            return None
        outputs, passage.outputs = passage.outputs, ()
        await self._serving.vocabulary.learn(self.kernel, outputs)
        made = self._serving.vocabulary.completion(outputs, self._job.top, passage.chars)
        passage.chars += sum(len(token) for token in made.tokens)
        return made

    async def _usage(self, passage: Passage, empty: bytes) -> bytes:
        if not self._job.usage_always:
            return empty
        prompt, cached = await self.generation.find_prompt()
        return b',"usage":' + encode(usage_of(prompt, passage.tokens, cached))
