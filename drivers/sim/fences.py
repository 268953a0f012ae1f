"""Checks the kernel's half of the contract in `drivers.ops`: who may touch what, and when.

A command is unfinished until the kernel has been told of its completion. While it is, no command
on another queue may touch what it writes or write what it reads, and a frame or slot is filled by
one copy at a time. Each breach is one line in `violations`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from tokenix.drivers.ops import (
    CopyIn,
    CopyOut,
    Fetch,
    ImageCommand,
    LoadImage,
    SaveImage,
    Store,
)

NOTHING: frozenset[int] = frozenset()


class Queue(Enum):
    COMPUTE = "compute"
    OUT = "swap-out"
    IN = "swap-in"
    STORE = "store"
    FETCH = "fetch"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Flight:
    """An unfinished command and what it touches. `beside`: the key of another one whose frames it
    may touch, a load `by_layers`."""

    name: str
    queue: Queue
    reads: Set[int] = NOTHING
    writes: Set[int] = NOTHING
    slot_reads: Set[int] = NOTHING
    slot_writes: Set[int] = NOTHING
    block_reads: Set[int] = NOTHING
    block_writes: Set[int] = NOTHING
    by_layers: bool = False
    beside: int | None = None


class Fences:
    def __init__(self, frames: int, slots: int) -> None:
        self._frames = frames
        self._slots = slots
        self.blocks = 0
        """Of the swap file, while there is one."""
        self._flights: dict[int, Flight] = {}
        """By ticket; those without a completion have negative keys."""
        self.violations: list[str] = []

    def report(self, line: str) -> None:
        self.violations.append(line)

    def admit(self, key: int, flight: Flight) -> None:
        """Note that a command was submitted, and report what it collides with."""
        if key in self._flights:
            self.report(f"{flight.name}: ticket {key} is in use by {self._flights[key].name}")
        if flight.beside is not None and not self._is_load(flight.beside):
            self.report(f"{flight.name}: {flight.beside} is no unfinished load by layers")
        for at, other in self._flights.items():
            if at != flight.beside:
                self._compare(flight, other)
        if flight.by_layers and any(
            other.queue is flight.queue for other in self._flights.values()
        ):
            self.report(f"{flight.name}: by layers behind another load")
        self._flights[key] = flight

    def retire(self, key: int) -> None:
        """The kernel knows that the command is done."""
        self._flights.pop(key, None)

    def _is_load(self, key: int) -> bool:
        return key in self._flights and self._flights[key].by_layers

    def count_unfinished(self) -> int:
        return len(self._flights)

    def count_forwards(self) -> int:
        """Of the unfinished, those that are forwards."""
        return sum(flight.name.startswith("Forward ") for flight in self._flights.values())

    def peek_touched(self, frames: Set[int]) -> bool:
        """Whether an unfinished command reads or writes any of `frames`."""
        return any(
            not (frames.isdisjoint(f.reads) and frames.isdisjoint(f.writes))
            for f in self._flights.values()
        )

    def frames_in_range(self, name: str, frames: Iterable[int]) -> bool:
        return self._in_range(name, "frame", frames, self._frames)

    def slots_in_range(self, name: str, slots: Iterable[int]) -> bool:
        return self._in_range(name, "slot", slots, self._slots)

    def blocks_in_range(self, name: str, blocks: Iterable[int]) -> bool:
        return self._in_range(name, "block", blocks, self.blocks)

    def copy_flight(self, command: CopyOut | CopyIn | Store | Fetch) -> Flight:
        """What a copy touches; reports what it asks for twice."""
        name = f"{type(command).__name__} {command.ticket}"
        slots = [page.slot for page in command.pages]
        match command:
            case CopyOut():
                self._once(name, "slot", slots)
                frames = {page.pfn for page in command.pages}
                return Flight(name, Queue.OUT, reads=frames, slot_writes=set(slots))
            case CopyIn():
                self._once(name, "frame", [page.pfn for page in command.pages])
                frames = {page.pfn for page in command.pages}
                return Flight(
                    name,
                    Queue.IN,
                    writes=frames,
                    slot_reads=set(slots),
                    by_layers=command.by_layers,
                )
            case Store():
                self._once(name, "block", [page.block for page in command.pages])
                blocks = {page.block for page in command.pages}
                return Flight(name, Queue.STORE, slot_reads=set(slots), block_writes=blocks)
            case Fetch():
                self._once(name, "slot", slots)
                blocks = {page.block for page in command.pages}
                return Flight(name, Queue.FETCH, block_reads=blocks, slot_writes=set(slots))

    def image_flight(self, command: ImageCommand) -> Flight:
        """What an image command touches."""
        name = f"{type(command).__name__} {command.ticket}"
        match command:
            case SaveImage():
                slots = {page.slot for page in command.pages}
                return Flight(name, Queue.IMAGE, slot_reads=slots)
            case LoadImage():
                self._once(name, "slot", [page.slot for page in command.pages])
                return Flight(name, Queue.IMAGE, slot_writes={p.slot for p in command.pages})
            case _:
                return Flight(name, Queue.IMAGE)

    def _in_range(self, name: str, what: str, numbers: Iterable[int], bound: int) -> bool:
        wrong = [n for n in numbers if not 0 <= n < bound]
        if wrong:
            self.report(f"{name}: {what} {wrong[0]} is outside 0..{bound - 1}")
        return not wrong

    def _once(self, name: str, what: str, numbers: Sequence[int]) -> None:
        for number, times in Counter(numbers).items():
            if times > 1:
                self.report(f"{name}: {what} {number} is filled {times} times by one command")

    def _compare(self, new: Flight, old: Flight) -> None:
        if new.queue is not old.queue:
            self._clash(new, "writes", new.writes, "reads", old.reads, old, "frame")
            self._clash(new, "reads", new.reads, "writes", old.writes, old, "frame")
            self._clash(new, "writes", new.slot_writes, "reads", old.slot_reads, old, "slot")
            self._clash(new, "reads", new.slot_reads, "writes", old.slot_writes, old, "slot")
            self._clash(new, "writes", new.block_writes, "reads", old.block_reads, old, "block")
            self._clash(new, "reads", new.block_reads, "writes", old.block_writes, old, "block")
        if new.queue is not old.queue or new.queue is not Queue.COMPUTE:
            self._clash(new, "writes", new.writes, "writes", old.writes, old, "frame")
            self._clash(new, "writes", new.slot_writes, "writes", old.slot_writes, old, "slot")
            self._clash(new, "writes", new.block_writes, "writes", old.block_writes, old, "block")

    def _clash(
        self,
        new: Flight,
        verb: str,
        mine: Set[int],
        other_verb: str,
        theirs: Set[int],
        old: Flight,
        what: str,
    ) -> None:
        if mine.isdisjoint(theirs):
            return
        number = min(mine & theirs)
        self.report(f"{new.name} {verb} {what} {number} that unfinished {old.name} {other_verb}")
