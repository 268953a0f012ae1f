"""What became of one request, as its client saw it. A line of JSON in the end."""

from itertools import pairwise
from typing import Literal

import msgspec

from tokenix.bench.load.sessions import Reader
from tokenix.bench.reader import lateness

Ending = Literal["stop", "length", "left", "refused", "failed"]


class Record(msgspec.Struct, kw_only=True):
    """Times are seconds since the start of the load, by the client's clock."""

    name: str
    """Of its session."""
    turn: int
    clients: str
    tenant: str
    reader: Reader
    planned_input: int
    planned_output: int
    due_s: float
    """When it was to be sent: by the load in an open loop, at once in a closed one."""
    sent_s: float = 0.0
    status: int = 0
    """Of HTTP; 0 without an answer, or at the socket."""
    times_s: list[float] = msgspec.field(default_factory=list)
    """When each piece of output came."""
    ended_s: float = 0.0
    input_tokens: int = 0
    """As the server says, else as planned."""
    output_tokens: int = 0
    """As the server says, else the pieces."""
    counted: bool = False
    """The server said it."""
    cached_tokens: int = 0
    ending: Ending = "failed"
    error: str = ""

    @property
    def finished(self) -> bool:
        return self.ending in ("stop", "length")

    @property
    def short(self) -> bool:
        """It finished with fewer tokens than were asked for."""
        return self.finished and self.output_tokens < self.planned_output

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to the first piece."""
        return self.times_s[0] - self.due_s if self.times_s else None

    @property
    def e2el_s(self) -> float | None:
        """From when it was due to the last piece; None unless it finished."""
        return self.times_s[-1] - self.due_s if self.finished and self.times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None with fewer than two."""
        if not self.finished or self.output_tokens < 2 or not self.times_s:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.output_tokens - 1)

    @property
    def itls_s(self) -> list[float]:
        """Between pieces, of which most are one token."""
        return [after - before for before, after in pairwise(self.times_s)]

    @property
    def token_times_s(self) -> list[float]:
        """When each token came. A piece of several tokens brings them at once; where pieces and
        tokens do not match (a character may be several tokens), pieces get equal numbers."""
        pieces, tokens = len(self.times_s), max(self.output_tokens, len(self.times_s))
        if pieces == tokens:
            return self.times_s
        return [self.times_s[number * pieces // tokens] for number in range(tokens)]

    @property
    def late_s(self) -> list[float]:
        """Of each token after the first, for a reader of this pace (`bench/reader.py`)."""
        return lateness(self.token_times_s, self.reader.tokens_per_s)


def as_json(record: Record) -> dict[str, object]:
    """A line: what was measured, in milliseconds, and the times of its pieces."""
    line = msgspec.to_builtins(record)
    times_s = line.pop("times_s")
    for name in ("ttft", "tpot", "e2el"):
        value = getattr(record, f"{name}_s")
        line[f"{name}_ms"] = None if value is None else round(value * 1e3, 3)
    first_s = times_s[0] if times_s else 0.0
    line["piece_ms"] = [round((time_s - first_s) * 1e3, 3) for time_s in times_s]
    for name in ("due_s", "sent_s", "ended_s"):
        line[name] = round(line[name], 6)
    return dict(line)
