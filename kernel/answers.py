"""What system calls are answered with."""

import enum
from dataclasses import dataclass

import msgspec

from tokenix.kernel.trace import TraceEvent
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


class ReadResult(msgspec.Struct, frozen=True, gc=False):
    """What a read has brought."""

    outputs: tuple[Output, ...]
    turn_ended: TurnEnd | None = None
    """Set once, with the last outputs of a turn. The process may go on if its stdin is open."""
    eof: bool = False
    """No more output will ever come. Set in exactly one result; reading on gives EPIPE."""
    reason: ExitReason | None = None
    """With eof: why the process ended."""
    error: str = ""


def ends_turn(result: ReadResult) -> bool:
    """Whether it is the last one of its turn."""
    return result.turn_ended is not None or result.eof


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


class PageCode(enum.IntFlag):
    """Where a page of a process is, and how it stands; 0: nowhere, it is computed again."""

    DEVICE = 1
    HOST = 2
    FILE = 4
    SHARED = 8
    """Others map it too."""
    MOVING = 16
    """A copy of it is under way between two tiers."""


class PageMap(msgspec.Struct, frozen=True):
    """Pages of a process, in order."""

    pid: Pid
    page_tokens: int
    computed_tokens: int
    """Tokens whose KV is in the pages."""
    total: int
    """Pages that it maps."""
    start: int
    codes: bytes
    """Of the pages from `start` on, a `PageCode` each."""


class PlaceCode(enum.IntFlag):
    """How a place of a tier (a frame, a host slot, a block of the swap file) stands: one of the
    first four, and what is known of the page that is there."""

    FREE = 0
    HELD = 1
    """Somebody needs what is there."""
    CACHED = 2
    """It may be dropped at once; till then it can be used again."""
    MOVING = 3
    """A copy reads or writes it, or the pass in flight may still read it."""
    SHARED = 4
    """Several processes map the page."""
    CLEAN = 8
    """The page has a copy in a lower tier."""
    FOREIGN = 16
    """Another tenant's: nothing else is told of it."""


PLACE_STATES = 3
"""The bits of a `PlaceCode` that are its state."""


class PlaceMap(msgspec.Struct, frozen=True):
    """Places of a tier, in order."""

    tier: str
    total: int
    start: int
    codes: bytes
    """Of the places from `start` on, a `PlaceCode` each."""


class PrefixNode(msgspec.Struct, frozen=True):
    """Pages that follow each other in every prompt that has them, and that the index finds: a node
    of the tree of prefixes."""

    name: str
    """Of its content, short."""
    parent: str
    """The node before it, if that is listed; "" if it is the beginning of prompts, or not."""
    tenant: str
    depth: int
    """Pages before it."""
    pages: int
    hits: int
    """Requests that found all of it."""
    device: int
    """Pages of it that are on the device; of the others ..."""
    host: int
    """... those in the host tier ..."""
    file: int
    """... and those in the swap file. The last may be fewer than are left: no more is counted than
    a call has time for."""
    mapped: int
    """Processes that have it just now."""
    idle_s: float
    """Since it was found last."""


class Queued(msgspec.Struct, frozen=True):
    """A process that waits for its first frames."""

    pid: Pid
    qos: str
    todo_tokens: int
    """To be computed before its first token."""
    waited_s: float
    target_s: float
    """Within which it should have its first token."""


class Due(msgspec.Struct, frozen=True):
    """A paused process."""

    pid: Pid
    lead_s: float | None
    """Until its reader notices; None: nobody reads along."""
    pages: int
    resident_pages: int
    file_pages: int


class PlanReport(msgspec.Struct, frozen=True):
    """What the scheduler is at. Lists are cut at `Params.listed_processes`; a tenant finds only
    its own processes in them."""

    time_s: float
    policy: str
    steps: int
    """Forward passes since boot."""
    started_s: float | None
    """When the pass in flight began; None: there is none."""
    decodes: tuple[Pid, ...]
    """Of that pass: who computes one token."""
    chunks: tuple[tuple[Pid, int], ...]
    """And who computes how many of its prompt."""
    running: int
    """All in that pass, listed or not."""
    waiting: tuple[Queued, ...]
    """In the order in which they are admitted, as things stand."""
    due: tuple[Due, ...]
    """Who is paused, by when it is owed something; who is owed nothing comes last."""
    decisions: tuple[TraceEvent, ...]
    """The latest, oldest first: who was admitted, refused, paused and brought back, and why."""


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
