"""Events of the trace as lines: when, who, what, and the facts."""

from collections.abc import Iterable, Sequence
from typing import Final

from tokenix.cli.table import printable
from tokenix.cli.traces import is_notable
from tokenix.syscalls.types import TraceEvent
from tokenix.tui.model.phrases import Piece

KEPT: Final = 5000
"""Events that a log remembers."""

ROLES: Final[dict[str, str]] = {
    "spawn": "text", "admit": "success", "resume": "success", "pause": "primary",
    "pause-end": "success", "fetch": "accent", "exit": "muted", "state": "faint", "fork": "text",
    "signal": "warning", "nice": "warning", "sysctl": "warning", "warning": "warning",
    "swapon": "warning", "swapoff": "warning", "swap-file": "warning", "suspend": "accent",
    "save": "accent", "copy-failed": "error", "device-fault": "error", "image-failed": "error",
    "image-late": "error", "image-refused": "error", "no-image": "error", "reaped-unread": "error",
    "image-strays": "warning",
}  # fmt: skip
"""Of kinds of events; others are plain."""

SHORT: Final = {"lead_s": "lead", "paused_s": "away", "digest": "", "name": ""}
"""Other names of facts; "" for what says nothing to people, or what prompts begin with."""


def line(event: TraceEvent, with_pid: bool = True) -> list[Piece]:
    """`  12.345   17 pause      reason=... lead=2.5s`"""
    facts = dict(event.detail)
    role = ROLES.get(event.kind, "text")
    if event.kind == "exit" and is_notable(event):
        role = "error"
    pieces: list[Piece] = [(f"{event.time_s:9.3f} ", "faint")]
    if with_pid:
        pieces.append((f"{'' if event.pid is None else event.pid:>6} ", "muted"))
    pieces.append((f"{event.kind:<9} ", f"{role}!"))
    if event.kind == "state":
        return [*pieces, (f"{facts.get('old')} → {facts.get('new')}", "muted")]
    for name, value in facts.items():
        word = SHORT.get(name, name)
        if word and value != "":
            pieces += [(f"{word} ", "faint"), (f"{_shown(name, value)}  ", "muted")]
    return pieces


def _shown(name: str, value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}s" if name.endswith("_s") else f"{value:.4g}"
    return printable(str(value))


def text_of(event: TraceEvent) -> str:
    """What a filter looks in."""
    return "".join(text for text, _ in line(event)).lower()


class Log:
    """Events as they come, of which those are shown that a filter wants."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self.all_kinds = False
        """Whether also those are shown that `dmesg` leaves out."""
        self.wanted = ""
        self._shown: list[TraceEvent] = []

    @property
    def last(self) -> int:
        """Number of the newest event."""
        return self.events[-1].seq if self.events else 0

    @property
    def shown(self) -> Sequence[TraceEvent]:
        return self._shown

    def take(self, events: Iterable[TraceEvent]) -> None:
        """The next ones, oldest first; those that are known already are left out."""
        last = self.last
        some = [event for event in events if event.seq > last]
        self.events += some
        self._shown += filter(self._wants, some)
        if len(self.events) > KEPT:
            del self.events[: len(self.events) - KEPT]
            self._shown = [event for event in self._shown if event.seq >= self.events[0].seq]

    def clear(self) -> None:
        """It was of another machine."""
        self.events.clear()
        self._shown.clear()

    def search(self, words: str) -> None:
        """Show events only that have all these words in them."""
        self.wanted = words.lower()
        self._find()

    def show_all(self, all_kinds: bool) -> None:
        self.all_kinds = all_kinds
        self._find()

    def _find(self) -> None:
        self._shown = list(filter(self._wants, self.events))

    def _wants(self, event: TraceEvent) -> bool:
        if not (self.all_kinds or is_notable(event)):
            return False
        words = self.wanted.split()
        if not words:
            return True
        text = text_of(event)
        return all(word in text for word in words)
