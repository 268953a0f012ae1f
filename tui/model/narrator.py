"""Says in plain words what the kernel does, for a demonstration: from its trace to sentences."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from tokenix.cli.table import seconds
from tokenix.syscalls.types import Pid, TraceEvent
from tokenix.tui.snapshot import Note, Snapshot

KEPT: Final = 8
"""Sentences that are remembered."""
REPEAT_S: Final = 2.5
"""Of one kind there is one in so long: who reads must keep up."""
SUMMARY_S: Final = 12.0
TIGHT: Final = 0.1
"""With less free than this share of memory it is full, as newcomers need some."""
BURST: Final = 3
"""So many newcomers of a look are a burst."""


class Narrator:
    """Fed with the events since the look before."""

    def __init__(self, opening: Sequence[str]) -> None:
        self._notes: deque[Note] = deque(maxlen=KEPT)
        self._said_s: dict[str, float] = {}
        """Kind -> when there was one."""
        self._asked: dict[Pid, float] = {}
        """Short requests without a first token -> when they came."""
        self._pauses = 0
        for text in opening:
            self._notes.append(Note(0.0, "text", text))

    def listen(self, events: Sequence[TraceEvent], look: Snapshot) -> tuple[Note, ...]:
        """What was said lately, the newest last."""
        came = 0
        for event in events:
            detail = dict(event.detail)
            match event.kind:
                case "pause" if event.pid is not None:
                    self._pauses += 1
                    self._say_paused(event.time_s, event.pid, detail)
                case "pause-end" if event.pid is not None:
                    self._say_back(event.time_s, event.pid, detail)
                case "spawn" if event.pid is not None:
                    came += 1
                case "exit" if detail["reason"] == "refused":
                    text = f"{event.pid} was refused: {detail['error']}."
                    self._say("refused", event.time_s, "error", text)
                case "fork" if event.pid is not None:
                    text = (
                        f"{event.pid} is a fork of {detail['parent']}: they share every full page."
                    )
                    self._say("fork", event.time_s, "secondary", text)
        self._say_burst(came, look)
        self._say_sum(look)
        return tuple(self._notes)

    def _say_paused(self, time_s: float, pid: Pid, detail: dict[str, Any]) -> None:
        lead_s = detail.get("lead_s")
        if lead_s is None or lead_s <= 0:  # nobody reads it, or there is nothing to read yet
            return
        clean, pages = detail["clean"], detail["pages"]
        text = (
            f"{pid} is paused: its reader has {lead_s:.1f} s of unread text. {clean} of {pages} "
            "pages were copied before, so its memory is free within a step."
        )
        self._say("pause", time_s, "primary", text)

    def _say_back(self, time_s: float, pid: Pid, detail: dict[str, Any]) -> None:
        lead_s = detail.get("lead_s")
        if lead_s is None or lead_s <= 0:
            return
        text = (
            f"{pid} is back after {seconds(detail['paused_s'])}, {lead_s:.1f} s before its reader "
            "would have noticed."
        )
        self._say("back", time_s, "success", text)

    def _say_burst(self, came: int, look: Snapshot) -> None:
        for process in look.processes:
            if process.qos != "interactive":
                continue
            if process.rusage.ttft_s is None:
                self._asked.setdefault(process.pid, look.time_s)
            elif self._asked.pop(process.pid, None) is not None:
                text = (
                    f"Short question {process.pid} had its first token after "
                    f"{seconds(process.rusage.ttft_s)}: it did not wait for a stream to end."
                )
                self._say("first", look.time_s, "warning", text)
        if came >= BURST:
            free = look.figures["frames.free"] / max(1.0, look.figures["frames.total"])
            room = (
                "memory is full: who has unread text makes room"
                if free < TIGHT
                else "there is room"
            )
            self._say("burst", look.time_s, "warning", f"{came} requests come at once; {room}.")

    def _say_sum(self, look: Snapshot) -> None:
        stalls = sum(series.counts.get("stalls", 0) for series in look.metrics.series)
        if look.time_s < SUMMARY_S:
            return
        late = "nobody's text stood still" if not stalls else f"{stalls} tokens came visibly late"
        if any("signal" in process.held for process in look.processes):
            late += ", but for what was stopped by hand"
        text = f"Until now {self._pauses} pauses, and {late}."
        self._say("sum", look.time_s, "text", text, SUMMARY_S)

    def _say(
        self, kind: str, time_s: float, role: str, text: str, every_s: float = REPEAT_S
    ) -> None:
        said_s = self._said_s.get(kind)
        if said_s is None or time_s - said_s >= every_s:
            self._said_s[kind] = time_s
            self._notes.append(Note(time_s, role, text))
