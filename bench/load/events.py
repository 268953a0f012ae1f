"""Server-sent events of OpenAI's streams: from bytes, cut anywhere, to what a chunk says."""

from collections.abc import Iterator
from typing import Any

import msgspec

MOST_LINE_BYTES = 4 << 20


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct, frozen=True):
    """One answer of a chunk, of completions (`text`) or of chats (`delta`)."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        delta = self.delta
        if delta is None:
            return self.text or ""
        return (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")

    @property
    def is_output(self) -> bool:
        """Whether a token is behind it: a chunk of completions has one even if its text is empty
        (a special token), one of chats may only bring the role."""
        if self.delta is None:
            return bool(self.text) or (self.text is not None and self.finish_reason is None)
        return bool(self.said) or bool(self.delta.tool_calls)


class Details(msgspec.Struct, frozen=True):
    """Of the tokens of a prompt."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request, as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Chunk(msgspec.Struct, frozen=True):
    """The data of one event."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


class Events:
    """The data of events, one after another."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """`[DONE]` has come."""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that are complete with these bytes. ValueError for what is no JSON."""
        lines = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MOST_LINE_BYTES:
            raise ValueError(f"an event of the stream is longer than {MOST_LINE_BYTES} bytes")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # comments, names of events, the empty line behind each
            text = line[5:].strip()
            if text == b"[DONE]":
                self.done = True
            elif text:
                try:
                    yield _decode(text)
                except msgspec.MsgspecError as why:
                    shown = text[:120].decode(errors="replace")
                    raise ValueError(f"not a chunk of OpenAI's API: {why}: {shown}") from None


def message_of(error: Any) -> str:
    """What an error of a server says, in one line, whatever form it has."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        if isinstance(inner, dict):
            return message_of(inner.get("message") or inner.get("code") or str(inner))
        return message_of(inner)
    return " ".join(str(error).split())[:300]
