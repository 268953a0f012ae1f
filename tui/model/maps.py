"""Maps of memory as cells: a cell a page, or so many pages a cell where there is not room for all.

The codes are those of `PageCode` and `PlaceCode`; each is one kind of thing here, by what matters
most of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from tokenix.syscalls.types import PLACE_STATES, PageCode, PlaceCode
from tokenix.tui.model.columns import count
from tokenix.tui.model.palette import PAGES, Look
from tokenix.tui.model.phrases import Piece, Pieces

KINDS: Final[dict[str, Look]] = {
    "clean": Look("█", "clean", "success"),
    "dirty": Look("▄", "dirty", "warning"),
    "shared": PAGES["shared"],
    "cached": PAGES["cached"],
    "moving": PAGES["transfer"],
    "held": Look("█", "held", "accent"),
    "host": PAGES["host"],
    "file": PAGES["file"],
    "absent": Look("·", "gone", "faint"),
    "free": PAGES["free"],
    "foreign": Look("-", "others'", "faint"),
}
"""Clean: on the device, with a copy below; dirty: the only copy is on the device."""
WIDTHS: Final = (3, 1)
"""Columns of a cell, the first for which there is room."""
TILES: Final = {"█": "▇"}
"""What is drawn for a mark where there are gaps between cells."""
_NAMES: Final = tuple(KINDS)


def page_kind(code: int) -> str:
    """Of a page of a process."""
    if code & PageCode.MOVING:
        return "moving"
    if code & PageCode.DEVICE:
        if code & PageCode.SHARED:
            return "shared"
        return "clean" if code & (PageCode.HOST | PageCode.FILE) else "dirty"
    if code & PageCode.HOST:
        return "host"
    return "file" if code & PageCode.FILE else "absent"


def frame_kind(code: int) -> str:
    """Of a frame of the device."""
    if code & PlaceCode.FOREIGN:
        return "foreign"
    state = code & PLACE_STATES
    if state == PlaceCode.MOVING:
        return "moving"
    if state == PlaceCode.CACHED:
        return "cached"
    if state == PlaceCode.FREE:
        return "free"
    if code & PlaceCode.SHARED:
        return "shared"
    return "clean" if code & PlaceCode.CLEAN else "dirty"


def slot_kind(code: int) -> str:
    """Of a place of a lower tier: what is there is held for a process, or cached."""
    kind = frame_kind(code)
    return "held" if kind in ("clean", "dirty", "shared") else kind


def _table(kind_of: Callable[[int], str]) -> bytes:
    """From codes to places in `_NAMES`."""
    return bytes(_NAMES.index(kind_of(code)) for code in range(256))


PAGE: Final = _table(page_kind)
FRAME: Final = _table(frame_kind)
SLOT: Final = _table(slot_kind)
"""What `cells` and `count_kinds` translate codes with."""


def count_kinds(codes: bytes, table: bytes) -> dict[str, int]:
    """How many there are of each kind, in the order of `KINDS`."""
    found = Counter(codes.translate(table))
    return {name: found[at] for at, name in enumerate(_NAMES) if found[at]}


def cells(codes: bytes, table: bytes, width: int, height: int) -> tuple[list[Pieces], int]:
    """Lines of at most `height`, and how many pages a cell stands for: the most frequent kind of
    them is shown."""
    room = max(1, width * height)
    each = max(1, -(-len(codes) // room))
    kinds = codes.translate(table)
    if each > 1:
        groups = (kinds[at : at + each] for at in range(0, len(kinds), each))
        kinds = bytes(max(group, key=group.count) for group in groups)
    wide = next(wide for wide in WIDTHS if wide == 1 or _fits(len(kinds), wide, width, height))
    step = max(1, width // wide)
    return [_line(kinds[at : at + step], wide) for at in range(0, len(kinds), step)], each


def _fits(number: int, wide: int, width: int, height: int) -> bool:
    return number <= width // wide * height


def _line(kinds: bytes, wide: int) -> list[Piece]:
    """Cells of one column; or tiles of more, with a gap between them."""
    pieces: list[Piece] = []
    for kind, group in groupby(kinds):
        look = KINDS[_NAMES[kind]]
        mark = look.mark
        if wide > 1:
            mark = (TILES.get(mark, mark) * (wide - 1)).ljust(wide)
        pieces.append((mark * len(list(group)), look.role))
    return pieces


def legend(
    found: Mapping[str, int], each: int, width: int, words: Mapping[str, str] = {}
) -> list[Pieces]:
    """`█ 12 clean  ▄ 3 dirty`, and what a cell stands for, on as many lines as it takes. `words`:
    other names of kinds."""
    blocks: list[list[Piece]] = []
    for kind, number in found.items():
        look = KINDS[kind]
        word = words.get(kind, look.word)
        blocks.append(
            [(f"{look.mark} ", look.role), (f"{count(number)} ", "text"), (f"{word}  ", "muted")]
        )
    if each > 1:
        blocks.append([(f"{each} pages a cell", "muted")])
    lines: list[list[Piece]] = [[]]
    room = width
    for block in blocks:
        length = sum(len(text) for text, _ in block)
        if length - 2 > room and lines[-1]:
            lines.append([])
            room = width
        lines[-1] += block
        room -= length
    return list(lines)


def grid(
    codes: bytes, table: bytes, width: int, height: int, words: Mapping[str, str] = {}
) -> Sequence[Pieces]:
    """A map with its legend above it, of which one line is enough where there are few."""
    found = count_kinds(codes, table)
    above = legend(found, 2, width, words)[: max(1, height // 3)]
    lines, each = cells(codes, table, width, max(1, height - len(above)))
    return [*legend(found, each, width, words)[: len(above)], *lines]
