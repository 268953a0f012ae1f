"""Log probabilities, in the two forms that OpenAI has."""

from collections.abc import Sequence

import msgspec

from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.types import ExitReason, Output, TurnEnd

LEAST = -9999.0
"""Instead of minus infinity, which JSON does not have."""


class Alternative(msgspec.Struct, frozen=True):
    """A token that could have been drawn."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token that was drawn."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of a chat's answer."""

    content: list[TokenLogprob]


class TextLogprobs(msgspec.Struct):
    """Of a completion's answer."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class Vocabulary:
    """The texts of tokens, as far as they were needed. One for each model."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}

    async def learn(self, kernel: Syscalls, outputs: Sequence[Output]) -> None:
        """Ask for the tokens of `outputs` that are not known yet."""
        wanted = {output.token for output in outputs}
        for output in outputs:
            wanted.update(token for token, _ in output.top)
        new = sorted(wanted.difference(self._bytes))
        if new:
            self._bytes.update(zip(new, await kernel.token_bytes(new), strict=True))

    def bytes_of(self, token: int) -> bytes:
        return self._bytes[token]

    def text_of(self, token: int) -> str:
        """Bytes that are no whole characters are written as such, as OpenAI does."""
        data = self._bytes[token]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def chat(self, outputs: Sequence[Output]) -> ChatLogprobs:
        return ChatLogprobs([
            TokenLogprob(
                self.text_of(output.token), clip(output.logprob),
                list(self.bytes_of(output.token)),
                [
                    Alternative(self.text_of(token), clip(logprob), list(self.bytes_of(token)))
                    for token, logprob in output.top
                ],
            )
            for output in outputs
        ])  # fmt: skip

    def completion(self, outputs: Sequence[Output], top: int, offset: int) -> TextLogprobs:
        """`offset`: characters of the text before."""
        tokens = [self.text_of(output.token) for output in outputs]
        offsets = []
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        likely = [
            {self.text_of(token): clip(logprob) for token, logprob in output.top}
            for output in outputs
        ]
        logprobs = [clip(output.logprob) for output in outputs]
        return TextLogprobs(tokens, logprobs, likely if top > 0 else None, offsets)


def clip(logprob: float) -> float:
    return max(logprob, LEAST)


def shown(outputs: Sequence[Output], end: TurnEnd | None) -> Sequence[Output]:
    """Those that belong to the text: not the token that ended it."""
    ended = end is not None and end.reason is ExitReason.STOP and not end.stopped_by
    return outputs[:-1] if ended else outputs
