"""The decision for one step, a frozen value that the kernel carries out in this order."""

import enum
from dataclasses import dataclass

from tokenix.mm.ids import Pid


class PauseMode(enum.Enum):
    SWAP = "swap"
    """Keep the KV: clean pages become reclaimable, dirty ones are copied out first. What the host
    tier has no slot for is dropped, from the tail, and computed again on resume."""
    RECOMPUTE = "recompute"
    """Throw the KV away; it is computed again on resume."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A newcomer that can no longer be served in time (EAGAIN)."""

    pid: Pid
    retry_after_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    pid: Pid
    mode: PauseMode
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """Compute the next `tokens` tokens of `pid` (1 for a decode)."""

    pid: Pid
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    refuse: tuple[Refuse, ...] = ()
    pause: tuple[Pause, ...] = ()
    fetch: tuple[Pid, ...] = ()
    """Bring their pages up from the swap file to the host tier; they are resumed after that."""
    resume: tuple[Pid, ...] = ()
    """Bring every missing page back (or recompute), then make it ready."""
    admit: tuple[Pid, ...] = ()
    """Give frames for the whole prompt and one page of growth."""
    decodes: tuple[Pid, ...] = ()
    """Compute one token each: streams in full swing, most of most steps."""
    chunks: tuple[Run, ...] = ()
    """Prefills, and whoever this very plan made ready."""
    wake_s: float | None = None
    """Plan again no later than this even if nothing happens; None: only events matter."""

    @property
    def run(self) -> tuple[Run, ...]:
        """All that is computed."""
        return tuple(Run(pid, 1) for pid in self.decodes) + self.chunks
