"""The simulated device: six serial queues in virtual time over a memory of integers.

    submit --> compute  [Forward][CopyFrame][Poison]...    effect at the end of each command
           --> swap-out [CopyOut     ][CopyOut]...         each page is read at a moment within,
           |                                               published at the end
           --> swap-in  [CopyIn  ]...                      frames are junk within, filled at the end
           |                                               (a forward beside it ends later)
           --> store    [Store     ][SwapOn]...            likewise, between host slots and the
           --> fetch    [Fetch  ]...                       blocks of the swap file
           --> image    [SaveImage ][ReadImage]...         a file appears at the end (images.py)

Effects happen as late (or as scattered) as on hardware, so that a kernel which reuses a frame or
slot before its fence has passed gets wrong tokens, besides the lines in `violations`.
"""

import errno
import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyFrame,
    CopyIn,
    CopyOut,
    Fetch,
    Forward,
    ImageCommand,
    LoadImage,
    OpenImages,
    Poison,
    ReadImage,
    SaveImage,
    Store,
    SwapChanged,
    SwapOff,
    SwapOn,
    UnlinkImage,
)
from tokenix.drivers.sim.costs import CostModel, Costs, beside_s
from tokenix.drivers.sim.faults import Fault, FaultPlan
from tokenix.drivers.sim.fences import Fences, Flight, Queue
from tokenix.drivers.sim.forward import Results, run_forward
from tokenix.drivers.sim.images import ImageFiles, ImageWork
from tokenix.drivers.sim.model import SimModel
from tokenix.drivers.sim.store import Memory
from tokenix.drivers.sim.swap import (
    Copy,
    CopyUnderWay,
    LayerLoad,
    Memories,
    Tier,
    copy_frame,
)
from tokenix.drivers.sim.tables import Tables

Effect = Callable[[], Completion | None]
DEFAULT_COSTS = CostModel()


