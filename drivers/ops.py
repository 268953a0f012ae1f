"""What the kernel says to a device, and what the device says back. Data only.

The kernel decides and sends commands; the device does them and answers with completions, each
carrying the command's ticket. Order and fences are a contract between the two:

    compute queue   Forward, CopyFrame, Poison     run one after another, as submitted
    swap-out queue  CopyOut                        own queue, concurrent with all others
    swap-in queue   CopyIn                         own queue, concurrent with all others
    store queue     Store, SwapOn, SwapOff         own queue, concurrent with all others
    fetch queue     Fetch                          own queue, concurrent with all others
    image queue     OpenImages, SaveImage ...      own queue, concurrent with all others

A Forward may be submitted before the one before it has completed, up to `DeviceInfo.depth` at a
time, and then go on with rows of that one: what has been drawn by then only the device knows, and
`drawn_by` names it. A row fails if the row that it goes on with has.

    Forward 1   decode of pid 7 at position 20, in row 3   |====================|
    Forward 2   decode of pid 7 at position 21, token drawn_by(3)     |====================|

Across queues nothing is ordered. The kernel never submits a command that touches a frame, slot or
block which an unfinished command on another queue writes, nor one that writes what such a command
reads; with one exception, on a device that covers loads (`DeviceInfo.covers_loads`). Forwards may
run `beside` a load `by_layers`: they read its frames, and write behind what it brings.

    CopyIn 3, by layers           | 1 2 | 3 4 | 5 6 | 7 8 |
    Forward 4, beside 3     ......| 1 2 ...... | 3 4 ...... | 5 6 ...... | 7 8 ...... |

Each layer waits for its part of all pages of the load, and the forward completes after the load. A
row fails whose block table names a page that the load failed to bring. If a load does not end, a
forward beside it ends nevertheless, some time; nothing of such rows may be used then. There is one
unfinished load by layers at most, and no other load was unfinished when it was submitted.

A SwapOn or SwapOff is submitted while no Store and no Fetch is unfinished, and the other way
round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tokenix.drivers.sampling import SamplingParams, TokenMask
from tokenix.mm.ids import Block, Pfn, Pid, Slot, Ticket


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """Draw one token after the last token of a row, at position `Row.end`."""

    params: SamplingParams
    history: Sequence[int]
    """The sequence so far. Append-only: entries below the position are stable, read no others, and
    read it only if `params.needs_history` or there is a grammar."""
    prompt_tokens: int
    """history[:prompt_tokens] is the prompt, the rest up to the position is output."""
    banned: tuple[int, ...] = ()
    """Token ids that may not be drawn (end of text while below min_tokens)."""
    grammar: TokenMask | None = None

    @property
    def plain(self) -> bool:
        """Whether logits, parameters and position alone decide: no token before it needs to be
        known, and nothing but the token is asked for."""
        return (
            self.grammar is None
            and not self.banned
            and not self.params.logit_bias
            and self.params.logprobs < 0
            and not self.params.needs_history
        )


def drawn_by(row: int) -> int:
    """In place of a token: the one that row `row` (from 0) of the forward before draws, for the
    same process, at the position at which it is used here. Its spec must be `plain`."""
    return -1 - row


class Row(msgspec.Struct, frozen=True):
    """One process's part of a forward pass: `tokens` at positions start, start + 1, ...

    K and V of every token are written through the process's block table; attention of position p
    reads positions 0..p through the same table.
    """

    pid: Pid
    start: int
    tokens: tuple[int, ...]
    """One alone may be a `drawn_by`."""
    sample: SampleSpec | None
    """None: a prefill chunk that is not the last one; only KV is produced."""

    @property
    def end(self) -> int:
        """Position behind the row: where the drawn token goes. With the seed it keys the chance."""
        return self.start + len(self.tokens)


class Decodes(msgspec.Struct, frozen=True):
    """Rows of one token each that draw the next, as columns: they are most rows of most steps."""

    pids: Sequence[Pid] = ()
    starts: Sequence[int] = ()
    tokens: Sequence[int] = ()
    specs: Sequence[SampleSpec] = ()

    def rows(self) -> tuple[Row, ...]:
        columns = zip(self.pids, self.starts, self.tokens, self.specs, strict=True)
        return tuple(Row(pid, start, (token,), spec) for pid, start, token, spec in columns)


@dataclass(frozen=True, slots=True)
class TableDelta:
    """The device's block table of `pid` becomes table[:keep] + frames, before the rows run."""

    pid: Pid
    keep: int
    frames: tuple[Pfn, ...]


