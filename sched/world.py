"""Everything a decision may depend on, frozen for the length of one plan, and its arithmetic."""

import msgspec

from tokenix.mm.ids import Pid
from tokenix.sched import reader
from tokenix.sched.entity import Task
from tokenix.sched.queues import Queues
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables
from tokenix.sched.view import MemoryView


def count_pages(tokens: int, page_tokens: int) -> int:
    """Pages that hold `tokens`."""
    return -(-tokens // page_tokens)


def find_trickle(queues: Queues, now_s: float, tunables: Tunables) -> Pid | None:
    """The batch or idle newcomer that has waited too long while none of them is alive: one of
    them at a time gets through whatever the load is (B12)."""
    ages = queues.waitlist.ages
    if not ages or queues.tally.unread:
        return None
    since_s, pid = ages[0]
    limit_s = tunables.max_wait_targets * tunables.target_s(queues.waiting[pid].entity.qos)
    return pid if now_s - since_s > limit_s else None


class World(msgspec.Struct, frozen=True, gc=False):
    queues: Queues
    memory: MemoryView
    now_s: float
    tunables: Tunables
    rates: Rates
    eta: float
    """Working-set bound as a share of the pool, by its controller."""
    new_token_ratio: float
    """`retract`: share of the remaining outputs that admission reserves, by its controller."""
    trickle: Pid | None = None
    """The batch newcomer that is treated like an interactive one (see find_trickle)."""
    aside: dict[Pid, Task] = msgspec.field(default_factory=dict)
    """Streams that make room for the others (see giants.py)."""

    def lead_s(self, task: Task) -> float:
        return reader.lead_s(task.entity, self.now_s, self.tunables, self.rates)

    def owed_s(self, task: Task) -> float:
        return reader.owed_s(task.entity, self.now_s, self.tunables, self.rates)

    def waited_s(self, task: Task) -> float:
        return self.now_s - task.entity.waiting_since_s

    def prefill_s(self, tokens: float) -> float:
        return tokens / self.rates.prefill_tokens_per_s

    def patience_s(self, task: Task) -> float:
        alone_s = self.prefill_s(task.todo_tokens) + self.rates.step_s
        return reader.patience_s(task.entity, alone_s, self.tunables)

    def footprint(self, task: Task) -> int:
        """Pages of the whole sequence, resident or not."""
        return max(task.space.mapped, count_pages(task.length, self.memory.page_tokens))

    def most_pages(self, task: Task) -> int:
        """Pages of the sequence at the longest it may become in this turn."""
        longest = max(task.length, task.limit_tokens)
        return max(task.space.mapped, count_pages(longest, self.memory.page_tokens))

    def need(self, task: Task) -> int:
        """Frames to make a newcomer or a paused process ready: everything and one page more."""
        whole = count_pages(task.length, self.memory.page_tokens) + 1
        return max(whole, task.space.mapped) - (task.space.mapped - task.space.missing)

    def growth(self, task: Task, tokens: int = 1) -> int:
        """Frames a ready process lacks for its next `tokens` tokens."""
        after = count_pages(task.space.computed + tokens, self.memory.page_tokens)
        return max(0, after - task.space.mapped)

    def lacks_frames(self, task: Task) -> bool:
        """Whether a ready process needs more pages than it has to compute all it knows."""
        return count_pages(task.length, self.memory.page_tokens) > task.space.mapped

    def restore_s(self, task: Task) -> float:
        """Seconds of copies and prefill until a paused process decodes again, once it is its turn.
        The pages that are in the swap file go up to the host tier first, without any frame."""
        copies_s = task.space.missing * self.memory.in_s_per_page
        if self.memory.file_blocks and task.space.deep:
            copies_s += self.memory.fetch_queue_s + task.space.deep * self.memory.fetch_s_per_page
        return copies_s + self.prefill_s(max(0, task.todo_tokens - 1))

    def longest_copies_s(self, mapped: int) -> float:
        """At most so long are `mapped` pages on their way, wherever they are."""
        memory = self.memory
        longest_s = mapped * memory.in_s_per_page
        if memory.file_blocks:
            longest_s += memory.fetch_queue_s + mapped * memory.fetch_s_per_page
        return longest_s

    def stream_residency(self, task: Task) -> float:
        """Share of the time it must be resident once it streams; 0 for batch, which needs none."""
        return self.pace_residency(reader.pace_of(reader.rate_of(task.entity)))

    def pace_residency(self, pace: float) -> float:
        """The same for a reader of `pace` tokens per second: reader / device."""
        share = self.tunables.working_set_safety * pace
        return min(self.tunables.residency_cap, share / self.rates.steps_per_s)
