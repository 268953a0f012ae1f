"""The tree of prefixes as lines: what prompts have in common, how often it was found, where it is.

hits  pages                     tenant
  57      4  ████               acme    0a31f2c4
  12      9  ████▒▒░░░          acme    └ 7be01c22   2 processes have it
"""

from collections.abc import Sequence
from typing import Final

from tokenix.cli.table import printable, seconds
from tokenix.syscalls.types import PrefixNode
from tokenix.tui.model.columns import count
from tokenix.tui.model.palette import PAGES
from tokenix.tui.model.phrases import Piece, Pieces

BAR: Final = 12


def ordered(nodes: Sequence[PrefixNode]) -> list[tuple[PrefixNode, int]]:
    """Each node with how deep it stands below others that are listed: a tree, in which those that
    were found most come first."""
    below: dict[str, list[PrefixNode]] = {}
    names = {node.name for node in nodes}
    for node in nodes:
        below.setdefault(node.parent if node.parent in names else "", []).append(node)
    found: list[tuple[PrefixNode, int]] = []
    stack = [(node, 0) for node in reversed(below.get("", ()))]
    while stack:
        node, depth = stack.pop()
        found.append((node, depth))
        stack += [(child, depth + 1) for child in reversed(below.get(node.name, ()))]
    return found


def lines(nodes: Sequence[PrefixNode], width: int, height: int) -> list[Pieces]:
    """As many as there is room for."""
    if not nodes:
        return [[("no prefix was found twice yet", "faint")]]
    head: Pieces = [(f"{'HITS':>6}{'PAGES':>7}  {'WHERE':<{BAR}}  {'TENANT':<10}PREFIX", "muted!")]
    return [head, *(line(node, depth, width) for node, depth in ordered(nodes))][:height]


def line(node: PrefixNode, depth: int, width: int) -> list[Piece]:
    """One node."""
    branch = "  " * (depth - 1) + "└ " if depth else ""
    pieces: list[Piece] = [
        (f"{count(node.hits):>6}", "text!"), (f"{count(node.pages):>7}  ", "text"), *where(node),
        ("  ", "text"), (f"{printable(node.tenant)[:9]:<10}", "muted"), (branch, "faint"),
        (node.name, "secondary"),
    ]  # fmt: skip
    if width >= 64:
        pieces.append(
            (f"  {node.mapped} have it now", "success")
            if node.mapped
            else (f"  {seconds(node.idle_s)} ago", "faint")
        )
    return pieces


def where(node: PrefixNode) -> list[Piece]:
    """A bar of which tiers its pages are in."""
    pages = max(1, node.device + node.host + node.file)
    cells = max(1, min(BAR, pages))
    ends = [round(cells * part / pages) for part in (node.device, node.device + node.host, pages)]
    kinds = (PAGES["held"], PAGES["host"], PAGES["file"])
    pieces: list[Piece] = []
    start = 0
    for end, look in zip(ends, kinds, strict=True):
        pieces.append((look.mark * (end - start), look.role))
        start = end
    return [*pieces, (" " * (BAR - cells), "text")]
