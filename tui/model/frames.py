"""Panels of text, with a frame and a title, side by side.

╭─ Memory ─────────╮╭─ Processes ──╮
│ device ███··     ││ 4 run        │
╰──────────────────╯╰──────────────╯
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

from tokenix.tui.model.phrases import Piece, Pieces

EDGE: Final = 2
"""Cells of frame and space at each side of what is framed; above and below it is one line."""


class Panel(NamedTuple):
    title: str
    share: float
    """Of the width, beside those of the others."""
    lines: Callable[[int, int], Iterable[Pieces]]
    """Of what is in it, for a width and a height; of characters of one cell."""


def beside(panels: Sequence[Panel], width: int, height: int) -> list[Pieces]:
    """Panels in a row, which fill the width."""
    blocks = [
        _framed(panel, cells, height)
        for panel, cells in zip(panels, _widths(panels, width), strict=True)
    ]
    return [[piece for pieces in row for piece in pieces] for row in zip(*blocks, strict=True)]


def _framed(panel: Panel, width: int, height: int) -> list[Pieces]:
    inner = max(0, width - 2 * EDGE)
    title = panel.title[: max(0, inner - 2)]
    head = [("╭─ ", "border"), (title, "title!"), (f" {'─' * (inner - 1 - len(title))}╮", "border")]
    lines = [
        [("│ ", "border"), *_filled(pieces, inner), (" │", "border")]
        for pieces in islice(panel.lines(inner, height - 2), height - 2)
    ]
    empty = [("│ ", "border"), (" " * inner, "text"), (" │", "border")]
    lines += [empty] * (height - 2 - len(lines))
    return [head, *lines, [(f"╰{'─' * (width - 2)}╯", "border")]]


def _widths(panels: Sequence[Panel], width: int) -> list[int]:
    """By their shares; together the whole width."""
    whole = sum(panel.share for panel in panels)
    ends = [int(end / whole * width + 1e-9) for end in accumulate(p.share for p in panels)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _filled(pieces: Pieces, width: int) -> list[Piece]:
    """Exactly so wide; what is cut ends in an ellipsis."""
    text = "".join(text for text, _ in pieces)
    if len(text) <= width:
        return [*pieces, (" " * (width - len(text)), "text")]
    mark = "…" if text[width:].strip() else ""
    found: list[Piece] = []
    left = width - len(mark)
    for text, role in pieces:
        found.append((text[:left], role))
        left -= len(found[-1][0])
    return [*found, (mark, "faint")]
