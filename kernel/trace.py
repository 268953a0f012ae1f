"""The trace ring: what happened, in order, bounded; and a digest of all of it.

The digest covers every event since boot, also those that the ring has forgotten, so two runs with
the same seed can be compared by one number.
"""

import hashlib
import marshal
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from tokenix.mm.ids import Pid

NO_REFERENCES = 2
"""The format of `marshal` in which equal values are equal bytes, whatever objects they share."""


class TraceEvent(msgspec.Struct, frozen=True, gc=False):
    seq: int
    time_s: float
    pid: Pid | None
    kind: str
    detail: tuple[tuple[str, str | int | float], ...] = ()


class TraceRing:
    def __init__(self, capacity: int) -> None:
        self._events: deque[TraceEvent] = deque(maxlen=capacity)
        self._seq = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, time_s: float, pid: Pid | None, kind: str, **detail: str | int | float) -> None:
        self._seq += 1
        event = TraceEvent(self._seq, time_s, pid, kind, tuple(detail.items()))
        self._events.append(event)
        self._digest.update(marshal.dumps((time_s, pid, kind, event.detail), NO_REFERENCES))

    @property
    def last(self) -> int:
        """Number of the newest event."""
        return self._seq

    def since(self, seq: int, limit: int, pid: Pid | None = None) -> Iterator[TraceEvent]:
        """Events with a greater number than `seq`, oldest first, at most `limit`."""
        left, known = limit, len(self._events) - (self._seq - min(seq, self._seq))
        for event in islice(self._events, max(0, known), None):
            if left <= 0:
                return
            if pid is None or event.pid == pid:
                left -= 1
                yield event

    def peek_latest(self) -> Iterator[TraceEvent]:
        """Newest first."""
        return reversed(self._events)

    def digest(self) -> str:
        return self._digest.hexdigest()
