"""`tokenix maps`, `prefixes` and `plan`: where pages are, what prompts share, what is decided."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated

import msgspec

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import OK, UsageError
from tokenix.cli.table import printable, seconds, table
from tokenix.cli.traces import line_of
from tokenix.syscalls.types import PageCode, PageMap, Pid, PlanReport

TIERS = {"device": PageCode.DEVICE, "host": PageCode.HOST, "file": PageCode.FILE}
DECISIONS = 12
"""That `plan` prints; JSON has more."""


def maps(
    pid: Annotated[int, options.Parameter(help="Process.")],
    /,
    *,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show where the pages of a process are, a line for pages that stand alike."""
    with connected(socket) as k:
        found = k.maps(Pid(pid))
    ranges = list(ranges_of(found))
    if json:
        stdout.write_json(
            {
                "pid": found.pid,
                "page_tokens": found.page_tokens,
                "computed_tokens": found.computed_tokens,
                "pages": found.total,
                "ranges": ranges,
            }
        )
        return OK
    rows = [
        (
            f"{each.first}-{each.last}",
            f"{each.first * found.page_tokens}-{(each.last + 1) * found.page_tokens - 1}",
            "+".join(each.where) or "nowhere",
            " ".join(word for word in ("shared", "moving") if getattr(each, word)),
        )
        for each in ranges
    ]
    stdout.write(table(("PAGES", "TOKENS", "WHERE", "HOW"), rows, ("WHERE",)))
    return OK


class Range(msgspec.Struct, frozen=True):
    """Pages one after another that stand alike."""

    first: int
    last: int
    where: tuple[str, ...]
    """Tiers that have them; none: they are computed again."""
    shared: bool
    moving: bool


def ranges_of(found: PageMap) -> Iterator[Range]:
    """All pages, in order."""
    at = 0
    for code, group in groupby(found.codes):
        number = len(list(group))
        where = tuple(name for name, bit in TIERS.items() if code & bit)
        shared, moving = bool(code & PageCode.SHARED), bool(code & PageCode.MOVING)
        yield Range(at, at + number - 1, where, shared, moving)
        at += number


def prefixes(
    *,
    limit: Annotated[int, options.Parameter(help="So many at most.")] = 64,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show what prompts have in common, those that were found most first."""
    if limit < 1:
        raise UsageError("the limit is at least 1")
    with connected(socket) as k:
        found = k.prefixes(limit)
    if json:
        stdout.write_json(found)
        return OK
    head = (
        "HITS", "DEPTH", "PAGES", "DEVICE", "HOST", "FILE", "NOW", "IDLE", "BEFORE", "TENANT",
        "NAME",
    )  # fmt: skip
    rows = [
        (
            str(node.hits), str(node.depth), str(node.pages), str(node.device), str(node.host),
            str(node.file), str(node.mapped), "-" if node.mapped else seconds(node.idle_s),
            node.parent or "-", printable(node.tenant), node.name,
        )
        for node in found
    ]  # fmt: skip
    stdout.write(table(head, rows, ("BEFORE", "TENANT")))
    return OK


def plan(*, json: options.Json = False, socket: options.Socket = None) -> int:
    """Show who runs, who gets frames next, who is due, and what was decided lately and why."""
    with connected(socket) as k:
        found = k.plan()
    if json:
        stdout.write_json(found)
    else:
        stdout.write("\n".join(_lines(found)) + "\n")
    return OK


def _lines(found: PlanReport) -> Iterator[str]:
    chunks = " ".join(f"{pid}:{tokens}" for pid, tokens in found.chunks)
    decodes = " ".join(map(str, found.decodes))
    yield f"policy   {found.policy}, {found.steps} passes"
    yield f"running  {' '.join(filter(None, (chunks, decodes))) or '-'}"
    for one in found.waiting:
        yield (
            f"waiting  {one.pid} {one.qos}: {one.todo_tokens} tokens to compute, waited "
            f"{seconds(one.waited_s)} of {seconds(one.target_s)}"
        )
    for due in found.due:
        when = "owed nothing" if due.lead_s is None else f"due in {due.lead_s:.1f}s"
        yield f"paused   {due.pid} {when}: {due.resident_pages} of {due.pages} pages on the device"
    for event in found.decisions[-DECISIONS:]:
        yield line_of(event)
