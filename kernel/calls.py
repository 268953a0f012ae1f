"""The system calls, as data: what a caller asks and what it gets. One class per call.

The same requests serve callers in this process and, encoded, those behind a socket.
"""

import enum
import errno
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from tokenix.drivers.ops import SamplingParams
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


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. A tenant sees and signals only its own processes; root sees all."""

    tenant: str = "default"
    root: bool = False


class TextStream(Protocol):
    """Turns tokens into text and watches for stop strings (models.text.TextStream)."""

    @property
    def stopped(self) -> str | None: ...

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...

    def copy(self) -> "TextStream": ...

    def freeze(self) -> bytes:
        """All of its state, for an image."""
        ...


# ---- requests ----

Span = tuple[int, int]
"""Least and greatest of some tokens. A request finds them when it is made, in its caller's thread,
so that the kernel need not look at thousands of tokens between two passes."""


def span_of(tokens: tuple[int, ...]) -> Span:
    """Without tokens: (0, 0)."""
    return min(tokens, default=0), max(tokens, default=0)


Answer_co = TypeVar("Answer_co", covariant=True)


class Asks(Generic[Answer_co]):
    """A request that is answered with an `Answer_co`, or with an error."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Spawn(Asks[Pid]):
    """Admit a process -> Pid. EINVAL, E2BIG, EAGAIN (retry_after_s), EDQUOT."""

    tokens: tuple[int, ...]
    span: Span = field(init=False, repr=False, compare=False)
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

    def __post_init__(self) -> None:
        tokens = tuple(self.tokens)  # if it was a list: that may change
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "span", span_of(tokens))


@dataclass(frozen=True, slots=True)
class Read(Asks["ReadResult"]):
    """Take up to `max_tokens` of output -> ReadResult. ESRCH."""

    pid: Pid
    max_tokens: int = 1 << 30
    block: bool = True
    """Wait until there is at least one token or the end."""


@dataclass(frozen=True, slots=True)
class Write(Asks[int]):
    """Append input for the next turn. ESRCH, EPIPE (stdin is closed), E2BIG."""

    pid: Pid
    tokens: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    """Goes before the input, unless the sequence ends with a stop token already."""
    eof: bool = False
    span: Span = field(init=False, repr=False, compare=False)
    """Of the separator and the input."""

    def __post_init__(self) -> None:
        tokens, separator = tuple(self.tokens), tuple(self.separator)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "separator", separator)
        object.__setattr__(self, "span", span_of(separator + tokens))


@dataclass(frozen=True, slots=True)
class Fork(Asks[tuple[Pid, ...]]):
    """Branch into `n` children that share every full page -> tuple of pids. ESRCH, EAGAIN."""

    pid: Pid
    n: int = 1
    seeds: tuple[int, ...] = ()
    """Seeds of the children; by default child i of a sampling parent gets a seed derived from the
    parent's and i. Greedy children repeat their parent until they are written to."""


@dataclass(frozen=True, slots=True)
class Wait(Asks["WaitResult"]):
    """Reap a finished process -> WaitResult. ECHILD. pid None: whichever finishes first."""

    pid: Pid | None = None
    block: bool = True


@dataclass(frozen=True, slots=True)
class Kill(Asks[None]):
    """Send a signal. ESRCH, EINVAL. Legal in every state; idempotent."""

    pid: Pid
    signal: Signal


@dataclass(frozen=True, slots=True)
class Nice(Asks[int]):
    """Set the nice value (-20..19) -> the old one. ESRCH, EPERM (below 0 without root), EINVAL."""

    pid: Pid
    nice: int


