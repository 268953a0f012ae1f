"""A grammar without a library: an automaton over a few tokens that is easily put out of step."""

import struct
from collections.abc import Sequence


class Wheel:
    """After an output that adds up to `s`, token t may follow if (s + t) % spokes is 0; after
    `most` tokens nothing but `eos` may, and it may not before.

    It keeps how far it has read, as a real one does, so that one that is shared, or asked about
    another sequence, says something else than one that reads from the start.
    """

    def __init__(self, vocab: int, spokes: int, most: int, eos: int | None = None) -> None:
        self.vocab, self.spokes, self.most, self.eos = vocab, spokes, most, eos
        self._start = self._end = 0
        self._sum = 0

    def mask(self, history: Sequence[int], start: int, end: int) -> bytes:
        assert 0 < start <= end <= len(history)
        if start != self._start or end < self._end:
            self._start, self._end, self._sum = start, start, 0
        self._sum += sum(token + 1 for token in history[self._end : end])
        self._end = end
        return pack(self._allowed(end - start), self.vocab)

    def _allowed(self, length: int) -> list[int]:
        if length >= self.most:
            return [] if self.eos is None else [self.eos]
        return [
            t for t in range(self.vocab) if (self._sum + t) % self.spokes == 0 and t != self.eos
        ]

    def copy(self) -> "Wheel":
        return Wheel(self.vocab, self.spokes, self.most, self.eos)

    def freeze(self) -> bytes:
        eos = -1 if self.eos is None else self.eos
        return struct.pack("4i", self.vocab, self.spokes, self.most, eos)

    @classmethod
    def thaw(cls, data: bytes) -> "Wheel":
        try:
            vocab, spokes, most, eos = struct.unpack("4i", data)
        except struct.error as why:
            raise ValueError(str(why)) from None
        return cls(vocab, spokes, most, None if eos < 0 else eos)


def pack(allowed: Sequence[int], vocab: int) -> bytes:
    """The mask of some tokens."""
    return sum(1 << token for token in allowed).to_bytes(-(-vocab // 8), "little")
