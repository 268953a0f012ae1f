"""What the kernel's process and those of the other ranks tell each other: a small message for each
command, msgpack over a socket pair of their own.

A pass says which tokens run where, and which rows draw; what is drawn, and how, is rank 0's affair.
Rank 0 has looked at its rows: one that cannot run has no tokens, and a token that is `drawn_by` the
pass before is on every device by then.
"""

from collections.abc import Sequence

import msgspec

from tokenix.drivers.intake import Batch
from tokenix.drivers.ops import (
    Command,
    CopyFrame,
    CopyIn,
    CopyOut,
    Forward,
    PageIn,
    PageOut,
    Poison,
    Row,
    SampleSpec,
    TableDelta,
)
from tokenix.drivers.sampling import SamplingParams
from tokenix.mm.ids import Pfn, Pid, Slot, Ticket

# ---- to the other ranks ----


class Join(msgspec.Struct, tag="join", array_like=True, frozen=True):
    """All have their weights: meet (`peers.py`)."""


class Pass(msgspec.Struct, tag="pass", array_like=True, frozen=True):
    """A Forward."""

    ticket: Ticket
    rows: Sequence[tuple[Pid, int, Sequence[int], bool]]
    """(pid, start, tokens, whether it draws)."""
    tables: Sequence[tuple[Pid, int, Sequence[Pfn]]]
    drop: Sequence[Pid]


class Duplicate(msgspec.Struct, tag="copy", array_like=True, frozen=True):
    """A CopyFrame."""

    ticket: Ticket
    src: Pfn
    dst: Pfn


class Spoil(msgspec.Struct, tag="poison", array_like=True, frozen=True):
    """A Poison. It is not answered."""

    frames: Sequence[Pfn]


class Out(msgspec.Struct, tag="out", array_like=True, frozen=True):
    """The rank's parts of frames to its parts of slots."""

    ticket: Ticket
    pages: Sequence[tuple[Pfn, Slot]]


class In(msgspec.Struct, tag="in", array_like=True, frozen=True):
    """The way back. Slots were verified."""

    ticket: Ticket
    pages: Sequence[tuple[Slot, Pfn]]


Request = Join | Pass | Duplicate | Spoil | Out | In

# ---- from them ----


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """A sign of life."""


class Loaded(msgspec.Struct, tag="loaded", array_like=True, frozen=True):
    """Ready to meet."""


class Answer(msgspec.Struct, tag="answer", array_like=True, frozen=True):
    """A command is done, or why it is not."""

    ticket: Ticket
    wrong: str = ""


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """It could not start, and ends."""

    errno: int
    reason: str


Report = Loading | Loaded | Answer | Failed

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(Request)
_REPORTS = msgspec.msgpack.Decoder(Report)

_DRAWS = SampleSpec(SamplingParams(), (), 0)


def encode(message: Request | Report) -> bytes:
    return _ENCODER.encode(message)


def read_request(data: bytes) -> Request:
    return _REQUESTS.decode(data)


def read_report(data: bytes) -> Report:
    return _REPORTS.decode(data)


def forward_of(command: Forward, batch: Batch) -> Forward:
    """A forward whose rows rank 0 has looked at, as other ranks are to run it."""
    looked_at = zip(batch.rows, batch.results, strict=True)
    rows = tuple(
        row if fault is None else msgspec.structs.replace(row, tokens=(), sample=None)
        for row, fault in looked_at
    )
    return Forward(command.ticket, rows, command.tables, command.drop)


def request_of(command: Command, ticket: Ticket) -> Request:
    """What other ranks must know of a command."""
    match command:
        case Forward():
            return Pass(
                ticket,
                [(r.pid, r.start, r.tokens, r.sample is not None) for r in command.all_rows()],
                [(delta.pid, delta.keep, delta.frames) for delta in command.tables],
                command.drop,
            )
        case CopyFrame():
            return Duplicate(ticket, command.src, command.dst)
        case Poison():
            return Spoil(command.frames)
        case CopyOut():
            return Out(ticket, [(page.pfn, page.slot) for page in command.pages])
        case CopyIn():
            return In(ticket, [(page.slot, page.pfn) for page in command.pages])
        case _:
            raise AssertionError(f"{command} is no affair of other ranks")


def command_of(request: Request) -> Command:
    """The command that a rank does."""
    match request:
        case Pass():
            return Forward(
                request.ticket,
                tuple(
                    Row(pid, start, tuple(tokens), _DRAWS if draws else None)
                    for pid, start, tokens, draws in request.rows
                ),
                tuple(TableDelta(pid, keep, tuple(pfns)) for pid, keep, pfns in request.tables),
                tuple(request.drop),
            )
        case Duplicate():
            return CopyFrame(request.ticket, request.src, request.dst)
        case Spoil():
            return Poison(tuple(request.frames))
        case Out():
            return CopyOut(request.ticket, tuple(PageOut(p, s, 0) for p, s in request.pages))
        case In():
            return CopyIn(request.ticket, tuple(PageIn(s, 0, p) for s, p in request.pages))
        case Join():
            raise AssertionError("to meet is no command")
