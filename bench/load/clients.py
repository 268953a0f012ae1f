"""Groups of clients that behave alike: what a load is made of, as options or a TOML file say it.

    [[clients]]                     [[clients]]
    name = "chat"                   name = "agents"
    rate = 2.0                      concurrency = 4
    turns = "1-5"                   prefix_tokens = 2000
    think_s = "~8:0.7"              tool_s = 1.5

Each group arrives by itself (open loop: `rate` or `trace`; else all at `start_s`) or waits for its
answers (closed loop: `concurrency`); a load is all of them together.
"""

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokenix.bench.load.spread import Spread, parse_spread

Quantity = str | int | float
"""As `spread.py` reads it."""
WITHOUT_TRACE = ("burstiness", "input_tokens", "output_tokens", "prefix_tokens", "turns")
"""A trace has arrivals, lengths and prefixes of its own."""
NEEDS = {
    "rate_scale": "trace", "burstiness": "rate", "rate_to": "rate", "ramp_s": "rate_to",
    "prefix_groups": "prefix_tokens", "think_s": "turns", "tool_share": "turns",
    "tool_s": "tool_share", "stall_s": "stalled_share",
}  # fmt: skip
"""What has no effect without another one."""


class Clients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group. Quantities are drawn anew for each session or turn."""

    name: str = "default"
    requests: int | None = None
    """Sessions; default: 100, all of a trace, or as many as `duration_s` has room for."""
    duration_s: float | None = None
    """No session begins later than so many seconds after `start_s`."""
    start_s: float = 0.0

    rate: float | None = None
    """Sessions a second."""
    burstiness: float = 1.0
    rate_to: float | None = None
    """The rate moves there evenly within `ramp_s`."""
    ramp_s: float = 60.0
    concurrency: int | None = None
    """Closed loop of so many; with a rate or a trace, at most so many sessions at once."""
    trace: str | None = None
    rate_scale: float = 1.0
    """Arrival times of the trace are divided by it."""

    input_tokens: Quantity = 128
    """New ones of each turn, the prefix not counted."""
    output_tokens: Quantity = 128
    prefix_tokens: int = 0
    """With which all sessions of a prefix group begin."""
    prefix_groups: int = 1
    turns: Quantity = 1
    think_s: Quantity = 0
    """Between an answer and the next turn."""
    tool_s: Quantity = 0
    """The same, if a tool works instead of a person."""
    tool_share: float = 0.0
    """Share of the turns that follow a tool's answer."""

    reader_tokens_per_s: float = 10.0
    tell_pace: bool = False
    """The server is told the pace (`X-Reader-Tokens-Per-S`)."""
    stalled_share: float = 0.0
    """Share of the readers that stop reading from their connection for `stall_s`."""
    stall_s: float = 5.0
    leaving_share: float = 0.0
    """Share of the readers that hang up on the way."""

    qos: Literal["", "interactive", "stream", "batch", "idle"] = ""
    nice: int | None = None
    tenant: str = ""
    api_key: str = ""

    def __post_init__(self) -> None:
        for field in ("input_tokens", "output_tokens", "turns", "think_s", "tool_s"):
            self.spread(field)
        for field in ("rate", "burstiness", "rate_scale", "reader_tokens_per_s", "duration_s"):
            self._need(field, above=True)
        for field in ("start_s", "rate_to", "ramp_s", "stall_s", "prefix_tokens"):
            self._need(field, above=False)
        for field in ("requests", "concurrency", "prefix_groups"):
            self._need(field, above=True)
        for field in ("tool_share", "stalled_share", "leaving_share"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"{field} of {self.name!r} is a share from 0 to 1")
        if self.stalled_share + self.leaving_share > 1:
            raise ValueError(f"more than all readers of {self.name!r} stall or leave")
        if self.trace is not None and self.rate is not None:
            raise ValueError(f"{self.name!r} has a trace and a rate; give one")
        for field in WITHOUT_TRACE:
            if self.trace is not None and self._given(field):
                raise ValueError(f"{self.name!r} has a trace, and {field} is what the trace says")
        for field, other in NEEDS.items():
            if self._given(field) and not self._given(other):
                raise ValueError(f"{self.name!r} has {field}; it has no effect without {other}")
        for field in ("input_tokens", "output_tokens", "turns"):
            if self.spread(field).high < 1:
                raise ValueError(f"{field} of {self.name!r} must be at least 1")

    def _given(self, field: str) -> bool:
        """Whether it is another value than by default (`128` and `"128"` are one)."""
        value, default = getattr(self, field), _DEFAULTS[field]
        return value != default and str(value) != str(default)

    def spread(self, field: str) -> Spread:
        try:
            return parse_spread(getattr(self, field))
        except ValueError as why:
            raise ValueError(f"{field} of {self.name!r}: {why}") from None

    @property
    def closed(self) -> bool:
        """Whether a session begins when another has ended."""
        return self.concurrency is not None and self.rate is None and self.trace is None

    def _need(self, field: str, above: bool) -> None:
        value = getattr(self, field)
        if value is None:
            return
        if not ((value > 0 or not above) and 0 <= value < math.inf):
            raise ValueError(
                f"{field} of {self.name!r} must be {'above' if above else 'at least'} 0, "
                f"not {value:g}"
            )


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Clients)}


def read_clients(path: Path) -> tuple[Clients, ...]:
    """The groups of a TOML file. OSError; ValueError says what is wrong in one line."""
    try:
        table: Any = msgspec.toml.decode(path.read_bytes())
        groups = msgspec.convert(table, dict[str, list[Clients]])
    except (msgspec.MsgspecError, UnicodeDecodeError) as why:
        raise ValueError(f"{path}: {why}") from None
    if set(groups) != {"clients"} or not groups["clients"]:
        raise ValueError(f"{path}: it must have one [[clients]] or more, and nothing else")
    names = [group.name for group in groups["clients"]]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: each of the clients needs a name of its own")
    return tuple(groups["clients"])