class SimDevice:
    """Keeps `drivers.device.Device`. Times are virtual seconds, whatever the caller's clock says.

    `seed` chooses the moments at which swap-out reads pages; tokens do not depend on it.
    `strict_poison`: a Poison counts as unfinished until the kernel is told of the completion of a
    later command on the compute queue, which is all that a kernel can know of a real device. If
    not, a poison of frames that nothing touches is done at once. `disk_blocks`: the largest swap
    file that there is room for. `images`: what a device before this one has left on the disk.
    `depth`, `covers_loads`: what `DeviceInfo` says.
    """

    def __init__(
        self,
        frames: int,
        host_slots: int,
        page_tokens: int = 4,
        vocab: int = 256,
        eos_token: int | None = None,
        cost: Costs = DEFAULT_COSTS,
        faults: FaultPlan | None = None,
        max_context_tokens: int = 1 << 20,
        seed: int = 0,
        strict_poison: bool = False,
        disk_blocks: int = 1 << 20,
        images: ImageFiles | None = None,
        depth: int = 1,
        covers_loads: bool = False,
    ) -> None:
        assert frames > 0 and host_slots >= 0 and page_tokens > 0 and vocab > 1
        self.model = SimModel(vocab, eos_token)
        self.memory = Memory(frames, page_tokens)
        self.host = Tier("slot")
        self.disk = Tier("block")
        self._memories = Memories(self.memory, self.host, self.disk)
        self.images = images if images is not None else ImageFiles()
        self._host_slots = host_slots
        self._disk_blocks = disk_blocks
        self.tables = Tables(page_tokens, vocab, max_context_tokens)
        self.fences = Fences(frames, host_slots)
        self._cost = cost
        self._faults = faults if faults is not None else FaultPlan()
        self._max_context_tokens = max_context_tokens
        self._depth = depth
        self._covers_loads = covers_loads
        self._load: LayerLoad | None = None
        """The last load by layers."""
        self._results: Results = {}
        """Of the forward that has run last."""
        self._random = random.Random(seed)
        self._now_s = 0.0
        self._free_s = dict.fromkeys(Queue, 0.0)
        self._events: list[tuple[float, int, Effect]] = []
        self._ready: list[tuple[float, int, int, Completion]] = []
        self._ends: list[tuple[float, int]] = []
        """(end, ticket) of commands whose completion was not polled yet, a heap."""
        self._strict_poison = strict_poison
        self._poisons: list[int] = []
        """Keys of strict poisons behind which nothing was submitted yet."""
        self._poisons_before: dict[int, list[int]] = {}
        """Ticket on the compute queue -> the strict poisons that are done when it is."""
        self._serial = 0
        self._closed = False

    @property
    def violations(self) -> list[str]:
        """Every breach of the contract so far, in order. Empty for a correct kernel."""
        return self.fences.violations

    # ---- the Device protocol ----

    def info(self) -> DeviceInfo:
        cost = self._cost
        step_s = cost.forward_s(0, 1, 0, 0)
        chunk = 256
        return DeviceInfo(
            name="sim",
            frames=len(self.memory.frames),
            page_tokens=self.memory.page_tokens,
            frame_bytes=self.memory.page_tokens * 8,
            host_slots=self._host_slots,
            vocab_tokens=self.model.vocab,
            max_context_tokens=self._max_context_tokens,
            step_s=step_s,
            prefill_tokens_per_s=chunk / cost.forward_s(chunk, 0, 0, 0),
            copy_in_s_per_page=cost.copy_in_s(16) / 16,
            copy_out_s_per_page=cost.copy_out_s(16) / 16,
            depth=self._depth,
            covers_loads=self._covers_loads,
        )

    def submit(self, command: Command, now_s: float) -> None:
        assert not self._closed, "a closed device takes no commands"
        self._advance(now_s)
        match command:
            case Forward():
                self._submit_forward(command)
            case CopyOut() | CopyIn() | Store() | Fetch():
                self._submit_copy(command)
            case SwapOn() | SwapOff():
                self._submit_swap(command)
            case OpenImages() | SaveImage() | ReadImage() | LoadImage() | UnlinkImage():
                self._submit_image(command)
            case CopyFrame():
                self._submit_frame(command)
            case Poison():
                self._submit_poison(command)

    def poll(self, now_s: float) -> list[Completion]:
        self._advance(now_s)
        ready, self._ready = self._ready, []
        ready.sort(key=lambda entry: entry[:3])
        for _, ticket, _, _ in ready:
            self.fences.retire(ticket)
            for key in self._poisons_before.pop(ticket, ()):
                self.fences.retire(key)
        while self._ends and self._ends[0][0] <= now_s:
            heappop(self._ends)
        return [completion for _, _, _, completion in ready]

    def next_completion_s(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Never called: virtual time moves when `poll` or `submit` says so."""

    def close(self) -> None:
        self._closed = True
        self._events.clear()
        self._ready.clear()
        self._ends.clear()

    # ---- queues ----

    def _advance(self, now_s: float) -> None:
        """Let everything that is due by `now_s` happen."""
        assert now_s >= self._now_s, f"time went back from {self._now_s} to {now_s}"
        self._now_s = now_s
        events = self._events
        while events and events[0][0] <= now_s:
            at_s, serial, effect = heappop(events)
            completion = effect()
            if completion is not None:
                self._ready.append((at_s, completion.ticket, serial, completion))

    def _at(self, at_s: float, effect: Effect) -> None:
        self._serial += 1
        heappush(self._events, (at_s, self._serial, effect))

    def _enqueue(self, key: int, flight: Flight, seconds: float) -> tuple[float, float]:
        """Book a command behind its queue. Returns its start and end."""
        self.fences.admit(key, flight)
        if flight.queue is Queue.COMPUTE and key >= 0 and self._poisons:
            self._poisons_before[key], self._poisons = self._poisons, []
        start_s = max(self._now_s, self._free_s[flight.queue])
        self._free_s[flight.queue] = start_s + seconds
        return start_s, start_s + seconds

    def _finish(self, ticket: int, end_s: float, effect: Effect) -> None:
        """`effect` happens at `end_s` and gives the completion."""
        self._at(end_s, effect)
        heappush(self._ends, (end_s, ticket))

    # ---- compute ----

    def _submit_forward(self, command: Forward) -> None:
        rows, flight = self.tables.bind(command, self.fences)
        prefill = decodes = kv = pairs = 0
        for bound in rows:
            row = bound.row
            count = len(row.tokens)
            if count == 1:
                decodes += 1
            else:
                prefill += count
            kv += row.start + count
            pairs += count * row.start + count * (count + 1) // 2
        faults = self._faults.take_forward_faults([bound.row.pid for bound in rows])
        seconds = self._cost.forward_s(prefill, decodes, kv, pairs)
        load = self._load if command.beside is not None else None
        if load is not None:
            begin_s = max(self._now_s, self._free_s[Queue.COMPUTE])
            seconds = beside_s(begin_s, seconds, load.begin_s, load.end_s) - begin_s
        _, end_s = self._enqueue(command.ticket, flight, seconds)
        self._finish(
            command.ticket,
            end_s,
            lambda: run_forward(
                command.ticket,
                rows,
                self._results,
                self.model,
                self.memory,
                self.fences,
                command.weigh,
                load,
                *faults,
            ),
        )

    def _submit_frame(self, command: CopyFrame) -> None:
        name = f"CopyFrame {command.ticket}"
        sound = self.fences.frames_in_range(name, (command.src, command.dst))
        flight = Flight(name, Queue.COMPUTE, reads={command.src}, writes={command.dst})
        _, end_s = self._enqueue(command.ticket, flight, self._cost.copy_frame_s())
        self._finish(
            command.ticket,
            end_s,
            lambda: copy_frame(command, self.memory, self.fences, sound),
        )

    def _submit_poison(self, command: Poison) -> None:
        """Takes no time."""
        if not self.fences.frames_in_range("Poison", command.frames):
            return
        frames = set(command.frames)

        def spoil() -> None:
            for pfn in command.frames:
                self.memory.frames[pfn].spoil("poisoned")

        if not self._strict_poison and not self.fences.peek_touched(frames):
            spoil()
            return
        self._serial += 1
        key = -1 - self._serial
        _, end_s = self._enqueue(key, Flight("Poison", Queue.COMPUTE, writes=frames), 0.0)

        def spoil_and_retire() -> None:
            spoil()
            self.fences.retire(key)

        if self._strict_poison:
            self._poisons.append(key)
            self._at(end_s, spoil)
        else:
            self._at(end_s, spoil_and_retire)

    # ---- swap ----

    def _submit_copy(self, command: Copy) -> None:
        fences, cost, pages = self.fences, self._cost, len(command.pages)
        flight = fences.copy_flight(command)
        sound = fences.frames_in_range(flight.name, flight.reads | flight.writes)
        sound &= fences.slots_in_range(flight.name, flight.slot_reads | flight.slot_writes)
        sound &= fences.blocks_in_range(flight.name, flight.block_reads | flight.block_writes)
        match command:
            case CopyOut():
                faults, seconds = (
                    self._faults.take_copy_faults("out", pages),
                    cost.copy_out_s(pages),
                )
            case CopyIn():
                faults, seconds = self._faults.take_copy_faults("in", pages), cost.copy_in_s(pages)
            case Store():
                faults, seconds = self._faults.take_copy_faults("store", pages), cost.store_s(pages)
            case Fetch():
                faults, seconds = self._faults.take_copy_faults("fetch", pages), cost.fetch_s(pages)
        start_s, end_s = self._enqueue(command.ticket, flight, seconds + _delay_s(faults))
        copy = CopyUnderWay(command, self._memories, fences, faults, sound)
        self._at(start_s, copy.start)
        finish: Callable[[], Completion] = copy.finish
        if isinstance(command, CopyIn) and command.by_layers:
            self._load = LayerLoad(copy, start_s, end_s)
            finish = self._load.finish
        if isinstance(command, CopyOut):
            step_s = (end_s - start_s) / max(1, pages)
            for i in range(pages):
                read_s = start_s + (i + self._random.random()) * step_s
                self._at(min(read_s, end_s), partial(copy.read, i))
        self._end_copy(command.ticket, end_s, finish, faults)

    def _submit_swap(self, command: SwapOn | SwapOff) -> None:
        """The swap file comes or goes; its blocks hold nothing then."""
        wanted = command.blocks if isinstance(command, SwapOn) else 0
        fits = wanted <= self._disk_blocks
        self.fences.blocks = wanted if fits else 0
        flight = Flight(f"{type(command).__name__} {command.ticket}", Queue.STORE)
        _, end_s = self._enqueue(command.ticket, flight, self._cost.store_s(0))
        changed = SwapChanged(
            command.ticket,
            self.fences.blocks,
            self._cost.store_s(16) / 16,
            self._cost.fetch_s(16) / 16,
            "" if fits else f"no room for {wanted} blocks",
            0 if fits else errno.ENOSPC,
        )

        def change() -> SwapChanged:
            self.disk.clear()
            return changed

        self._finish(command.ticket, end_s, change)

    def _submit_image(self, command: ImageCommand) -> None:
        fences, cost = self.fences, self._cost
        flight, faults = fences.image_flight(command), list[Fault]()
        fences.slots_in_range(flight.name, flight.slot_reads | flight.slot_writes)
        seconds = cost.store_s(0)
        if isinstance(command, SaveImage):
            seconds = cost.store_s(len(command.pages))
            faults = self._faults.take_copy_faults("save", len(command.pages))
        elif isinstance(command, LoadImage | ReadImage):
            pages = len(command.pages) if isinstance(command, LoadImage) else 0
            seconds = cost.fetch_s(pages)
            faults = self._faults.take_copy_faults("load", pages)
        start_s, end_s = self._enqueue(command.ticket, flight, seconds + _delay_s(faults))
        work = ImageWork(command, self.images, self.host, self.memory.page_tokens, faults)
        self._at(start_s, work.start)
        self._end_copy(command.ticket, end_s, work.finish, faults)

    def _end_copy(
        self, ticket: int, end_s: float, finish: Callable[[], Completion], faults: list[Fault]
    ) -> None:
        if not any(fault.kind.startswith("hang") for fault in faults):
            self._finish(ticket, end_s, finish)
            return

        def finish_unheard() -> None:
            finish()

        self._at(end_s, finish_unheard)


def _delay_s(faults: list[Fault]) -> float:
    return sum(f.delay_s for f in faults if f.kind.startswith("delay"))
