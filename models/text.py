"""From tokens to text, one token at a time, and the strings that end a stream.

    token bytes -> [incomplete UTF-8] -> characters -> [may begin a stop string] -> released

Both brackets hold a bounded number of bytes or characters, so a push costs O(token length).
"""

import codecs
from collections.abc import Iterable

import msgspec

from tokenix.models.tokenizer import Tokenizer


class StopStrings:
    """An automaton (Knuth-Morris-Pratt) for each stop string. Never changes; shared by copies."""

    __slots__ = ("begins", "failures", "strings")

    def __init__(self, strings: Iterable[str]) -> None:
        """ValueError if a stop string is empty."""
        self.strings = tuple(dict.fromkeys(strings))
        if "" in self.strings:
            raise ValueError("a stop string is empty; leave it out")
        self.begins = frozenset(text[0] for text in self.strings)
        self.failures = tuple(_failures(text) for text in self.strings)

    def advance(self, which: int, matched: int, char: str) -> int:
        """How many characters of string `which` are matched after `char`, `matched` before."""
        text, failures = self.strings[which], self.failures[which]
        while matched and text[matched] != char:
            matched = failures[matched - 1]
        return matched + 1 if text[matched] == char else 0


def _failures(text: str) -> tuple[int, ...]:
    """For each prefix of `text`, the length of its longest border."""
    table = [0]
    for char in text[1:]:
        border = table[-1]
        while border and text[border] != char:
            border = table[border - 1]
        table.append(border + 1 if text[border] == char else 0)
    return tuple(table)


class _Frozen(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a TextStream."""

    stops: tuple[str, ...]
    skip: bool
    bytes: bytes
    held: str
    matched: tuple[int, ...]
    stopped: str | None


class TextStream:
    """The text of one process's output.

    All that `push` and `flush` return, joined, is `tokenizer.decode` of the tokens pushed, up to
    the stop string that is completed first (of several completed by one character, the longest).
    Owned by one thread at a time.
    """

    __slots__ = ("_bytes", "_held", "_matched", "_skip_space", "_stops", "_tokenizer", "stopped")

    def __init__(
        self, tokenizer: Tokenizer, stop_strings: Iterable[str] = (), *, at_start: bool = True
    ) -> None:
        """`at_start=False`: the tokens continue a text, so that a SentencePiece tokenizer's first
        space is a real one. ValueError if a stop string is empty."""
        self._tokenizer = tokenizer
        self._stops = StopStrings(stop_strings)
        self._skip_space = at_start and tokenizer.strips_space
        self._bytes = b""
        self._held = ""
        self._matched: tuple[int, ...] = (0,) * len(self._stops.strings)
        self.stopped: str | None = None
        """The stop string that ended the text; nothing is released after it."""

    @property
    def stops(self) -> bool:
        """Whether it looks for stop strings."""
        return bool(self._stops.strings)

    def push(self, token: int) -> str:
        """Add a token; the text that is certain now. Always whole characters."""
        if self.stopped is not None:
            return ""
        data = self._tokenizer.token_bytes(token)
        return self._take(data, final=False) if data else ""

    def flush(self) -> str:
        """The end of the tokens: release what is held. An incomplete character is U+FFFD."""
        if self.stopped is not None:
            return ""
        text = self._take(b"", final=True)
        if self.stopped is None:
            text, self._held = text + self._held, ""
            self._matched = (0,) * len(self._matched)
        return text

    def copy(self) -> "TextStream":
        """An independent stream that continues from here; O(number of stop strings)."""
        twin = TextStream.__new__(TextStream)
        twin._tokenizer, twin._stops = self._tokenizer, self._stops
        twin._skip_space, twin._bytes, twin._held = self._skip_space, self._bytes, self._held
        twin._matched, twin.stopped = self._matched, self.stopped
        return twin

    def freeze(self) -> bytes:
        """All of its state but the tokenizer."""
        state = _Frozen(
            self._stops.strings, self._skip_space, self._bytes, self._held, self._matched,
            self.stopped,
        )  # fmt: skip
        return msgspec.msgpack.encode(state)

    @classmethod
    def thaw(cls, tokenizer: Tokenizer, data: bytes) -> "TextStream":
        """A stream that goes on where one was frozen. ValueError for what `freeze` did not make."""
        try:
            state = msgspec.msgpack.decode(data, type=_Frozen)
        except msgspec.MsgspecError as why:
            raise ValueError(str(why)) from None
        stream = cls(tokenizer, state.stops)
        if len(state.matched) != len(stream._stops.strings):
            raise ValueError("as many stop strings as matches")
        stream._skip_space, stream._bytes, stream._held = state.skip, state.bytes, state.held
        stream._matched, stream.stopped = state.matched, state.stopped
        return stream

    def _take(self, data: bytes, final: bool) -> str:
        joined = self._bytes + data
        text, used = codecs.utf_8_decode(joined, "replace", final)
        self._bytes = joined[used:]
        if text and self._skip_space:
            self._skip_space = False
            text = text.removeprefix(" ")
        return self._release(text) if text else ""

    def _release(self, text: str) -> str:
        """Hold back what may begin a stop string; cut at one that is complete."""
        stops = self._stops
        if not self._held and stops.begins.isdisjoint(text):
            return text
        matched = list(self._matched)
        for end, char in enumerate(text, 1):
            done = ""
            for which, string in enumerate(stops.strings):
                matched[which] = stops.advance(which, matched[which], char)
                if matched[which] == len(string) > len(done):
                    done = string
            if done:
                self.stopped = done
                whole = self._held + text[:end]
                self._held, self._bytes = "", b""
                return whole[: len(whole) - len(done)]
        self._matched = tuple(matched)
        whole = self._held + text
        certain = len(whole) - max(matched)
        self._held = whole[certain:]
        return whole[:certain]
