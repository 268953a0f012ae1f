"""A server of OpenAI's API as the target of a load."""

import asyncio
import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from tokenix.bench.load.content import Content
from tokenix.bench.load.events import Chunk, Events, Usage, message_of
from tokenix.bench.load.http import Broken, Exchange, Pool
from tokenix.bench.load.record import Record
from tokenix.bench.load.sessions import Session

Api = Literal["completions", "chat"]
PATHS: Mapping[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
TIERS = {"interactive": "priority", "stream": "default", "batch": "flex", "idle": "flex"}
REFUSALS = (429, 503)
FINISHED = ("length", "stop", "eos_token", "stop_sequence", "tool_calls", "function_call")
"""Reasons of answers that are whole; TGI has names of its own for `stop`."""
REQUEST_LIMIT_S = 600.0
MODELS_LIMIT_S = 30.0
"""Of the question which models there are."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How requests are put."""

    api: Api = "completions"
    prompt: Literal["ids", "text"] = "ids"
    """Token ids have exact lengths; text is understood by all servers, and by chats alone."""
    temperature: float = 0.0
    ignore_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of each body."""
    limit_s: float = REQUEST_LIMIT_S
    """A request that takes longer has failed."""


class OpenAITarget:
    """`model` "": the server's first one, asked for by `find_model`."""

    def __init__(self, url: str, content: Content, asking: Asking, model: str, key: str) -> None:
        """ValueError for a URL that is none."""
        self.pool = Pool(url)
        self.content, self.asking = content, asking
        self.url, self.key = url, key
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    async def find_model(self) -> None:
        """OSError if nobody answers, ValueError if no model can be found out."""
        limit_s = min(self.asking.limit_s, MODELS_LIMIT_S)
        try:
            async with asyncio.timeout(limit_s):
                status, body = await self.pool.get("/v1/models", self.headers(""))
            if self._model:
                return
            if status in (401, 403):
                raise ValueError(f"{self.url}: {status}: {_body_message(body)}; give --api-key")
            if status != 200:
                raise ValueError(f"{self.url}: /v1/models answers {status}; name a --model")
            self._model = str(msgspec.json.decode(body)["data"][0]["id"])
        except TimeoutError:
            raise TimeoutError(
                errno.ETIMEDOUT, f"{self.url}: no answer to /v1/models within {limit_s:g} s"
            ) from None
        except Broken as why:
            raise ValueError(f"{self.url}: {why}") from None
        except (msgspec.MsgspecError, LookupError, TypeError):
            raise ValueError(f"{self.url}: /v1/models lists no model; name a --model") from None

    def headers(self, key: str) -> dict[str, str]:
        bearer = key or self.key
        return {"Authorization": f"Bearer {bearer}"} if bearer else {}

    def open(self, session: Session, origin_s: float) -> "HttpDialogue":
        return HttpDialogue(self, session, origin_s)

    async def close(self) -> None:
        self.pool.close()


class HttpDialogue:
    """One session over HTTP: each turn sends all that was said before."""

    def __init__(self, target: OpenAITarget, session: Session, origin_s: float) -> None:
        self._target, self._session, self._origin_s = target, session, origin_s
        self._said: list[dict[str, str]] = []
        """Messages so far."""
        self._request = b""

    def prepare(self, turn: int) -> None:
        target, clients = self._target, self._session.clients
        asking = target.asking
        body: dict[str, Any] = {
            "model": target.model, "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": self._session.turns[turn].output_tokens,
            "temperature": asking.temperature,
        }  # fmt: skip
        if asking.ignore_eos:
            body["ignore_eos"] = True
        if clients.qos:
            body["service_tier"] = TIERS[clients.qos]
        if clients.nice is not None:
            body["priority"] = clients.nice
        body.update(asking.extra)
        if asking.prompt == "ids":
            body["prompt"] = target.content.ids(self._session, turn)
        else:
            text = target.content.text(self._session, turn)
            self._said.append({"role": "user", "content": text})
            if asking.api == "chat":
                body["messages"] = self._said
            else:
                body["prompt"] = " ".join(message["content"] for message in self._said)
        data = msgspec.json.encode(body)
        headers = target.headers(clients.api_key)
        if clients.tell_pace:
            headers["X-Reader-Tokens-Per-S"] = f"{self._session.reader.tokens_per_s:g}"
        self._request = target.pool.head(PATHS[asking.api], headers, len(data)) + data

    async def ask(self, record: Record, came: Callable[[], None]) -> None:
        answer = _Answer(record, self._origin_s, came)
        limit_s = self._target.asking.limit_s
        try:
            async with asyncio.timeout(limit_s):
                await self._target.pool.run(self._request, answer.take, answer.begin)
        except TimeoutError:
            answer.fail(f"no end within {limit_s:g} s")
        except (OSError, Broken) as why:
            answer.fail(message_of(getattr(why, "strerror", None) or why))
        finally:
            answer.finish()
        record.ended_s = time.monotonic() - self._origin_s
        self._said.append({"role": "assistant", "content": "".join(answer.said)})

    async def close(self) -> None:
        pass


class _Answer:
    """An answer under way, and what its reader does to the connection."""

    def __init__(self, record: Record, origin_s: float, came: Callable[[], None]) -> None:
        self.said: list[str] = []
        self._record, self._origin_s, self._came = record, origin_s, came
        self._events = Events()
        self._finish, self._heard = "", False
        self._usage: Usage | None = None
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._record.sent_s = exchange.sent_s - self._origin_s

    def take(self, data: bytes, time_s: float) -> None:
        try:
            for chunk in self._events.feed(data):
                self._take(chunk, time_s - self._origin_s)
        except ValueError as why:
            self.fail(str(why))

    def _take(self, chunk: Chunk, time_s: float) -> None:
        self._heard = True
        if self._record.ending == "left":
            return
        if chunk.error is not None:
            self.fail(message_of(chunk.error))
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.is_output:
                self.said.append(choice.said)
                self._record.times_s.append(time_s)
                self._came()
                self._behave()
            if choice.finish_reason:
                self._finish = choice.finish_reason

    def fail(self, error: str) -> None:
        """The first thing that went wrong is what the record tells."""
        if not self._record.error:
            self._record.error = error

    def _behave(self) -> None:
        """What a reader that is not steady does at its token."""
        reader, exchange = self._record.reader, self._exchange
        if exchange is None or len(self._record.times_s) != reader.after_tokens:
            return
        if reader.kind == "leaving":
            self._record.ending = "left"
            exchange.hang_up()
        elif reader.kind == "stalled":
            exchange.stop_reading()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(reader.stall_s, exchange.go_on_reading)

    def finish(self) -> None:
        """The answer has ended, in whichever way; what had come of it counts."""
        if self._timer is not None:
            self._timer.cancel()
        record, exchange = self._record, self._exchange
        record.status = 0 if exchange is None else exchange.status
        usage = self._usage or Usage()
        record.input_tokens = usage.prompt_tokens or record.planned_input
        record.output_tokens = usage.completion_tokens or len(record.times_s)
        record.counted = bool(usage.completion_tokens)
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        if record.ending == "left" or exchange is None or not exchange.status:
            return
        if exchange.status != 200:
            record.error = f"{exchange.status}: {_body_message(bytes(exchange.body))}"
            record.ending = "refused" if exchange.status in REFUSALS else "failed"
        elif not record.error and self._finish in FINISHED:
            record.ending = "length" if self._finish == "length" else "stop"
        elif not record.error and not self._heard:
            record.error = "the answer was no stream of events"
        elif not record.error:
            record.error = f"the stream ended with finish_reason {self._finish or 'missing'}"


def _body_message(body: bytes) -> str:
    try:
        return message_of(msgspec.json.decode(body))
    except msgspec.MsgspecError:
        return message_of(body.decode(errors="replace")) or "an empty answer"
