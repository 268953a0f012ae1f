"""A device that copies pages when it is told to: contents of all tiers as plain values."""

from collections import Counter
from dataclasses import dataclass, field

from tokenix.drivers.ops import (
    Command,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    Fetch,
    PageFetch,
    PageIn,
    PageOut,
    PageStore,
    Store,
    SwapOff,
    SwapOn,
)
from tokenix.mm.ids import Block, Pfn, Slot

Copy = CopyOut | CopyIn | Store | Fetch | CopyFrame

Cells = dict[int, object]
"""What a page holds, by place."""


@dataclass
class Tier:
    frames: dict[Pfn, Cells] = field(default_factory=dict)
    slots: dict[Slot, tuple[int, Cells]] = field(default_factory=dict)
    """(generation, content)."""
    blocks: dict[Block, tuple[int, Cells]] = field(default_factory=dict)
    spoiled: set[tuple[str, int]] = field(default_factory=set)
    """("slot" or "block", number) of what does not verify."""
    pending: dict[int, Copy] = field(default_factory=dict)
    """By ticket."""
    swaps: list[SwapOn | SwapOff] = field(default_factory=list)
    """Commands for the swap file that are to be answered."""
    hung: list[int] = field(default_factory=list)

    def submit(self, command: Command) -> None:
        """Nothing that is under way may be disturbed."""
        if isinstance(command, SwapOn | SwapOff):
            assert not any(isinstance(c, Store | Fetch) for c in self.pending.values())
            self.swaps.append(command)
            return
        assert isinstance(command, CopyOut | CopyIn | Store | Fetch | CopyFrame)
        reads, writes = touched(command)
        for other in self.pending.values():
            other_reads, other_writes = touched(other)
            both_on_compute = isinstance(command, CopyFrame) and isinstance(other, CopyFrame)
            assert not writes & (other_reads | other_writes), "written under a copy"
            assert both_on_compute or not reads & other_writes, "read while it is filled"
        self.pending[command.ticket] = command
        if isinstance(command, CopyFrame):  # before whatever is computed from now on
            self.frames[command.dst] = dict(self.frames[command.src])

    def write(self, pfn: Pfn, at: int, cell: object) -> None:
        """The model computes."""
        for command in self.pending.values():
            reads, writes = touched(command)
            ordered = isinstance(command, CopyFrame)
            me = ("frame", pfn)
            assert me not in writes and (ordered or me not in reads), "it writes under a copy"
        self.frames.setdefault(pfn, {})[at] = cell

    def end(self, ticket: int, bad: frozenset[int]) -> CopyDone | CopyFailed:
        """A copy ends; `bad`: indices of pages that fail."""
        command = self.pending.pop(ticket)
        failed = []
        if isinstance(command, CopyFrame):
            return CopyDone(command.ticket)
        for number, page in enumerate(command.pages):
            good = self._copy(page, number not in bad)
            if not good:
                failed.append(number)
        return CopyFailed(command.ticket, tuple(failed), "") if failed else CopyDone(ticket)

    def _copy(self, page: PageOut | PageIn | PageStore | PageFetch, good: bool) -> bool:
        """One page; whether it arrived."""
        match page:
            case PageOut():
                self.slots.pop(page.slot, None)
                self.spoiled.discard(("slot", page.slot))
                if good:
                    self.slots[page.slot] = (page.generation, dict(self.frames[page.pfn]))
            case PageIn():
                generation, cells = self.slots[page.slot]
                assert generation == page.generation, "the slot holds another page by now"
                good = good and ("slot", page.slot) not in self.spoiled
                self.frames[page.pfn] = dict(cells) if good else {}
            case PageStore():
                generation, cells = self.slots[page.slot]
                assert generation == page.slot_generation, "the slot holds another page by now"
                self.blocks.pop(page.block, None)
                self.spoiled.discard(("block", page.block))
                good = good and ("slot", page.slot) not in self.spoiled
                if good:
                    self.blocks[page.block] = (page.generation, dict(cells))
            case PageFetch():
                generation, cells = self.blocks[page.block]
                assert generation == page.generation, "the block holds another page by now"
                self.slots.pop(page.slot, None)
                self.spoiled.discard(("slot", page.slot))
                good = good and ("block", page.block) not in self.spoiled
                if good:
                    self.slots[page.slot] = (page.slot_generation, dict(cells))
        return good

    def count_pins(self) -> Counter[Pfn]:
        """Copies that touch each frame."""
        pins: Counter[Pfn] = Counter()
        for command in self.pending.values():
            reads, writes = touched(command)
            pins.update(Pfn(place) for kind, place in [*reads, *writes] if kind == "frame")
        return pins


Places = set[tuple[str, int]]


def touched(command: Copy) -> tuple[Places, Places]:
    """What it reads, and what it writes."""
    if isinstance(command, CopyFrame):
        return {("frame", command.src)}, {("frame", command.dst)}
    reads: Places = set()
    writes: Places = set()
    for page in command.pages:
        match page:
            case PageOut():
                reads.add(("frame", page.pfn))
                writes.add(("slot", page.slot))
            case PageIn():
                reads.add(("slot", page.slot))
                writes.add(("frame", page.pfn))
            case PageStore():
                reads.add(("slot", page.slot))
                writes.add(("block", page.block))
            case PageFetch():
                reads.add(("block", page.block))
                writes.add(("slot", page.slot))
    return reads, writes
