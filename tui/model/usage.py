"""One process in words: who it is, and what it has used."""

import textwrap
from collections.abc import Sequence
from typing import Final

from tokenix.cli.table import printable, seconds, size
from tokenix.syscalls.types import ProcessStat
from tokenix.tui.model import palette
from tokenix.tui.model.columns import count, lead_number
from tokenix.tui.model.phrases import GAP, Piece, Pieces

LABEL: Final = 8


def who(process: ProcessStat) -> list[Piece]:
    """`R runs   17 of acme   stream   level 3, lead under 4 s   nice 0`"""
    look = palette.state_of(process.state, process.held)
    held = f" ({', '.join(process.held)})" if process.held else ""
    level = f"level {process.level}, {process.level_reason}"
    pieces: list[Piece] = [
        (f" {look.mark} {look.word}{held} ", f"{look.role}!"), GAP,
        (f"process {process.pid}", "text!"), (f" of {printable(process.tenant)}", "muted"), GAP,
        (process.qos, "text"), GAP, (level, "text"), GAP,
        (f"nice {process.nice}", "muted"),
    ]  # fmt: skip
    if process.parent:
        pieces += [GAP, (f"forked from {process.parent}", "muted")]
    if process.queue_position is not None:
        pieces += [GAP, (f"#{process.queue_position + 1} in the queue", "warning")]
    return pieces


def lead_words(process: ProcessStat) -> list[Piece]:
    """How its reader fares."""
    lead_s = process.lead_s
    if process.state == "zombie":
        return [("it has ended", "muted")]
    if lead_s is None:
        return [("nobody reads along", "muted")]
    if process.output_tokens == 0:
        word = f"its first token is due in {lead_number(lead_s)}"
        return [(word, "warning" if lead_s > 0 else "error")]
    if lead_s < 0:
        return [(f"its reader has waited for {lead_number(-lead_s)}", "error!")]
    return [("its reader has text for ", "muted"), (lead_number(lead_s), "success!")]


def usage(process: ProcessStat, page_bytes: float) -> list[Pieces]:
    """What it has used, a line a thing, the most telling first."""
    used = process.rusage
    first = "-" if used.ttft_s is None else seconds(used.ttft_s)
    cached = used.cached_tokens + used.cached_host_tokens + used.cached_file_tokens
    rows = (
        (
            "tokens",
            f"{count(process.output_tokens)} written, {count(process.unread_tokens)} not fetched",
            f"{count(used.prompt_tokens)} of the prompt, {count(cached)} of them found",
        ),
        (
            "time", f"first token {first}",
            f"queue {seconds(used.queue_s)}, prefill {seconds(used.prefill_s)}, "
            f"decode {seconds(used.decode_s)}",
        ),
        (
            "paused", f"{_times(used.preemptions)}, {seconds(used.paused_s)}",
            f"stalls {used.stalls}, {count(used.recomputed_tokens)} tokens computed again",
        ),
        (
            "pages", f"{process.resident_pages} of {process.pages} on the device",
            f"{process.clean_pages} clean, {process.file_pages} in the file only",
        ),
        (
            "moved", f"{size(used.swapped_out_bytes)} out, {size(used.swapped_in_bytes)} in",
            f"{size(used.fetched_bytes)} up from the file",
        ),
        (
            "memory", f"{used.page_seconds:.0f} page-seconds",
            f"{size(process.pages * page_bytes)} now; quantum {process.quantum_left_tokens} tokens",
        ),
    )  # fmt: skip
    return [
        [(f"{name:<{LABEL}}", "muted"), (f"{main:<28}", "text"), (rest, "muted")]
        for name, main, rest in rows
    ]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{count(number)} times"


def wrapped(text: str, width: int, height: int) -> Sequence[Pieces]:
    """The end of a text, as many lines as there are."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += textwrap.wrap(printable(line), max(10, width)) or [""]
    return [[(line, "text")] for line in lines[-height:]]
