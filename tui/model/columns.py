"""The columns of the process table: what each shows, how it sorts, when it gives way.

A narrow terminal shows the columns of the least `rank` that fit, in the order of the list.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tokenix.cli.table import printable, seconds
from tokenix.syscalls.types import ProcessStat
from tokenix.tui.model import palette

LEAD_BAR: Final = 6
"""Cells of the bar of a reader's lead."""
LEAD_FULL_S: Final = 24.0
"""So many seconds of unread text fill it."""
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Extras:
    """What a row knows beyond its process: from looks before, and asked separately."""

    tokens_per_s: float = 0.0
    branch: str = ""
    """What is drawn before the command in the tree."""
    prompt: str | None = None
    """The first words of its prompt, if they may be shown."""


NO_EXTRAS: Final = Extras()


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    width: int
    """0: what is left."""
    rank: int
    """Columns of a greater rank are the first to go."""
    key: Callable[[ProcessStat, Extras], Any]
    """What sorts it. Greatest first is natural for all but those named in `ASCENDING`."""
    text: Callable[[ProcessStat, Extras], str]
    help: str
    left: bool = False


ASCENDING: Final = frozenset({"pid", "tenant", "class", "level", "state", "command"})
"""Columns whose natural order is the least first."""


def count(number: float) -> str:
    """In at most five characters: 812, 9999, 12.3k, 4.1M."""
    if number < 10_000:
        return f"{number:.0f}"
    for unit in "kMG":
        number /= 1000
        if number < 1000:
            return f"{number:.1f}{unit}" if number < 100 else f"{number:.0f}{unit}"
    return f"{number / 1000:.0f}T"


def some(number: float) -> str:
    """A count; nothing for none."""
    return count(number) if number else ""


def rate(per_s: float) -> str:
    return "" if per_s < 0.05 else f"{per_s:.1f}" if per_s < 100 else count(per_s)