class Forward(msgspec.Struct, frozen=True):
    """One step of the model over a batch: `decodes`, then `rows` (prefill chunks).

    At most one row per process. `drop` names processes whose block tables may be forgotten.
    `weigh`: tell also what each page meant to the rows that draw (`ForwardDone.masses`); it changes
    nothing else. `beside`: the load by layers that brings pages which rows read, if it may be
    unfinished.
    """

    ticket: Ticket
    rows: tuple[Row, ...]
    tables: tuple[TableDelta, ...] = ()
    drop: tuple[Pid, ...] = ()
    decodes: Decodes = Decodes()
    weigh: bool = False
    beside: Ticket | None = None

    def all_rows(self) -> tuple[Row, ...]:
        """The whole batch, in the order of the results."""
        return self.decodes.rows() + self.rows


@dataclass(frozen=True, slots=True)
class PageOut:
    """Frame `pfn` to host slot `slot`, published there under `generation`."""

    pfn: Pfn
    slot: Slot
    generation: int


@dataclass(frozen=True, slots=True)
class PageIn:
    """Host slot `slot` to frame `pfn`; only if the slot holds `generation` and its checksum."""

    slot: Slot
    generation: int
    pfn: Pfn


@dataclass(frozen=True, slots=True)
class PageStore:
    """Host slot `slot`, if it holds `slot_generation`, to block `block` of the swap file, published
    there under `generation`."""

    slot: Slot
    slot_generation: int
    block: Block
    generation: int


@dataclass(frozen=True, slots=True)
class PageFetch:
    """Block `block`, only if it holds `generation` and its checksum, to host slot `slot`, published
    there under `slot_generation`."""

    block: Block
    generation: int
    slot: Slot
    slot_generation: int


@dataclass(frozen=True, slots=True)
class CopyOut:
    ticket: Ticket
    pages: tuple[PageOut, ...]


