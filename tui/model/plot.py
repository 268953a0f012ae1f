"""Graphs in braille: two samples a cell, four levels a line."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Final

_LEFT: Final = (0, 0x40, 0x44, 0x46, 0x47)
_RIGHT: Final = (0, 0x80, 0xA0, 0xB0, 0xB8)
"""Dots of half a cell that is filled up to a level, from below."""
BLANK: Final = 0x2800
CELLS: Final = [[chr(BLANK + left + right) for right in _RIGHT] for left in _LEFT]
"""By the levels of both halves."""
NICE: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)


def newest(samples: Sequence[float], number: int) -> list[float]:
    """The last so many."""
    return list(islice(samples, max(0, len(samples) - number), None))


def ceiling(samples: Sequence[float], least: float = 1.0) -> float:
    """A round number that none of them exceeds, and `least` does not."""
    most = max([least, *samples])
    unit = 10.0 ** math.floor(math.log10(most))
    return next(step * unit for step in NICE if step * unit >= most * (1 - 1e-9))


def braille(samples: Sequence[float], width: int, height: int, top: float) -> list[str]:
    """Lines from above of the area under the newest samples, which end at the right; `top` is the
    upper edge. What is above zero shows."""
    values = newest(samples, 2 * width)
    levels = [0] * (2 * width - len(values))
    full = 4 * height
    levels += [
        0 if value <= 0 else min(full, max(1, round(value / top * full))) for value in values
    ]
    highest = max(levels, default=0)
    lines = []
    for base in range(full - 4, -1, -4):
        if highest <= base:
            lines.append(CELLS[0][0] * width)
            continue
        halves = [min(4, level - base) if level > base else 0 for level in levels]
        pairs = zip(halves[::2], halves[1::2], strict=True)
        lines.append("".join([CELLS[left][right] for left, right in pairs]))
    return lines
