"""Tables of text: columns as wide as they need, the last one cut where the terminal ends."""

import shutil
import sys
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> str:
    """Lines of a table. Columns are set right, but those in `left` and the last one."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    last = len(head) - 1
    text = []
    for line in lines:
        row = [
            cell if at == last else in_cells(cell, width, name in left)
            for at, (name, cell, width) in enumerate(zip(head, line, widths, strict=True))
        ]
        text.append(fitted(" ".join(row).rstrip()))
    return "\n".join(text) + "\n"


def fitted(line: str) -> str:
    """The line, no wider than the terminal if standard output is one."""
    if not sys.stdout.isatty():
        return line
    return cut(line, shutil.get_terminal_size().columns)


def cells(text: str) -> int:
    """How wide a terminal draws it: a sign of Chinese takes two cells, an accent none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Of what is wider than so many cells, as much as they hold."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width)


def in_cells(text: str, width: int, left: bool) -> str:
    """Filled up to `width` cells, at the right or (`left` is False) at the left."""
    length = width - cells(text) + len(text)
    return text.ljust(length) if left else text.rjust(length)


def printable(text: str) -> str:
    """Text of strangers, without what would move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def seconds(value_s: float) -> str:
    """A duration in at most six characters: 0.25s, 12s, 3:04, 5h02, 3d04."""
    if value_s < 10:
        return f"{value_s:.2f}s"
    if value_s < 60:
        return f"{value_s:.0f}s"
    minutes = int(value_s) // 60
    if minutes < 60:
        return f"{minutes}:{int(value_s) % 60:02d}"
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}"
    return f"{minutes // (24 * 60)}d{minutes // 60 % 24:02d}"


def size(value_bytes: float) -> str:
    """A number of bytes in at most seven characters: 512B, 1.5K, 24.0M, 1.2G."""
    if value_bytes < 1024:
        return f"{value_bytes:.0f}B"
    for unit in "KMG":
        value_bytes /= 1024
        if value_bytes < 1024:
            return f"{value_bytes:.1f}{unit}"
    return f"{value_bytes / 1024:.1f}T"
