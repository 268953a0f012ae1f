"""The swap file: the tier below the host slots, which comes and goes at run time.

    OFF --swapon--> OPENING --> ON --swapoff--> DRAINING --> CLOSING --> OFF
                        `-> OFF (no room, no such directory ...)

ON: pages sink when host slots run short (`swap/sink.py` says which). DRAINING: nothing sinks any
more, what is only there rises to the host tier; what that has no room for is computed again by
whoever needs it. What the planner asks to rise (`Plan.fetch`) is `Memory.fetch`'s.

A disk may hang for ever. Behind a store that never ends nothing more is stored, behind such a fetch
nothing more is fetched: the pages are computed again. The file cannot be given back before they
end; `swapoff` says so after `Params.lost_copy_s`, and what it has begun goes on without it. So does
`swapon` of a disk that does not answer.
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
from tokenix.swap.tier import PlaceState, Tier
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
        self.blocks: int | None = None
        """Pages that it holds, or will when it is open; None: there is none."""
        self.sunk_pages = 0
        """Stored so far by the daemon."""
        self._memory = memory
        self._params = params
        self._send = send
        self._new_ticket = new_ticket
        self._reply = reply
        self._call_id: int | None = None
        """The swapon or swapoff that waits for an answer."""
        self._asked_s = 0.0
        self._closing_s = 0.0
        self._sinking = False
        self._look_s = math.inf

    # ---- calls ----

    def swapon(self, call_id: int, directory: str, size_bytes: int) -> None:
        """Open a file; answered when it is measured, or with the reason why it cannot be."""
        memory = self._memory
        if not isinstance(directory, str) or not isinstance(size_bytes, int):
            raise error(
                errno.EINVAL,
                f"a swap file needs a directory and a size in bytes, not {directory!r} and "
                f"{size_bytes!r}",
            )
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
        floors = memory.quotas.floors("disk")
        if floors > blocks:
            raise error(
                errno.EINVAL,
                f"a swap file of {size_bytes} bytes holds {blocks} pages, fewer than the {floors} "
                f"of all floors: ask for {floors * memory.info.frame_bytes} bytes, or lower "
                "floors (sysctl quota.<tenant>.disk.floor)",
            )
        self.state, self.directory, self._call_id = FileState.OPENING, directory, call_id
        self.blocks, self._asked_s = blocks, math.inf
        self._send(SwapOn(self._new_ticket(), directory, blocks))

    def swapoff(self, call_id: int, now_s: float) -> None:
        """Empty the file and give it back; answered when that is done, or with EIO if copies or the
        device do not end: then it goes when they do."""
        going = self.state in (FileState.DRAINING, FileState.CLOSING)
        if going and self._call_id is not None:
            raise error(errno.EBUSY, "another swapoff is under way; wait for it")
        if self.state is FileState.ON:
            self.state = FileState.DRAINING
        elif not going:
            raise error(errno.EINVAL, f"no swap file can be taken away: it is {self.state.value}")
        self._call_id, self._asked_s = call_id, now_s

    def changed(self, done: SwapChanged) -> None:
        """The device has opened or closed the file."""
        copies = self._memory.copies
        copies.disk = Tier(done.blocks)
        opened = self.state is FileState.OPENING
        call_id, self._call_id = self._call_id, None
        if done.blocks:
            copies.link.measured(Lane.STORE, done.store_s_per_page)
            copies.link.measured(Lane.FETCH, done.fetch_s_per_page)
            self.state, self._look_s = FileState.ON, 0.0
        else:
            self.state, self.blocks = FileState.OFF, None
        if call_id is None:
            return
        if opened and not done.blocks:
            self._reply(call_id, _refusal(done, self.directory))
        else:
            self._reply(call_id, done.blocks * self._memory.info.frame_bytes)

    # ---- the daemon ----

    @property
    def busy(self) -> bool:
        """Whether there is work for it even if nothing else happens."""
        return self._sinking or self.state is FileState.DRAINING

    @property
    def next_look_s(self) -> float:
        """When there is work even if nothing else happens; inf: never, or when a copy ends."""
        copies = self._memory.copies
        match self.state:
            case FileState.ON:  # somebody will have been held for so long that its pages sink
                return math.inf if copies.transfers.peek_on(Lane.STORE) else self._look_s
            case FileState.DRAINING:
                moving = copies.transfers.peek_on(Lane.STORE, Lane.FETCH)
                if not all(transfer.abandoned for transfer in moving):
                    return math.inf
                emptied = moving and not copies.disk.count(PlaceState.VALID)
                return self._give_up_s() if emptied else 0.0
            case FileState.OPENING | FileState.CLOSING:
                return self._give_up_s()
        return math.inf

    def note_held(self, process: Process) -> None:
        """The process is held from now on, or has come to the host tier while it is."""
        self._look_s = min(self._look_s, process.held_since_s + self._params.sink_held_s)

    def work(self, now_s: float) -> list[MemoryEvent]:
        """A bounded piece of what there is to do. Returns what became of processes."""
        if self.state is FileState.ON:
            self._sink(now_s)
        elif self.state is FileState.DRAINING:
            return self._drain(now_s)
        elif self.state is FileState.OPENING:
            self._asked_s = min(self._asked_s, now_s)
            self._give_up(now_s)
        elif self.state is FileState.CLOSING:
            self._give_up(now_s)
        return []

    def _sink(self, now_s: float) -> None:
        """Store a batch, if host slots are short or somebody has been held for long."""
        memory, copies, params = self._memory, self._memory.copies, self._params
        host = copies.host
        easy = host.free_places + memory.spare.count(Spare.DOUBLE)
        share = params.sink_high_share if self._sinking else params.sink_low_share
        short = easy < max(1.0, share * host.total)
        self._sinking = short
        if not (short or now_s >= self._look_s) or copies.transfers.peek_on(Lane.STORE):
            return
        pages: list[Page] = []
        if not copies.disk.free_places and not len(memory.index.idle_blocks):
            pass  # full
        elif short:
            idle = (known.page for known in memory.index.idle_afloat)
            patient = self._patient(now_s)
            pages = choose_sinking(self._waiting(now_s), idle, patient, BATCH_PAGES)
        else:
            held_s = params.sink_held_s
            pages = choose_sinking(self._waiting(now_s - held_s), (), (), BATCH_PAGES)
        pages = memory.quotas.within(pages, "disk")
        mapped = [page for page in pages if page.mapped]
        self._make_blocks(len(mapped))
        if copies.disk.free_places < len(pages):
            cached = [page for page in pages if not page.mapped]
            pages = [*mapped, *cached][: copies.disk.free_places]
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
            known = memory.index.idle_blocks.peek()
            if known is None:
                return
            page = known.page
            if page.deep:
                memory.forget_idle(page)
            else:
                memory.copies.free_block(page)

    def _drain(self, now_s: float) -> list[MemoryEvent]:
        memory, copies = self._memory, self._memory.copies
        moving = copies.transfers.peek_on(Lane.STORE, Lane.FETCH)
        if not all(transfer.abandoned for transfer in moving):
            return []
        deep: list[Page] = []
        for page in copies.disk.peek_valid():
            if not page.deep:
                copies.free_block(page)
            elif page.mapped == 0:
                memory.forget_idle(page)
            else:
                deep.append(page)
        if deep:
            return self._raise(deep[:BATCH_PAGES], now_s)
        if moving:
            self._give_up(now_s)
            return []
        assert copies.disk.free_places == copies.disk.total, "nobody uses the file any more"
        self.state, self._closing_s = FileState.CLOSING, now_s
        self._send(SwapOff(self._new_ticket()))
        return []

    def _raise(self, pages: list[Page], now_s: float) -> list[MemoryEvent]:
        """To the host tier, those that there is room for; if there is none they are lost."""
        memory, copies = self._memory, self._memory.copies
        if not copies.hangs(Lane.FETCH):
            memory.make_slots(len(pages), no_donors)
            fits = copies.host.free_places
            if fits:
                copies.fetch(pages[:fits], now_s)
                return []
        return [event for page in pages for event in memory.lose(page)]

    def _give_up_s(self) -> float:
        """When the caller is told that the disk does not answer; inf: it was told."""
        if self._call_id is None:
            return math.inf
        moving = self._memory.copies.transfers.peek_on(Lane.STORE, Lane.FETCH)
        late_s = max((transfer.deadline_s for transfer in moving), default=self._closing_s)
        return max(late_s, self._asked_s) + self._params.lost_copy_s

    def _give_up(self, now_s: float) -> None:
        if self._call_id is not None and now_s >= self._give_up_s():
            call_id, self._call_id = self._call_id, None
            self._reply(call_id, _stuck(self.directory, self.state))


def _refusal(done: SwapChanged, directory: str) -> KernelError:
    """What the device says, which mostly names the directory itself."""
    reason = done.reason
    named = reason if directory in reason else f"no swap file in {directory}: {reason}"
    return error(done.error if done.error in errno.errorcode else errno.EIO, named)


def _stuck(directory: str, state: FileState) -> KernelError:
    if state is FileState.OPENING:
        return error(
            errno.EIO,
            f"the disk does not answer: a swap file in {directory} is used when it does; swapoff "
            "it then if it is not wanted any more",
        )
    return error(
        errno.EIO,
        f"the disk does not answer: the swap file in {directory} is not used any more, and is "
        f"given back when the disk does; another swapoff waits for that",
    )
