"""The frames of one plan: what it may still promise, so that its decisions agree."""

from dataclasses import dataclass

from tokenix.sched.entity import Task
from tokenix.sched.plan import PauseMode
from tokenix.sched.view import MemoryView


@dataclass(slots=True)
class Ledger:
    available: int
    """Frames that can be taken at once: free, cached, and what this plan's pauses set free."""
    outgoing: int
    """Frames whose copy to the host is under way or queued by this plan."""
    idle: int
    """Of `available`: pages of paused processes, which would have to be loaded again."""
    host_free: int
    """Host slots that pauses may still use."""
    untouched: int
    """Frames that can be taken before any page of a paused process must go."""

    @classmethod
    def open(cls, memory: MemoryView, idle: int) -> "Ledger":
        """The ledger at the start of a plan; `idle`: resident pages of the paused processes."""
        idle = min(idle, memory.cached_frames)
        available = memory.free_frames + memory.cached_frames
        return cls(
            available=available,
            outgoing=memory.outgoing_frames,
            idle=idle,
            host_free=memory.host_free_slots if memory.swap else 0,
            untouched=memory.free_frames,
        )

    @property
    def spare(self) -> int:
        """Frames that can be taken without losing a page of a paused process."""
        return self.available - self.idle

    def take(self, frames: int, mine: int = 0) -> None:
        """Promise `frames`, and keep `mine` (idle pages of the taker) where they are."""
        assert 0 <= frames and frames + mine <= self.available
        self.available -= frames + mine
        self.idle = max(0, min(self.idle - mine, self.available))
        self.untouched -= frames

    def give_back(self, frames: int) -> None:
        """A promise of this plan is withdrawn."""
        self.available += frames
        self.untouched += frames

    def pause(self, task: Task, mode: PauseMode) -> None:
        """Book what pausing `task` frees: clean pages now, dirty ones after their copy-out, and
        what the host tier has no slot for at once. Clean pages keep the slots they have, which
        counted as usable while the process ran."""
        space = task.space
        if mode is PauseMode.RECOMPUTE:
            self.available += space.exclusive
            return
        clean = space.exclusive - space.exclusive_dirty
        copied = min(space.exclusive_dirty, max(0, self.host_free - clean))
        self.available += space.exclusive - copied
        self.idle += clean
        self.outgoing += copied
        self.host_free = max(0, self.host_free - clean - copied)
