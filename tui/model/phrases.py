"""Gauges as lines of words and bars: pieces of text, each with the role it is drawn in."""

import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

from tokenix.cli.table import seconds, size
from tokenix.tui.model import palette
from tokenix.tui.model.columns import count
from tokenix.tui.model.gauges import FirstToken, Gauges, Tier
from tokenix.tui.snapshot import Note

Piece = tuple[str, str]
Pieces = Sequence[Piece]

GAP: Final[Piece] = ("  ", "text")
WORDS: Final = {
    "run": "success", "wait": "warning", "paused": "primary", "stopped": "error", "ended": "muted",
}  # fmt: skip
"""What processes do -> role."""
TARGET_CELLS: Final = 28
"""A line of first tokens that is shorter has no room for the target."""
BLOCKS: Final = " ▁▂▃▄▅▆▇█"


class Hint(NamedTuple):
    """What a key does."""

    key: str
    shown: str
    """The key, as people call it."""
    words: str

    @property
    def cells(self) -> int:
        return len(self.shown) + 1 + len(self.words)


def hints(first: Sequence[Hint], last: Sequence[Hint], width: int) -> list[tuple[int, Hint]]:
    """Hints and where each begins, with two cells between them, or one if more fit then. Whoever
    has no room is left out whole, the last of `first` before others."""
    placed: list[tuple[int, Hint]] = []
    for gap in (2, 1):
        room = width - 1 - sum(hint.cells + gap for hint in last) + gap
        some = list(first)
        while some and sum(hint.cells + gap for hint in some) > room:
            some.pop()
        if len(some) + len(last) <= len(placed):
            continue
        placed, at = [], 1
        for hint in (*some, *last):
            placed.append((at, hint))
            at += hint.cells + gap
    return placed


def fitting(groups: Sequence[Pieces], width: int, gap: int = 2) -> list[Piece]:
    """As many of the first groups as fit whole, with so many cells between them."""
    pieces: list[Piece] = []
    for group in groups:
        added = [(" " * gap, "text"), *group] if pieces else group
        width -= sum(len(text) for text, _ in added)
        if width < 0:
            break
        pieces += added
    return pieces


def tier_bar(tier: Tier, cells: int) -> list[Piece]:
    """Parts of a tier as stretches of a bar; whatever there is at all has a cell, if cells last."""
    pieces: list[Piece] = []
    left = cells
    for kind, pages in tier.parts:
        if pages and left:
            look = palette.PAGES[kind]
            length = min(left, max(1, round(pages / tier.total * cells)))
            pieces.append((look.mark * length, look.role))
            left -= length
    return [*pieces, (palette.PAGES["free"].mark * left, "faint")]


def tier_line(tier: Tier, width: int, page_bytes: float) -> list[Piece]:
    """`device ████▒▒··  812/1024  38.0M`"""
    used = f" {count(tier.used)}/{count(tier.total)}"
    held = f" {size(tier.used * page_bytes)}".rjust(8) if width >= 44 else ""
    cells = max(4, width - 7 - len(used.rjust(11)) - len(held))
    return [
        (f"{tier.name:<7}", "muted"), *tier_bar(tier, cells), (used.rjust(11), "text"),
        (held, "muted"),
    ]  # fmt: skip


def legend(tiers: Sequence[Tier], width: int) -> list[Piece]:
    """What the stretches of bars are, of those that there are and as far as there is room."""
    kinds = dict.fromkeys(kind for tier in tiers for kind, pages in tier.parts if pages)
    pieces: list[Piece] = []
    for kind in (*kinds, "free"):
        look = palette.PAGES[kind]
        width -= len(look.word) + 4
        if width >= -2:
            pieces += [(look.mark, look.role), (f" {look.word}  ", "muted")]
    return pieces


def meter(share: float, cells: int, role: str) -> list[Piece]:
    """A thin bar in its track: `━━━━╸───`."""
    halves = round(min(max(share, 0.0), 1.0) * cells * 2)
    if share > 0:
        halves = max(1, halves)
    full, half = divmod(halves, 2)
    return [
        ("━" * full + "╸" * half, role), ("─" * (cells - full - half), "faint"),
    ]  # fmt: skip


def rates(gauges: Gauges) -> list[Piece]:
    """Tokens written, and prompt tokens computed, per second."""
    return [
        ("out ", "muted"), (f"{count(gauges.out_per_s):<6}", "text!"), ("prefill ", "muted"),
        (f"{count(gauges.in_per_s):<6}", "text!"),
    ]  # fmt: skip


def traffic(gauges: Gauges) -> list[Piece]:
    """What moves between the device and the host tier."""
    down, up = (
        f"{size(pages * gauges.page_bytes)}/s"
        for pages in (gauges.swap_out_per_s, gauges.swap_in_per_s)
    )
    return [
        ("swap   ", "muted"), (f"▼ {down:<9} ", "primary"), (f"▲ {up:<9} ", "success"),
    ]  # fmt: skip


