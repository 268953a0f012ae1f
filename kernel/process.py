"""A process: one generation request. Its fields are grouped by who may write them."""

import errno
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tokenix.drivers.ops import SampleSpec
from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.answers import ExitReason, Output, Rusage, TurnEnd, WaitResult
from tokenix.kernel.calls import Grammar, KernelError, Principal, TextStream, error
from tokenix.kernel.meters import UNLISTED, Series
from tokenix.kernel.state import Hold, State
from tokenix.mm.ids import Pid
from tokenix.mm.page import Page
from tokenix.mm.space import AddressSpace
from tokenix.sched.entity import SchedEntity

STALE: Final = SampleSpec(SamplingParams(), (), 0)


@dataclass(slots=True, eq=False)
class Process:
    # ---- constant after spawn ----
    pid: Pid
    parent: Pid
    tenant: str
    name: str
    sampling: SamplingParams
    min_tokens: int
    stop_tokens: frozenset[int]
    spawned_s: float
    fresh_text: TextStream | None = None
    """What `text` starts from in each turn."""
    grammar: Grammar | None = None
    """Asked for masks by the device, of the output of the present turn."""
    inherited_tokens: int = 0
    """Output tokens that its parent had when it was forked."""
    segment: str | None = None
    """Computes a named segment: no output, its pages are pinned at the end."""

    # ---- sched/ writes inside ----
    entity: SchedEntity = field(kw_only=True)

    # ---- mm/ and kernel/memory.py write inside ----
    space: AddressSpace = field(kw_only=True)

    # ---- kernel/memory.py writes ----
    table_known: int = 0
    """Entries of its block table that the device has and that are still right."""
    table_sent: bool = False
    """Whether the device has ever been told of its block table."""
    way: str = ""
    """How it got its memory last: swap-in, recompute, split (`swap.restore`); covered: by a load
    that it may run beside."""
    furthest: int = 0
    """The most tokens whose KV it had computed when it lost some; below it, computing is computing
    again."""
    known_tokens: int = 0
    """A newcomer: of its prompt, what was on the device or in the host tier when it came. Void from
    when its pages are attached: 0."""
    risen: list[Page] = field(default_factory=list)
    """A newcomer: pages of its prompt that were in the swap file when it came, and rise."""

    # ---- kernel/meters.py writes ----
    series: Series = UNLISTED
    """Where what its caller feels is counted."""
    turn_since_s: float = 0.0
    """Since when its caller waits for the output of this turn."""
    token_s: float | None = None
    """When it had its last token; None: none in this turn. Of a member of the meters' band: when it
    joined."""
    turn_began: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """`usage` as the turn began: prefill_s, decode_s, paused_s."""

    # ---- kernel/core.py and kernel/handlers.py write (through Kernel.move and hold) ----
    state: State = State.NEW
    hold: Hold = Hold.NONE
    held_since_s: float = 0.0
    charged_s: float = 0.0
    """Up to when `usage` has been brought up to date."""
    max_tokens: int = 0
    """Bound of the output of this turn."""
    max_pages: int | None = None
    deadline_s: float | None = None
    stdin_open: bool = False
    stdin: deque[int] = field(default_factory=deque)

    # ---- notes of what was worked out; whoever changes what they depend on voids them ----
    quiet_until: int = 0
    """A decode that leaves fewer computed tokens than this has no consequence but its token, its
    text and what a reader is told: no bound is reached, no stop string is looked for
    (`commit.find_quiet_until`). Void: 0."""
    spec: SampleSpec = STALE
    """How its next tokens are drawn (`sample_spec`). Void: STALE."""

    # ---- kernel/commit.py writes ----
    tokens: list[int] = field(default_factory=list)
    """Prompt and output, append-only."""
    prompt_tokens: int = 0
    """tokens[:prompt_tokens] is the prompt of this turn, with all that came before it."""
    text: TextStream | None = None
    out: deque[Output | TurnEnd] = field(default_factory=deque)
    """The pipe: output that its reader has not taken yet."""
    ends: int = 0
    """Turn ends in the pipe."""
    in_turn: bool = True
    """Output of the present turn is not complete."""
    faults: int = 0
    last_turn: ExitReason | None = None
    exit_reason: ExitReason | None = None
    exit_error: str = ""
    eof_sent: bool = False
    usage: Rusage = field(default_factory=Rusage)

    @property
    def length(self) -> int:
        """Tokens of the whole sequence so far."""
        return len(self.tokens)

    @property
    def todo_tokens(self) -> int:
        """Tokens whose KV is not computed yet: 1 for a decode, more for a prefill."""
        return len(self.tokens) - max(self.known_tokens, self.space.computed + self.space.ahead)

    @property
    def unread(self) -> int:
        """Tokens in the pipe."""
        return len(self.out) - self.ends

    @property
    def output_tokens(self) -> int:
        """Tokens generated in this turn."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def limit_tokens(self) -> int:
        """The longest its sequence may become in this turn."""
        return self.prompt_tokens + self.max_tokens

    def reach(self, max_tokens: int) -> int:
        """The longest its sequence may become with what waits in stdin, at `max_tokens` a turn."""
        now = self.prompt_tokens + max_tokens if self.in_turn else self.length
        return now + len(self.stdin) + max_tokens if self.stdin else now

    @property
    def over_pages(self) -> bool:
        """Whether its next token needs more pages than it may have."""
        return self.max_pages is not None and self.space.pages_for(self.length) > self.max_pages

    def visible_to(self, who: Principal) -> bool:
        """Whether it exists for `who`. What computes a segment exists for nobody."""
        return (who.root or self.tenant == who.tenant) and self.segment is None

    def sample_spec(self) -> SampleSpec:
        """How the token behind the present sequence is drawn."""
        if self.spec is STALE:
            banned: tuple[int, ...] = ()
            if self.output_tokens < self.min_tokens:
                banned = tuple(sorted(self.stop_tokens))
            self.spec = SampleSpec(
                self.sampling, self.tokens, self.prompt_tokens, banned, self.grammar
            )
        return self.spec


def end_of(process: Process) -> WaitResult:
    """How a zombie has ended."""
    assert process.exit_reason is not None
    return WaitResult(process.pid, process.exit_reason, process.exit_error, process.usage)


def end_of_file(process: Process) -> KernelError:
    """For reads after the one that was told the end."""
    return error(errno.EPIPE, f"the output of process {process.pid} was read to its end")