@dataclass(frozen=True, slots=True)
class SetRlimit(Asks[None]):
    """Change limits of a living process; None leaves one as it is. ESRCH, EINVAL, E2BIG."""

    pid: Pid
    max_tokens: int | None = None
    max_pages: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShmOpen(Asks[int]):
    """Pin the KV of a named prefix; answered when computed -> tokens pinned. EDQUOT, EEXIST."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShmUnlink(Asks[None]):
    """Unpin a named prefix. ENOENT."""

    name: str


@dataclass(frozen=True, slots=True)
class Stat(Asks["ProcessStat"]):
    """-> ProcessStat. ESRCH."""

    pid: Pid


@dataclass(frozen=True, slots=True)
class Ps(Asks[tuple["ProcessStat", ...]]):
    """-> tuple of ProcessStat, by pid, of every process the caller may see."""


@dataclass(frozen=True, slots=True)
class Vmstat(Asks[dict[str, float]]):
    """-> dict of counters and gauges of the whole kernel."""


@dataclass(frozen=True, slots=True)
class Sysctl(Asks[object]):
    """Read (value None) or set one control variable; name "" reads all. ENOENT, EPERM, EINVAL."""

    name: str = ""
    value: float | str | bool | None = None


@dataclass(frozen=True, slots=True)
class Swapon(Asks[int]):
    """Open a swap file of `size_bytes` in `directory` -> its size in bytes. EPERM, EBUSY (there is
    one), EINVAL, EIO (with what the file system said)."""

    directory: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Swapoff(Asks[int]):
    """Bring up what is only in the swap file and give the file back -> 0. EPERM, EINVAL (none),
    EBUSY (another swapoff is under way), EIO (the disk hangs; the file goes when it answers)."""


@dataclass(frozen=True, slots=True)
class ImageDir(Asks[int]):
    """Keep images in `directory` -> processes that came back: those that waited for input, if
    `resume`; if not, their images are wiped. Asked once, at boot. EPERM, EBUSY, EIO."""

    directory: str
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Suspend(Asks["ImageInfo"]):
    """Write a process to an image and end it with reason `suspended` -> ImageInfo. ESRCH, EINVAL,
    EEXIST, EBUSY, ENOSPC, EIO, ETIMEDOUT: after these it goes on as if nothing had happened."""

    pid: Pid
    name: str


@dataclass(frozen=True, slots=True)
class Resume(Asks[Pid]):
    """The process of an image goes on -> its new pid. ENOENT, EBADMSG (damaged), EINVAL (another
    model or format), E2BIG, EAGAIN, EBUSY, EIO, ETIMEDOUT. The image is gone afterwards."""

    name: str


@dataclass(frozen=True, slots=True)
class Images(Asks[tuple["ImageInfo", ...]]):
    """-> ImageInfo of every image that was made by `suspend` and that the caller may see."""


@dataclass(frozen=True, slots=True)
class UnlinkImage(Asks[None]):
    """Remove an image. ENOENT, EBUSY."""

    name: str


@dataclass(frozen=True, slots=True)
class Trace(Asks[tuple[TraceEvent, ...]]):
    """Trace events after sequence number `since` -> tuple of TraceEvent. ESRCH, EPERM."""

    pid: Pid | None = None
    since: int = 0
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class CancelCall(Asks[bool]):
    """Take back a blocked Read or Wait, a Suspend or Resume; it is answered with EINTR."""

    call_id: int


Request = (
    Spawn | Read | Write | Fork | Wait | Kill | Nice | SetRlimit | ShmOpen | ShmUnlink
    | Stat | Ps | Vmstat | Sysctl | Swapon | Swapoff | ImageDir | Suspend | Resume | Images
    | UnlinkImage | Trace | CancelCall
)  # fmt: skip


# ---- results ----


class ExitReason(enum.Enum):
    """Why a process (or a turn) ended."""

    STOP = "stop"
    """End-of-text token, stop token or stop string."""
    LENGTH = "length"
    """max_tokens, or the model's context is full."""
    PAGES = "pages"
    DEADLINE = "deadline"
    TERMINATED = "terminated"
    KILLED = "killed"
    REFUSED = "refused"
    """It waited too long for its first token to be worth computing."""
    ERROR = "error"
    SUSPENDED = "suspended"
    """It is in an image; its unread output is there too."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """One generated token. `text` is what it made readable: may be empty, may be several pieces."""

    token: int
    text: str
    time_s: float
    """When it was delivered to the pipe, by the kernel's clock."""
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The end of a turn, in its place behind the turn's last output."""

    reason: ExitReason
    tail: str = ""
    """Text that was held back (half a character, a possible stop string)."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    outputs: tuple[Output, ...]
    turn_ended: TurnEnd | None = None
    """Set once, with the last outputs of a turn. The process may go on if its stdin is open."""
    eof: bool = False
    """No more output will ever come. Set in exactly one result; reading on gives EPIPE."""
    reason: ExitReason | None = None
    """With eof: why the process ended."""
    error: str = ""


@dataclass(slots=True)
class Rusage:
    """What a process has used. Written by the kernel."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix index at admission."""
    output_tokens: int = 0
    recomputed_tokens: int = 0
    """Tokens whose KV was computed more than once."""
    queue_s: float = 0.0
    """From spawn to the first frames."""
    ttft_s: float | None = None
    prefill_s: float = 0.0
    """On the device before the first token of a turn."""
    decode_s: float = 0.0
    """On the device after it."""
    paused_s: float = 0.0
    page_seconds: float = 0.0
    """Resident pages integrated over time."""
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    fetched_bytes: int = 0
    """Brought up from the swap file."""
    preemptions: int = 0
    stalls: int = 0
    """Tokens delivered later than their reader's deadline by more than 0.5 s."""
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitResult:
    pid: Pid
    reason: ExitReason
    error: str
    rusage: Rusage


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image of a suspended process."""

    name: str
    tenant: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A snapshot of one process."""

    pid: Pid
    parent: Pid
    tenant: str
    name: str
    state: str
    held: tuple[str, ...]
    qos: str
    nice: int
    level: int
    level_reason: str
    quantum_left_tokens: int
    lead_s: float | None
    prompt_tokens: int
    output_tokens: int
    unread_tokens: int
    computed_tokens: int
    pages: int
    resident_pages: int
    clean_pages: int
    age_s: float
    rusage: Rusage = field(default_factory=Rusage)


def error(number: int, message: str, retry_after_s: float | None = None) -> KernelError:
    """Build a KernelError; `number` is an errno."""
    assert number in errno.errorcode, "errors carry an errno"
    return KernelError(number, message, retry_after_s)