def bar(share: float, cells: int) -> str:
    """A bar in eighths of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(cells)


def lead(process: ProcessStat) -> str:
    """Seconds of unread text, as a bar and a number: below zero, the reader waits."""
    if process.lead_s is None or process.state == "zombie":
        return ""
    return f"{bar(process.lead_s / LEAD_FULL_S, LEAD_BAR)}{lead_number(process.lead_s):>6}"


def lead_number(lead_s: float) -> str:
    """In at most six characters."""
    if abs(lead_s) < 100:
        return f"{lead_s:.1f}s"
    sign, far_s = "-" if lead_s < 0 else "", abs(lead_s)
    return f"{lead_s:.0f}s" if far_s < 1000 else sign + seconds(far_s)


def host_pages(process: ProcessStat) -> int:
    return process.pages - process.resident_pages - process.file_pages


def first_token(process: ProcessStat) -> str:
    return "" if process.rusage.ttft_s is None else seconds(process.rusage.ttft_s)


def wait_s(process: ProcessStat) -> float:
    """Without frames: in the queue and paused."""
    return process.rusage.queue_s + process.rusage.paused_s


def waiting(process: ProcessStat) -> str:
    if process.queue_position is not None:
        return f"#{process.queue_position + 1}"
    return seconds(wait_s(process)) if wait_s(process) >= 0.005 else ""


def state(process: ProcessStat) -> str:
    look = palette.state_of(process.state, process.held)
    return f"{look.mark} {look.word}"


def command(process: ProcessStat, extras: Extras) -> str:
    words = process.name if extras.prompt is None else extras.prompt
    return extras.branch + printable(words)


COLUMNS: Final[Sequence[Column]] = (
    Column("pid", "PID", 6, 0, lambda p, x: p.pid, lambda p, x: str(p.pid), "process"),
    Column(
        "tenant", "TENANT", 9, 5, lambda p, x: p.tenant, lambda p, x: printable(p.tenant),
        "whose it is", left=True,
    ),
    Column(
        "class", "CLASS", 6, 1, lambda p, x: p.qos,
        lambda p, x: palette.CLASSES.get(p.qos, p.qos), "service class", left=True,
    ),
    Column(
        "level", "LVL", 3, 1, lambda p, x: p.level, lambda p, x: str(p.level),
        "queue of the scheduler; 0: no token yet",
    ),
    Column("nice", "NI", 3, 2, lambda p, x: -p.nice, lambda p, x: str(p.nice), "nice value"),
    Column(
        "state", "STATE", 10, 0, lambda p, x: (p.state, p.held), lambda p, x: state(p),
        "what it does", left=True,
    ),
    Column(
        "prompt", "PROMPT", 6, 2, lambda p, x: p.prompt_tokens,
        lambda p, x: count(p.prompt_tokens), "tokens of the prompt",
    ),
    Column(
        "output", "OUT", 5, 0, lambda p, x: p.output_tokens, lambda p, x: count(p.output_tokens),
        "tokens written",
    ),
    Column(
        "lead", "LEAD", LEAD_BAR + 6, 0,
        lambda p, x: -math.inf if p.lead_s is None else p.lead_s, lambda p, x: lead(p),
        "unread text, in seconds of its reader's pace", left=True,
    ),
    Column(
        "ttft", "TTFT", 5, 1, lambda p, x: p.rusage.ttft_s or 0.0, lambda p, x: first_token(p),
        "time to the first token",
    ),
    Column(
        "rate", "TOK/S", 5, 3, lambda p, x: x.tokens_per_s, lambda p, x: rate(x.tokens_per_s),
        "tokens written per second",
    ),
    Column(
        "device", "DEV", 5, 1, lambda p, x: p.resident_pages, lambda p, x: some(p.resident_pages),
        "pages on the device",
    ),
    Column(
        "host", "HOST", 5, 4, lambda p, x: host_pages(p), lambda p, x: some(host_pages(p)),
        "pages that are in the host tier only",
    ),
    Column(
        "file", "FILE", 5, 5, lambda p, x: p.file_pages, lambda p, x: some(p.file_pages),
        "pages that are in the swap file only",
    ),
    Column(
        "preempted", "PRE", 3, 4, lambda p, x: p.rusage.preemptions,
        lambda p, x: some(p.rusage.preemptions), "times it was paused",
    ),
    Column(
        "wait", "WAIT", 6, 3, lambda p, x: wait_s(p), lambda p, x: waiting(p),
        "time without frames; #n: its place in the queue",
    ),
    Column("age", "AGE", 5, 4, lambda p, x: p.age_s, lambda p, x: seconds(p.age_s), "since spawn"),
    Column(
        "command", "COMMAND", 0, 3, lambda p, x: p.name, command,
        "its name, or (p) the first words of its prompt", left=True,
    ),
)  # fmt: skip

BY_NAME: Final = {column.name: column for column in COLUMNS}
REST_WIDTH: Final = 8
"""The column that takes the rest is shown if it gets so much."""
COMMAND_WIDTH: Final = 16
"""It gets so much at least if it is what is looked at."""


@lru_cache(64)
def fitting(
    width: int, sorted_by: str = "pid", commands: bool = False
) -> Sequence[tuple[Column, int]]:
    """The columns that fit into `width` cells, a space between two, with their widths. Whatever
    their rank, the sorted one is among them and, with `commands`, that of commands."""
    wanted = {sorted_by, "command"} if commands else {sorted_by}
    rest_width = COMMAND_WIDTH if commands and width > 2 * COMMAND_WIDTH else REST_WIDTH
    chosen: list[Column] = []
    left = width
    for column in sorted(COLUMNS, key=lambda c: (c.name not in wanted, c.rank)):
        needs = (column.width or rest_width) + bool(chosen)
        if needs <= left:
            chosen.append(column)
            left -= needs
    return [(column, column.width or rest_width + left) for column in COLUMNS if column in chosen]
