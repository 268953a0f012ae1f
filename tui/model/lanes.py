"""The levels of the queue as lanes, with the processes that stand in each, and who has just moved.

0 no token yet      2 │ w31 w32
1 due               1 │ R12↑
2 lead under 1 s    0 │
3 lead under 2 s    3 │ R9 P4↑ R17
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokenix.syscalls.types import Pid, ProcessStat, State
from tokenix.tui.model import palette
from tokenix.tui.model.phrases import Piece, Pieces
from tokenix.tui.snapshot import Snapshot

SHOWN_S: Final = 2.0
"""So long a move is shown."""
HEAD: Final = 24
"""Cells before the processes of a lane."""
UP, DOWN = "↑", "↓"
"""More urgent than before; less so."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A process in its lane."""

    pid: Pid
    mark: str
    role: str
    moved: str
    """UP, DOWN, or "" if it has been there for a while."""

    @property
    def text(self) -> str:
        return f"{self.mark}{self.pid}{self.moved or ' '}"


@dataclass(frozen=True, slots=True)
class Lane:
    level: int
    title: str
    chips: Sequence[Chip]


class Lanes:
    """Remembers who was where."""

    def __init__(self) -> None:
        self._levels: dict[Pid, int] = {}
        self._moves: dict[Pid, tuple[float, str]] = {}
        self._last_s = 0.0
        self.lanes: Sequence[Lane] = ()

    def take(self, look: Snapshot) -> None:
        """The processes of the next look."""
        if look.time_s < self._last_s:
            self._levels.clear()
            self._moves.clear()
        self._last_s = look.time_s
        living = [each for each in look.processes if each.state != State.ZOMBIE.value]
        for process in living:
            before = self._levels.get(process.pid, process.level)
            if process.level != before:
                move = UP if process.level < before else DOWN
                self._moves[process.pid] = (look.time_s, move)
        self._levels = {process.pid: process.level for process in living}
        self._moves = {
            pid: (at_s, move)
            for pid, (at_s, move) in self._moves.items()
            if pid in self._levels and look.time_s - at_s <= SHOWN_S
        }
        titles = level_titles(look.controls)
        stand: list[list[ProcessStat]] = [[] for _ in titles]
        for process in sorted(living, key=_place):
            if process.level < len(stand):
                stand[process.level].append(process)
        self.lanes = [
            Lane(level, title, [self._chip(process) for process in stand[level]])
            for level, title in enumerate(titles)
        ]

    def _chip(self, process: ProcessStat) -> Chip:
        look = palette.state_of(process.state, process.held)
        _, moved = self._moves.get(process.pid, (0.0, ""))
        return Chip(process.pid, look.mark, look.role, moved)


def _place(process: ProcessStat) -> tuple[float, float, int]:
    """Who is next comes first: by place in the queue, then by lead."""
    place = -1 if process.queue_position is None else process.queue_position
    lead_s = float("inf") if process.lead_s is None else process.lead_s
    return place, lead_s, process.pid


def level_titles(controls: Mapping[str, Any]) -> list[str]:
    """What stands at each level, as `sched/levels.py` has them."""
    bands = int(controls.get("sched.level_bands", 0))
    end_s = float(controls.get("sched.level_band_s", 0.0))
    titles = ["no token yet", "due"]
    for _ in range(bands - 1):
        titles.append(f"lead under {end_s:g} s")
        end_s *= 2
    if bands:
        titles.append(f"lead over {end_s / 2:g} s")
    return [*titles, "batch", "idle"]


def lines(lanes: Sequence[Lane], width: int, height: int) -> list[Pieces]:
    """A lane a line; what is left of the height goes to those with the most processes."""
    rows = [1] * len(lanes)
    wanted = [rows_for(lane, width) for lane in lanes]
    for _ in range(height - len(lanes)):
        short = max(range(len(lanes)), key=lambda at: wanted[at] - rows[at], default=0)
        if lanes and wanted[short] > rows[short]:
            rows[short] += 1
    return [line for at, lane in enumerate(lanes) for line in lane_lines(lane, width, rows[at])][
        :height
    ]


def rows_for(lane: Lane, width: int) -> int:
    """Lines that all of its processes take."""
    rows, room = 1, width - HEAD
    for chip in lane.chips:
        if len(chip.text) + 1 > room:
            rows, room = rows + 1, width - HEAD
        room -= len(chip.text) + 1
    return rows


def lane_lines(lane: Lane, width: int, height: int) -> list[Pieces]:
    """Whoever does not fit is counted at the end."""
    number = len(lane.chips)
    head: list[Piece] = [
        (f"{lane.level:>2} ", "text!"), (f"{lane.title:<14}", "muted" if number else "faint"),
        (f"{number:>4}" if number else f"{'':>4}", "text"), (" │ ", "faint"),
    ]  # fmt: skip
    found: list[list[Piece]] = [head]
    room = width - HEAD
    for at, chip in enumerate(lane.chips):
        text = f"{chip.text} "
        more = f"+{number - at}"
        last = len(found) == height
        if len(text) + (len(more) if last and at < number - 1 else 0) > room:
            if last:
                found[-1].append((more, "muted"))
                break
            found.append([(" " * (HEAD - 2), "text"), ("│ ", "faint")])
            room = width - HEAD
        found[-1].append((text, f"{chip.role}!" if chip.moved else chip.role))
        room -= len(text)
    return list(found)