def found(gauges: Gauges) -> list[Piece]:
    """Of the last minute: how much of the prompts was there already, and how often somebody was
    paused."""
    hits = "-" if gauges.hit_rate is None else f"{100 * gauges.hit_rate:.0f} %"
    return [
        ("hits   ", "muted"), (f"{hits:<6}", "text"), ("pauses ", "muted"),
        (f"{count(gauges.pauses)}/min", "text"), GAP,
    ]  # fmt: skip


def states(gauges: Gauges, width: int) -> list[Piece]:
    """`3 run  2 wait  9 paused`, closer together or fewer where room is short."""
    groups = [
        [(count(number), f"{WORDS[word] if number else 'faint'}!"), (f" {word}", "muted")]
        for word, number in gauges.states.items()
        if number or word in ("run", "wait", "paused")
    ]
    return max((fitting(groups, width, gap) for gap in (2, 1)), key=len)


def levels(gauges: Gauges, width: int) -> list[Piece]:
    """Processes by level of the queue, as columns of one line: `level 0▅1  1▂1  2█4`; without the
    numbers if there is no room for them."""
    most = max(1, *gauges.levels)
    named = width >= 6 + 2 * len(gauges.levels)
    pieces: list[Piece] = [("level ", "muted")] if named else []
    numbers = width >= 6 + 4 * len(gauges.levels)
    for level, number in enumerate(gauges.levels):
        block = BLOCKS[0 if not number else max(1, round(8 * number / most))]
        role = "warning" if level == 0 else "success" if level == 1 else "primary"
        pieces += [(str(level), "muted"), (block, role)]
        if numbers:
            pieces.append((f"{count(number)} " if number else "  ", "text"))
    return pieces


def queue(gauges: Gauges) -> list[Piece]:
    """Newcomers by class, and how long the oldest has waited."""
    pieces: list[Piece] = [("queue ", "muted")]
    some = [each for each in gauges.waiting if each.count]
    for each in some:
        word = palette.CLASSES[each.qos]
        pieces += [
            (f"{count(each.count)} {word} ", "warning"), (f"{seconds(each.oldest_s)}  ", "muted"),
        ]  # fmt: skip
    return pieces if some else [*pieces, ("empty", "faint")]


def first_token(found: FirstToken, width: int = 40) -> list[Piece]:
    """`inter  0.12s  0.80s  of 1.00s`: P50, P95 and the target of a class; where room is short,
    `inter  0.12s  0.80s  1.00s` or without the target."""
    p50 = "-" if found.p50_s is None else seconds(found.p50_s)
    target = f"  of {seconds(found.target_s)}"
    p95, role = _p95(found)
    return [
        (f"{palette.CLASSES[found.qos]:<7}", "muted"), (f"{p50:>6}", "text"), (f"{p95:>7}", role),
        (target if width >= 20 + len(target) else target.replace("of ", ""), "faint"),
    ][: 4 if width >= TARGET_CELLS else 3]  # fmt: skip


def first_in_time(found: FirstToken) -> list[Piece]:
    """`inter 0.80s of 1.00s`: P95 and the target of a class."""
    p95, role = _p95(found)
    return [
        (f"{palette.CLASSES[found.qos]} ", "muted"), (p95, role),
        (f" of {seconds(found.target_s)}", "faint"),
    ]  # fmt: skip


def _p95(found: FirstToken) -> Piece:
    late = found.p95_s is not None and found.p95_s > found.target_s > 0
    return "-" if found.p95_s is None else seconds(found.p95_s), "error!" if late else "success!"


def notes(found: Sequence[Note], width: int, height: int) -> list[Pieces]:
    """The last sentences that fit, the newest below; each begins with its time."""
    lines: list[Pieces] = []
    for note in reversed(found):
        words = textwrap.wrap(note.text, max(20, width - 7)) or [""]
        if len(lines) + len(words) > height:
            break
        clock = f"{int(note.time_s) // 60:2d}:{int(note.time_s) % 60:02d}  "
        block: list[Pieces] = [[(clock, "faint"), (words[0], note.role)]]
        block += [[(" " * len(clock), "faint"), (rest, note.role)] for rest in words[1:]]
        lines = block + lines
    return lines


def stalls(gauges: Gauges) -> list[Piece]:
    """Whether anybody's text stands still, or did in the last minute."""
    if gauges.waiting_readers:
        word = "reader waits" if gauges.waiting_readers == 1 else "readers wait"
        return [(f"{count(gauges.waiting_readers)} {word}", "error!")]
    if gauges.stalls:
        word = "token" if gauges.stalls == 1 else "tokens"
        return [(f"{count(gauges.stalls)} {word} late", "error!")]
    return [("no reader waited", "success")]
