"""The swap file: the tier below the host slots, which comes and goes at run time.

    OFF --swapon--> OPENING --> ON --swapoff--> DRAINING --> CLOSING --> OFF
                        `-> OFF (no room, no such directory ...)

ON: pages sink when host slots run short (`swap/sink.py` says which). DRAINING: nothing sinks any
more, what is only there rises to the host tier; what that has no room for is computed again by
whoever needs it. What the planner asks to rise (`Plan.fetch`) is `Memory.fetch`'s.
"""

import enum
import errno
import math
from collections.abc import Callable, Iterator

from tokenix.drivers.ops import Command, SwapChanged, SwapOff, SwapOn
from tokenix.kernel.calls import KernelError, error
from tokenix.kernel.landing import MemoryEvent
from tokenix.kernel.memory import Memory
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.tiers import no_donors
from tokenix.mm.ids import Ticket
from tokenix.mm.page import Page
from tokenix.swap.sink import BATCH_PAGES, choose_sinking
from tokenix.swap.spare import Spare
from tokenix.swap.tier import Tier
from tokenix.swap.transfers import Lane


class FileState(enum.Enum):
    OFF = "off"
    OPENING = "opening"
    ON = "on"
    DRAINING = "draining"
    CLOSING = "closing"


class SwapFile:
    """Whether there is a file, and the daemon that fills and empties it. `send` takes device
    commands, `reply` the answers to `swapon` and `swapoff`."""

    def __init__(
        self,
        memory: Memory,
        params: Params,
        send: Callable[[Command], None],
        new_ticket: Callable[[], Ticket],
        reply: Callable[[int, object], None],
    ) -> None:
        self.state = FileState.OFF
        self.directory = ""
        self.sunk_pages = 0
        """Stored so far by the daemon."""
        self._memory = memory
        self._params = params
        self._send = send
        self._new_ticket = new_ticket
        self._reply = reply
        self._call_id = 0
        self._sinking = False
        self._look_s = math.inf

    # ---- calls ----

    def swapon(self, call_id: int, directory: str, size_bytes: int) -> None:
        """Open a file; answered when it is measured, or with the reason why it cannot be."""
        memory = self._memory
        if self.state is not FileState.OFF:
            raise error(
                errno.EBUSY, f"the swap file in {self.directory} is {self.state.value}; swapoff it"
            )
        if not memory.copies.host.total:
            raise error(
                errno.EINVAL,
                "a swap file needs host slots, through which its pages pass: boot with host_pages",
            )
        blocks = size_bytes // memory.info.frame_bytes
        if blocks < 1:
            raise error(
                errno.EINVAL,
                f"a swap file of {size_bytes} bytes holds no page ({memory.info.frame_bytes} each)",
            )
        self.state, self.directory, self._call_id = FileState.OPENING, directory, call_id
        self._send(SwapOn(self._new_ticket(), directory, blocks))

    def swapoff(self, call_id: int) -> None:
        """Empty the file and give it back; answered when that is done."""
        if self.state is not FileState.ON:
            raise error(errno.EINVAL, f"no swap file can be taken away: it is {self.state.value}")
        self.state, self._call_id = FileState.DRAINING, call_id

    def changed(self, done: SwapChanged) -> None:
        """The device has opened or closed the file."""
        copies = self._memory.copies
        copies.disk = Tier(done.blocks)
        opened = self.state is FileState.OPENING
        if done.blocks:
            copies.link.measured(Lane.STORE, done.store_s_per_page)
            copies.link.measured(Lane.FETCH, done.fetch_s_per_page)
            self.state, self._look_s = FileState.ON, 0.0
        else:
            self.state = FileState.OFF
        if opened and not done.blocks:
            self._reply(self._call_id, _refusal(done.reason, self.directory))
        else:
            self._reply(self._call_id, done.blocks * self._memory.info.frame_bytes)

    # ---- the daemon ----

    @property
    def busy(self) -> bool:
        """Whether there is work for it even if nothing else happens."""
        return self._sinking or self.state is FileState.DRAINING

    @property
    def next_look_s(self) -> float:
        """When somebody will have been held for so long that its pages sink; inf: nobody, or a
        store is under way, whose end brings the next step."""
        storing = self._memory.copies.transfers.count_pages(Lane.STORE)
        return math.inf if storing or self.state is not FileState.ON else self._look_s

    def note_held(self, process: Process) -> None:
        """The process is held from now on, or has come to the host tier while it is."""
        self._look_s = min(self._look_s, process.held_since_s + self._params.sink_held_s)

    def work(self, now_s: float) -> list[MemoryEvent]:
        """A bounded piece of what there is to do. Returns what became of processes."""
        if self.state is FileState.ON:
            self._sink(now_s)
        elif self.state is FileState.DRAINING:
            return self._drain(now_s)
        return []

    def _sink(self, now_s: float) -> None:
        """Store a batch, if host slots are short or somebody has been held for long."""
        memory, copies, params = self._memory, self._memory.copies, self._params
        host = copies.host
        easy = host.free_places + memory.spare.count(Spare.DOUBLE)
        share = params.sink_high_share if self._sinking else params.sink_low_share
        short = easy < max(1.0, share * host.total)
        self._sinking = short
        if not (short or now_s >= self._look_s) or copies.transfers.count_pages(Lane.STORE):
            return
        if short:
            idle, patient = memory.index.idle_slots, self._patient(now_s)
            pages = choose_sinking(self._waiting(now_s), idle, patient, BATCH_PAGES)
        else:
            held_s = params.sink_held_s
            pages = choose_sinking(self._waiting(now_s - held_s), (), (), BATCH_PAGES)
        self._make_blocks(sum(page.mapped > 0 for page in pages))
        del pages[copies.disk.free_places :]
        if pages:
            copies.store(pages, now_s)
            self.sunk_pages += len(pages)
            return
        self._sinking = False  # until something changes
        held = (p.held_since_s + params.sink_held_s for p in memory.paused() if p.hold)
        self._look_s = min((look_s for look_s in held if look_s > now_s), default=math.inf)

    def _waiting(self, since_s: float) -> Iterator[Page]:
        """Of processes that have been held since then, the pages, from the tail."""
        for process in self._memory.paused():
            if not process.hold:
                return
            if process.held_since_s <= since_s:
                yield from reversed(process.space.pages)

    def _patient(self, now_s: float) -> Iterator[Page]:
        """Of paused processes to which nothing is owed for long."""
        for process in self._memory.paused():
            if process.hold:
                continue
            if process.entity.due_s - now_s < self._params.sink_lead_s + self._way_s(process):
                return  # nor to those behind
            yield from reversed(process.space.pages)

    def _way_s(self, process: Process) -> float:
        """Seconds for all its pages down and up again."""
        link = self._memory.copies.link
        return process.space.mapped * (link.s_per_page(Lane.STORE) + link.s_per_page(Lane.FETCH))

    def _make_blocks(self, want: int) -> None:
        """Blocks of pages that nobody maps, for pages that somebody does."""
        memory, disk = self._memory, self._memory.copies.disk
        while disk.free_places < want:
            page = memory.index.idle_blocks.peek()
            if page is None:
                return
            if page.deep:
                memory.forget_idle(page)
            else:
                memory.copies.free_block(page)

    def _drain(self, now_s: float) -> list[MemoryEvent]:
        memory, copies = self._memory, self._memory.copies
        if copies.transfers.peek_on(Lane.STORE, Lane.FETCH):
            return []
        deep: list[Page] = []
        for page in copies.disk.peek_valid():
            if not page.deep:
                copies.free_block(page)
            elif page.mapped == 0:
                memory.forget_idle(page)
            else:
                deep.append(page)
        if not deep:
            self.state = FileState.CLOSING
            self._send(SwapOff(self._new_ticket()))
            return []
        batch = deep[:BATCH_PAGES]
        memory.make_slots(len(batch), no_donors)
        fits = copies.host.free_places
        if fits:
            copies.fetch(batch[:fits], now_s)
            return []
        return [event for page in batch for event in memory.lose(page)]


def _refusal(reason: str, directory: str) -> KernelError:
    return error(errno.EIO, f"no swap file in {directory}: {reason}")
