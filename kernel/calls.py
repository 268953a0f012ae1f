"""The system calls, as data: what a caller asks, one class per call. `answers.py` has what it gets.

The same requests serve callers in this process and, encoded, those behind a socket.
"""

import enum
import errno
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from tokenix.drivers.sampling import SamplingParams, TokenMask
from tokenix.kernel.answers import (
    ImageInfo,
    Listing,
    MetricsReport,
    PageMap,
    PlaceMap,
    PlanReport,
    PrefixNode,
    ProcessStat,
    ReadResult,
    WaitResult,
)
from tokenix.kernel.trace import TraceEvent
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader

PLAIN: Final = SamplingParams()
"""What is not said: greedy, nothing changed."""


class Signal(enum.IntEnum):
    """Numbers as on Linux."""

    KILL = 9
    TERM = 15
    CONT = 18
    STOP = 19


class KernelError(OSError):
    """An error for the caller: errno, one line that says what was wrong and what to do.

    It is an OSError, so ESRCH is not raised as such but through `as_os_error`, which gives Python's
    own subclass (ProcessLookupError, PermissionError, ...).
    """

    def __init__(self, number: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(number, message)
        self.message = message
        self.retry_after_s = retry_after_s

    def as_os_error(self) -> OSError:
        """A fresh exception of the class Python uses for this errno."""
        assert self.errno is not None
        error = OSError(self.errno, self.message)
        if self.retry_after_s is not None:
            error.retry_after_s = self.retry_after_s  # type: ignore[attr-defined]
        return error


def error(number: int, message: str, retry_after_s: float | None = None) -> KernelError:
    """Build a KernelError; `number` is an errno."""
    assert number in errno.errorcode, "errors carry an errno"
    return KernelError(number, message, retry_after_s)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. A tenant sees and signals only its own processes; root sees all."""

    tenant: str = "default"
    root: bool = False


class TextStream(Protocol):
    """Turns tokens into text and watches for stop strings (models.text.TextStream)."""

    @property
    def stops(self) -> bool:
        """Whether there are any."""
        ...

    @property
    def stopped(self) -> str | None: ...

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...

    def copy(self) -> "TextStream": ...

    def freeze(self) -> bytes:
        """All of its state, for an image."""
        ...


class Grammar(TokenMask, Protocol):
    """What each turn of a process may say (models.grammar.Grammar). It holds no state of its own
    that counts: what may come next follows from the turn's tokens so far."""

    def copy(self) -> "Grammar":
        """For another process."""
        ...

    def freeze(self) -> bytes:
        """For an image."""
        ...


# ---- requests ----

Span = tuple[int, int]
"""Least and greatest of some tokens. A request finds them when it is made, in its caller's thread,
so that the kernel need not look at thousands of tokens between two passes."""


NO_SPAN: Final = (0, 0)


def span_of(tokens: tuple[int, ...]) -> Span:
    return (min(tokens), max(tokens)) if tokens else NO_SPAN


Answer_co = TypeVar("Answer_co", covariant=True)


class Asks(msgspec.Struct, Generic[Answer_co], frozen=True, tag=str.lower):
    """A request that is answered with an `Answer_co`, or with an error."""


class Spawn(Asks[Pid], frozen=True):
    """Admit a process -> Pid. EINVAL, E2BIG, EAGAIN (retry_after_s), EDQUOT."""

    tokens: tuple[int, ...]
    span: Span = NO_SPAN
    sampling: SamplingParams = PLAIN
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_pages: int | None = None
    """KV pages the process may map; it ends with reason `pages` when it needs more."""
    deadline_s: float | None = None
    """Seconds from now after which it is ended with reason `deadline`."""
    qos: Qos = Qos.STREAM
    reader: Reader = Reader()
    nice: int = 0
    keep_open: bool = False
    """Its stdin stays open: after a turn it waits for `Write` instead of exiting."""
    name: str = ""
    text: TextStream | None = None
    grammar: Grammar | None = None
    """Its output keeps to it in every turn and ends where it does, whatever `ignore_eos` says."""

    def __post_init__(self) -> None:
        tokens = tuple(self.tokens)  # if it was a list: that may change
        msgspec.structs.force_setattr(self, "tokens", tokens)
        msgspec.structs.force_setattr(self, "span", span_of(tokens))


class Read(Asks[ReadResult], frozen=True):
    """Take up to `max_tokens` of output -> ReadResult. ESRCH."""

    pid: Pid
    max_tokens: int = 1 << 30
    block: bool = True
    """Wait until there is at least one token or the end."""


class Follow(Asks[ReadResult], frozen=True):
    """Take output as it comes, up to `max_tokens` in all -> ReadResult. It is answered in parts
    (`event.Reply.more`); the last one is that with which all is taken, or the turn or the output
    ends. ESRCH, EPIPE (it was read to its end)."""

    pid: Pid
    max_tokens: int


class Write(Asks[int], frozen=True):
    """Append input for the next turn. ESRCH, EPIPE (stdin is closed), E2BIG."""

    pid: Pid
    tokens: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    """Goes before the input, unless the sequence ends with a stop token already."""
    eof: bool = False
    span: Span = NO_SPAN
    """Of the separator and the input."""

    def __post_init__(self) -> None:
        tokens, separator = tuple(self.tokens), tuple(self.separator)
        msgspec.structs.force_setattr(self, "tokens", tokens)
        msgspec.structs.force_setattr(self, "separator", separator)
        msgspec.structs.force_setattr(self, "span", span_of(separator + tokens))


class Fork(Asks[tuple[Pid, ...]], frozen=True):
    """Branch into `n` children that share every full page -> tuple of pids. ESRCH, EAGAIN, and
    E2BIG if `afresh`."""

    pid: Pid
    n: int = 1
    seeds: tuple[int, ...] = ()
    """Seeds of the children; by default child i of a sampling parent gets a seed derived from the
    parent's and i. Greedy children repeat their parent until they are written to."""
    afresh: bool = False
    """Children begin behind the parent's prompt of this turn, and draw all of their output."""


class Wait(Asks[WaitResult], frozen=True):
    """Reap a finished process -> WaitResult. ECHILD, EAGAIN (it is not to block). pid None:
    whichever finishes first. All who are blocked for the process that finishes are answered, and
    one of those who wait for any."""

    pid: Pid | None = None
    block: bool = True
    keep: bool = False
    """Only look: it stays for whoever it belongs to, with its unread output."""


class Kill(Asks[None], frozen=True):
    """Send a signal. ESRCH, EINVAL. Legal in every state; idempotent."""

    pid: Pid
    signal: Signal


class Nice(Asks[int], frozen=True):
    """Set the nice value (-20..19) -> the old one. ESRCH, EPERM (below 0 without root), EINVAL."""

    pid: Pid
    nice: int


class SetRlimit(Asks[None], frozen=True):
    """Change limits of a living process; None leaves one as it is. ESRCH, EINVAL, E2BIG."""

    pid: Pid
    max_tokens: int | None = None
    max_pages: int | None = None
    deadline_s: float | None = None


class ShmOpen(Asks[int], frozen=True):
    """Pin the KV of a named prefix; answered when computed -> tokens pinned. EDQUOT, EEXIST."""

    name: str
    tokens: tuple[int, ...]


class ShmUnlink(Asks[None], frozen=True):
    """Unpin a named prefix. ENOENT."""

    name: str


class Stat(Asks[ProcessStat], frozen=True):
    """-> ProcessStat. ESRCH."""

    pid: Pid


class Ps(Asks[Listing], frozen=True):
    """-> Listing: processes that the caller may see, by pid, `Params.listed_processes` of them at
    most, so that whoever wants all holds nobody up. EINVAL, E2BIG (more than 4096 `pids`)."""

    after: Pid = Pid(0)
    """Only those with a greater pid."""
    limit: int | None = None
    """No more than so many."""
    pids: tuple[Pid, ...] = ()
    """Only these, if any are named; those that do not exist are left out."""


class Maps(Asks[PageMap], frozen=True):
    """-> PageMap: where the pages of a process are, from `start` on, at most `Params.listed_pages`
    of them. ESRCH, EINVAL."""

    pid: Pid
    start: int = 0


class Tail(Asks[tuple[int, ...]], frozen=True):
    """-> tuple of the last tokens of the output of a process's present turn, which stays in its
    pipe. Prompts are not shown. ESRCH, EINVAL."""

    pid: Pid
    limit: int = 64


class Framemap(Asks[PlaceMap], frozen=True):
    """-> PlaceMap: how the places of a tier (frames, host or disk) stand, from `start` on, at most
    `Params.listed_pages` of them. EINVAL."""

    tier: str = "frames"
    start: int = 0


class Prefixes(Asks[tuple[PrefixNode, ...]], frozen=True):
    """-> tuple of PrefixNode: what prompts have in common and is found most, the most often found
    first. EINVAL."""

    limit: int = 64


class Plan(Asks[PlanReport], frozen=True):
    """-> PlanReport: who runs, who is next, who is due, and what was decided lately."""


class Vmstat(Asks[dict[str, float]], frozen=True):
    """-> dict of counters and gauges of the whole kernel."""


class Metrics(Asks[MetricsReport], frozen=True):
    """-> MetricsReport: latencies, tokens and ends per class and tenant. A tenant gets its own."""


class Sysctl(Asks[object], frozen=True):
    """Read (value None) or set one control variable; name "" reads all. ENOENT, EPERM, EINVAL."""

    name: str = ""
    value: float | str | bool | None = None


class Swapon(Asks[int], frozen=True):
    """Open a swap file of `size_bytes` in `directory` -> its size in bytes. EPERM, EBUSY (there is
    one), EINVAL, and what the file system says: ENOSPC, ENOENT, EACCES, EIO ..."""

    directory: str
    size_bytes: int


class Swapoff(Asks[int], frozen=True):
    """Bring up what is only in the swap file and give the file back -> 0. EPERM, EINVAL (none),
    EBUSY (another swapoff is under way), EIO (the disk hangs; the file goes when it answers)."""


class ImageDir(Asks[int], frozen=True):
    """Keep images in `directory` -> processes that came back: those that waited for input, if
    `resume`; if not, their images are wiped. Asked once, at boot. EPERM, EBUSY, EIO."""

    directory: str
    resume: bool = False


class Suspend(Asks[ImageInfo], frozen=True):
    """Write a process to an image and end it with reason `suspended` -> ImageInfo. ESRCH, EINVAL,
    EEXIST, EBUSY, ENOSPC, EIO, ETIMEDOUT: after these it goes on as if nothing had happened."""

    pid: Pid
    name: str


class Resume(Asks[Pid], frozen=True):
    """The process of an image goes on -> its new pid. ENOENT, EBADMSG (damaged), EINVAL (another
    model or format), E2BIG, EAGAIN, EBUSY, EIO, ETIMEDOUT. The image is gone afterwards."""

    name: str
    detach: bool = False
    """Over a socket: the process goes on when the connection ends."""


class Images(Asks[tuple[ImageInfo, ...]], frozen=True):
    """-> ImageInfo of every image that was made by `suspend` and that the caller may see."""


class UnlinkImage(Asks[None], frozen=True):
    """Remove an image. ENOENT, EBUSY."""

    name: str


class Trace(Asks[tuple[TraceEvent, ...]], frozen=True):
    """Trace events after sequence number `since` -> tuple of TraceEvent. ESRCH, EPERM."""

    pid: Pid | None = None
    since: int = 0
    limit: int = 1000


class CancelCall(Asks[bool], frozen=True):
    """Take back a blocked Read or Wait, a Suspend or Resume; it is answered with EINTR."""

    call_id: int


Request = (
    Spawn | Read | Follow | Write | Fork | Wait | Kill | Nice | SetRlimit | ShmOpen | ShmUnlink
    | Stat | Ps | Maps | Tail | Framemap | Prefixes | Plan | Vmstat | Metrics | Sysctl | Swapon
    | Swapoff | ImageDir | Suspend | Resume | Images | UnlinkImage | Trace | CancelCall
)  # fmt: skip
