"""What system calls are answered with."""

import enum
from dataclasses import dataclass

import msgspec

from tokenix.mm.ids import Pid


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


class Output(msgspec.Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
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
    stopped_by: str = ""
    """The stop string that ended it; "" if none did."""


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


class Rusage(msgspec.Struct):
    """What a process has used. Written by the kernel."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix index at admission (or that a fork afresh has
    from its parent): on the device, or ..."""
    cached_host_tokens: int = 0
    """... in the host tier ..."""
    cached_file_tokens: int = 0
    """... or in the swap file, when it was spawned."""
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


class Distribution(msgspec.Struct, frozen=True):
    """How often something took how long."""

    counts: tuple[int, ...]
    """By bucket, each without those below it; the last is above all bounds."""
    sum: float


class MeterSeries(msgspec.Struct, frozen=True):
    """What the processes of one class of one tenant have met with since boot. Only ever grows."""

    tenant: str
    """`*`: all those who came when the table of tenants was full."""
    qos: str
    counts: dict[str, int]
    """Of tokens and events, by the names in `kernel.meters.COUNTS`."""
    ends: dict[str, int]
    """Turns by why they ended: the values of `ExitReason`."""
    spans: dict[str, Distribution]
    """Of times, by the names in `kernel.meters.BOUNDS`."""


class MetricsReport(msgspec.Struct, frozen=True):
    """Latencies, tokens and ends per class and tenant."""

    bounds: dict[str, tuple[float, ...]]
    """Upper bounds of the buckets of each distribution, in seconds, each bound included."""
    series: tuple[MeterSeries, ...]
    """By tenant and class."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image of a suspended process."""

    name: str
    tenant: str
    size_bytes: int


class ProcessStat(msgspec.Struct, frozen=True):
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
    rusage: Rusage = msgspec.field(default_factory=Rusage)
    queue_position: int | None = None
    """Waits for its first frames: how many are before it as things stand; 0: it is next. None: it
    has them, or is held."""
    file_pages: int = 0
    """In the swap file only. What is neither there nor resident is in the host tier."""


class Listing(msgspec.Struct, frozen=True):
    """Some processes, by pid, and how to go on."""

    processes: tuple[ProcessStat, ...]
    after: Pid | None = None
    """There may be more: ask for those after this pid. None: that was all."""
