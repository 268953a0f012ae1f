"""The scheduler's part of a process: who it is for, how far its reader is, where it stands.

Constant after spawn: pid, qos, nice, tenant, arrival_s, prompt_tokens, max_tokens, reader,
deadline_s (nice and max_tokens may be changed by their syscalls). Everything below the line is
written by sched/ only.
"""

import enum
import math
from dataclasses import dataclass
from typing import Protocol

from tokenix.mm.ids import Pid


class Qos(enum.IntEnum):
    """Service class; lower is more urgent."""

    INTERACTIVE = 0
    """First token first."""
    STREAM = 1
    """A steady stream at the reader's pace."""
    BATCH = 2
    """Only completion matters."""
    IDLE = 3
    """Only what nobody else wants."""


class ReaderKind(enum.Enum):
    PACED = "paced"
    """Reads `tokens_per_s` from the first token on."""
    MEASURED = "measured"
    """What the client has taken (its read credits) is what was read; rate is an EWMA of that."""
    BATCH = "batch"
    """Nobody reads before the end."""
    HIDDEN = "hidden"
    """Nobody sees these tokens yet (reasoning); counts as before the first token."""


@dataclass(frozen=True, slots=True)
class Reader:
    kind: ReaderKind = ReaderKind.PACED
    tokens_per_s: float = 10.0


@dataclass(slots=True)
class SchedEntity:
    pid: Pid
    qos: Qos
    nice: int
    """-20 (favoured) .. 19."""
    tenant: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    """Bound of the output of this turn."""
    reader: Reader = Reader()
    deadline_s: float = math.inf
    """Absolute time by which it must have finished; it is killed then."""

    # ---- written by sched/ only ----
    due_s: float = math.inf
    """Deadline of the next token; inf before the first token (see `first_token_s`)."""
    first_token_s: float | None = None
    period_s: float = 0.0
    """Paced readers: seconds that a token in time moves `due_s` on; 0: nothing is so simple now."""
    delivered_tokens: int = 0
    read_tokens: int = 0
    read_rate: float = 0.0
    """EWMA of tokens that its client takes per second, 0 until known."""
    last_read_s: float = 0.0
    stalls: int = 0
    """Tokens that came later than their deadline by more than the stall tolerance."""
    pauses_without_progress: int = 0
    leader: bool = False
    """Paused twice without progress: never a victim again until it has made some."""
    waiting_since_s: float = 0.0
    """Since when it waits for the first token of this turn; 0 until it is queued or restarted."""
    seat: int = 0
    """Place in the order of admission and resume; larger is later."""
    resident_since_s: float = 0.0
    """When it was admitted or resumed last."""
    paused_since_s: float = math.inf
    """Since when it is paused; inf while it is not."""
    charged_tokens: int = 0
    """Of `delivered_tokens`, those that its class and tenant were charged for."""
    lag: int = 0
    """Newcomers: quanta of service that its tenant is ahead of the least served one."""
    behind: bool = False
    """Newcomers: its class has not had its guaranteed share."""
    boost_tokens: int = -1
    """`mlfq`: computed tokens when it was promoted last; -1: never."""


class Space(Protocol):
    """What the planner reads of an address space (mm.space.AddressSpace is one)."""

    @property
    def computed(self) -> int:
        """Tokens whose KV exists."""
        ...

    @property
    def active(self) -> bool:
        """Whether its pages must be resident (not paused)."""
        ...

    @property
    def mapped(self) -> int:
        """Pages in the table."""
        ...

    @property
    def deep(self) -> int:
        """Mapped pages that are in the swap file only."""
        ...

    @property
    def missing(self) -> int:
        """Mapped pages that are not resident."""
        ...

    @property
    def exclusive(self) -> int:
        """Frames gained when it is paused: resident pages that only this space keeps there."""
        ...

    @property
    def exclusive_dirty(self) -> int:
        """Of `exclusive`, pages without a host copy: their frames come back after a copy-out."""
        ...

    @property
    def idle_resident(self) -> int:
        """Paused: resident pages nobody runs with; re-used at its own resume."""
        ...


class Task(Protocol):
    """What the planner sees of a process (kernel.process.Process is one)."""

    @property
    def entity(self) -> SchedEntity: ...

    @property
    def space(self) -> Space: ...

    @property
    def length(self) -> int:
        """Tokens of the whole sequence so far (prompt and output)."""
        ...

    @property
    def limit_tokens(self) -> int:
        """The longest its sequence may become in this turn."""
        ...

    @property
    def todo_tokens(self) -> int:
        """Tokens whose KV is not computed yet: 1 for a decode, more for a prefill."""
        ...