@dataclass(frozen=True, slots=True)
class CopyIn:
    """`by_layers`: some layers of all pages after the other, so that forwards may run beside it; a
    device that does not cover loads is never asked for that."""

    ticket: Ticket
    pages: tuple[PageIn, ...]
    by_layers: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    ticket: Ticket
    pages: tuple[PageStore, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    ticket: Ticket
    pages: tuple[PageFetch, ...]


@dataclass(frozen=True, slots=True)
class SwapOn:
    """Open a swap file of `blocks` pages in `directory`: reserve its space on the disk, and measure
    it. The answer is a SwapChanged."""

    ticket: Ticket
    directory: str
    blocks: int


@dataclass(frozen=True, slots=True)
class SwapOff:
    """Give the swap file back. The answer is a SwapChanged."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class PageSave:
    """Host slot `slot`, if it holds `generation`, as the next page of an image."""

    slot: Slot
    generation: int


@dataclass(frozen=True, slots=True)
class PageLoad:
    """Page `index` of an image, only if it has its checksum, to host slot `slot`, published there
    under `generation`."""

    index: int
    slot: Slot
    generation: int


@dataclass(frozen=True, slots=True)
class OpenImages:
    """Use `directory` for images; nobody else may at the same time. What was being written when
    its last user died is removed. `ImageDone.files` tells what is there. Of the directory that is
    used already: look again."""

    ticket: Ticket
    directory: str


@dataclass(frozen=True, slots=True)
class SaveImage:
    """Write an image to `path` (in the directory, with slashes): all of it or nothing, and for good
    when it is done. It ends before the first page that cannot be read; `meta` is always whole."""

    ticket: Ticket
    path: str
    meta: bytes
    pages: tuple[PageSave, ...]


@dataclass(frozen=True, slots=True)
class ReadImage:
    """Verify an image and tell its `meta`, `pages` and `digest`."""

    ticket: Ticket
    path: str


@dataclass(frozen=True, slots=True)
class LoadImage:
    """Pages of the image that ReadImage has found to have that digest. Those in `ImageDone.bad`
    are not there."""

    ticket: Ticket
    path: str
    digest: bytes
    pages: tuple[PageLoad, ...]


@dataclass(frozen=True, slots=True)
class UnlinkImage:
    """Remove an image."""

    ticket: Ticket
    path: str


@dataclass(frozen=True, slots=True)
class CopyFrame:
    """Copy a whole frame on the device (copy-on-write of a partial tail page)."""

    ticket: Ticket
    src: Pfn
    dst: Pfn


@dataclass(frozen=True, slots=True)
class Poison:
    """Fill freed frames with junk that must never be read (tests). No completion."""

    frames: tuple[Pfn, ...]


ImageCommand = OpenImages | SaveImage | ReadImage | LoadImage | UnlinkImage
Command = (
    Forward | CopyOut | CopyIn | Store | Fetch | SwapOn | SwapOff | CopyFrame | Poison
    | ImageCommand
)  # fmt: skip


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """A drawn token. `top` holds (token, logprob) pairs, most likely first."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RowFault:
    """This row alone failed (not-a-number logits, a bad table): its process exits, no other."""

    reason: str


class ForwardDone(msgspec.Struct, frozen=True):
    """`results` is parallel to the command's `all_rows`; None where a row asked for no sample."""

    ticket: Ticket
    results: Sequence[Sampled | RowFault | None]
    masses: Sequence[Sequence[float]] = ()
    """Attention mass, if it was asked for and the device can tell; else empty. Parallel to
    `results`: for a row that has drawn, the softmax weight that its last token gives to the keys of
    each page of its table, up to the last one it reads, averaged over all heads of all layers, so
    that the pages of a row sum to 1. Empty for other rows."""


@dataclass(frozen=True, slots=True)
class CopyDone:
    """All pages of the copy are in place (and, in the lower tiers, published)."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """The copy did not happen or was not verified; `bad` indexes the pages that failed.

    Pages not named in `bad` are in place. The kernel recomputes what a failed CopyIn or Fetch was
    to bring and keeps the source of a failed CopyOut or Store.
    """

    ticket: Ticket
    bad: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A forward failed as a whole; none of its rows produced anything that may be used."""

    ticket: Ticket
    reason: str


@dataclass(frozen=True, slots=True)
class SwapChanged:
    """The swap file has `blocks` pages now: as many as were asked for; or 0 with the reason and an
    errno; or 0 after a SwapOff. The rates were measured when it was opened."""

    ticket: Ticket
    blocks: int
    store_s_per_page: float = 0.0
    fetch_s_per_page: float = 0.0
    reason: str = ""
    error: int = 0


@dataclass(frozen=True, slots=True)
class ImageDone:
    """The end of an image command. `error` is an errno, 0 if it was done: EBADMSG for what is
    damaged, EINVAL for another version, ENOENT, ENOSPC, EIO, EBUSY (another kernel uses them)."""

    ticket: Ticket
    error: int = 0
    reason: str = ""
    size_bytes: int = 0
    """Of the file, after a SaveImage."""
    files: tuple[tuple[str, int], ...] = ()
    """(path, bytes) of every image, by path, after an OpenImages."""
    strays: tuple[str, ...] = ()
    """Paths of what else lies there, after an OpenImages."""
    meta: bytes = b""
    digest: bytes = b""
    pages: int = 0
    """In the file, after a SaveImage or ReadImage."""
    bad: tuple[int, ...] = ()
    """After a LoadImage: places in the command's `pages`."""


Completion = ForwardDone | CopyDone | CopyFailed | DeviceFault | SwapChanged | ImageDone
