"""A device that copies pages when it is told to: contents of frames and slots as plain values."""

from collections import Counter
from dataclasses import dataclass, field

from tokenix.drivers.ops import Command, CopyDone, CopyFailed, CopyFrame, CopyIn, CopyOut
from tokenix.mm.ids import Pfn, Slot

Cells = dict[int, object]
"""What a page holds, by place."""


@dataclass
class Tier:
    frames: dict[Pfn, Cells] = field(default_factory=dict)
    slots: dict[Slot, tuple[int, Cells]] = field(default_factory=dict)
    """(generation, content)."""
    spoiled: set[Slot] = field(default_factory=set)
    """Slots whose content does not verify."""
    pending: dict[int, CopyOut | CopyIn | CopyFrame] = field(default_factory=dict)
    """By ticket."""
    hung: list[int] = field(default_factory=list)

    def submit(self, command: Command) -> None:
        """Nothing that is under way may be disturbed."""
        assert isinstance(command, CopyOut | CopyIn | CopyFrame)
        reads, writes = frames_of(command)
        for other in self.pending.values():
            other_reads, other_writes = frames_of(other)
            assert not writes & (other_reads | other_writes), "a frame is written under a copy"
            both_on_compute = isinstance(command, CopyFrame) and isinstance(other, CopyFrame)
            assert both_on_compute or not reads & other_writes, "a frame is read while it is filled"
            shared = slots_of(command) & slots_of(other)
            both_read = isinstance(command, CopyIn) and isinstance(other, CopyIn)
            assert both_read or not shared, "a slot is in use"
        self.pending[command.ticket] = command
        if isinstance(command, CopyFrame):  # before whatever is computed from now on
            self.frames[command.dst] = dict(self.frames[command.src])

    def write(self, pfn: Pfn, at: int, cell: object) -> None:
        """The model computes."""
        for command in self.pending.values():
            reads, writes = frames_of(command)
            ordered = isinstance(command, CopyFrame)
            assert pfn not in writes and (ordered or pfn not in reads), "it writes under a copy"
        self.frames.setdefault(pfn, {})[at] = cell

    def end(self, ticket: int, bad: frozenset[int]) -> CopyDone | CopyFailed:
        """A copy ends; `bad`: indices of pages that fail."""
        command = self.pending.pop(ticket)
        failed = []
        if isinstance(command, CopyFrame):
            return CopyDone(command.ticket)
        for number, page in enumerate(command.pages):
            if isinstance(command, CopyOut):
                good = number not in bad
                self.slots.pop(page.slot, None)
                self.spoiled.discard(page.slot)
                if good:
                    self.slots[page.slot] = (page.generation, dict(self.frames[page.pfn]))
            else:
                generation, cells = self.slots[page.slot]
                assert generation == page.generation, "the slot holds another page by now"
                good = number not in bad and page.slot not in self.spoiled
                self.frames[page.pfn] = dict(cells) if good else {}
            if not good:
                failed.append(number)
        return CopyFailed(command.ticket, tuple(failed), "") if failed else CopyDone(ticket)

    def count_pins(self) -> Counter[Pfn]:
        """Copies that touch each frame."""
        pins: Counter[Pfn] = Counter()
        for command in self.pending.values():
            reads, writes = frames_of(command)
            pins.update([*reads, *writes])
        return pins


def frames_of(command: CopyOut | CopyIn | CopyFrame) -> tuple[set[Pfn], set[Pfn]]:
    """What it reads, and what it writes."""
    match command:
        case CopyOut():
            return {page.pfn for page in command.pages}, set()
        case CopyIn():
            return set(), {page.pfn for page in command.pages}
        case CopyFrame():
            return {command.src}, {command.dst}


def slots_of(command: CopyOut | CopyIn | CopyFrame) -> set[Slot]:
    return set() if isinstance(command, CopyFrame) else {page.slot for page in command.pages}
