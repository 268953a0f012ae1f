"""What a recording holds beside looks, so that the other screens have something to show: the plan
and the events with each look, maps and prefixes now and then.

Page maps of processes and outputs are not recorded: nobody knows which of them will be asked for.
"""

import errno
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tokenix.syscalls.types import PlaceMap, PlanReport, PrefixNode, TraceEvent
from tokenix.tui.source import View

MAPS_S: Final = 2.0
"""Between two records of maps and prefixes."""
MOST_PAGES: Final = 16_384
"""Larger tiers are not mapped: that would be most of a recording."""
MOST_EVENTS, MOST_PREFIXES = 1000, 64
TIERS: Final = ("frames", "host", "disk")


class Beside(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked beside a look."""

    events: tuple[TraceEvent, ...] = ()
    """Since the look before."""
    plan: PlanReport | None = None
    prefixes: tuple[PrefixNode, ...] | None = None
    maps: tuple[PlaceMap, ...] = ()
    """Of the tiers that are not too large."""


class Asker:
    """Asks a machine for it, look after look. What it may not know it does not ask for again."""

    def __init__(self, prompts: bool) -> None:
        """`prompts`: names of processes, which are how their prompts begin, are kept."""
        self._prompts = prompts
        self._last = 0
        self._time_s = 0.0
        self._mapped_s = -MAPS_S
        self._refused: set[str] = set()

    def ask(self, view: View, time_s: float, figures: dict[str, float]) -> Beside:
        """At a look of that time. OSError only if the machine is gone."""
        if time_s < self._time_s:  # another machine
            self._last, self._mapped_s = 0, -MAPS_S
            self._refused.clear()
        self._time_s = time_s
        events = self._try("trace", view, since=self._last, limit=MOST_EVENTS) or ()
        if events:
            self._last = events[-1].seq
        beside = Beside(tuple(map(self._kept, events)), self._try("plan", view))
        if time_s - self._mapped_s < MAPS_S:
            return beside
        self._mapped_s = time_s
        small = [tier for tier in TIERS if 0 < figures.get(f"{tier}.total", 0) <= MOST_PAGES]
        maps = (self._try("framemap", view, tier=tier) for tier in small)
        return msgspec.structs.replace(
            beside,
            prefixes=self._try("prefixes", view, limit=MOST_PREFIXES),
            maps=tuple(each for each in maps if each is not None),
        )

    def _try(self, call: str, view: View, **options: Any) -> Any:
        if call in self._refused:
            return None
        try:
            return getattr(view, call)(**options)
        except PermissionError:
            self._refused.add(call)
            return None

    def _kept(self, event: TraceEvent) -> TraceEvent:
        if self._prompts or event.kind != "exit":
            return event
        detail = tuple((name, value) for name, value in event.detail if name != "name")
        return msgspec.structs.replace(event, detail=detail)


class Line(msgspec.Struct, frozen=True):
    """As much of a line of a recording as this is about."""

    beside: Beside | None = None


class Recall:
    """Finds it again. `lines` are those of a recording."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._decoder = msgspec.json.Decoder(Line)
        self._events: list[list[TraceEvent]] = []
        """By line, as far as they were read."""

    def events(self, at: int, since: int) -> list[TraceEvent]:
        """All up to line `at` with a greater number than `since`."""
        while len(self._events) <= at:
            self._events.append(list(self._beside(len(self._events)).events))
        some = (event for events in self._events[: at + 1] for event in events)
        return [event for event in some if event.seq > since]

    def plan(self, at: int) -> PlanReport:
        found = self._beside(at).plan
        if found is None:
            raise missing("no plan of this moment")
        return found

    def latest_maps(self, at: int) -> Beside:
        """That of the last line up to `at` that has maps or prefixes."""
        for line in range(at, -1, -1):
            found = self._beside(line)
            if found.prefixes is not None or found.maps:
                return found
        raise missing("no maps")

    def _beside(self, at: int) -> Beside:
        try:
            return self._decoder.decode(self._lines[at]).beside or Beside()
        except msgspec.DecodeError:
            return Beside()


def missing(what: str) -> OSError:
    """What a recording does not hold."""
    return OSError(errno.ENODATA, f"the recording holds {what}")
