"""Faults on demand, deterministic from a seed or named one by one.

| kind         | counts      | what happens                                                        |
|--------------|-------------|---------------------------------------------------------------------|
| fail_out     | CopyOuts    | CopyFailed; the pages are not published                             |
| fail_in      | CopyIns     | CopyFailed; the frames hold junk                                    |
| corrupt_slot | CopyOuts    | the published pages change silently (the checksum does not)         |
| lose_slot    | CopyOuts    | the published pages vanish after CopyDone                           |
| delay_out/in | CopyOuts/Ins| the copy takes `delay_s` longer, and its queue with it              |
| hang_out/in  | CopyOuts/Ins| the copy never completes; its queue goes on                         |
| *_store, *_fetch, *_block: the same of Stores, Fetches, and what Stores publish
| *_save       | SaveImages  | the same; a save that fails leaves no file                          |
| corrupt_image| SaveImages  | pages in the file change silently                                   |
| *_load       | ReadImages and LoadImages: the same                                             |
| device       | Forwards    | DeviceFault; what its rows would have written is undefined          |
| row          | Forwards    | RowFault of the row of `pid` (all rows if None); it writes nothing  |
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "fail_out",
    "fail_in",
    "corrupt_slot",
    "lose_slot",
    "delay_out",
    "delay_in",
    "hang_out",
    "hang_in",
    "fail_store",
    "fail_fetch",
    "corrupt_block",
    "lose_block",
    "delay_store",
    "delay_fetch",
    "hang_store",
    "hang_fetch",
    "fail_save",
    "delay_save",
    "hang_save",
    "corrupt_image",
    "fail_load",
    "delay_load",
    "hang_load",
    "device",
    "row",
]
Copy = Literal["out", "in", "store", "fetch", "save", "load"]
Command = Literal["out", "in", "store", "fetch", "save", "load", "forward"]

COUNTED: dict[Kind, Command] = {
    "fail_out": "out",
    "corrupt_slot": "out",
    "lose_slot": "out",
    "delay_out": "out",
    "hang_out": "out",
    "fail_in": "in",
    "delay_in": "in",
    "hang_in": "in",
    "fail_store": "store",
    "corrupt_block": "store",
    "lose_block": "store",
    "delay_store": "store",
    "hang_store": "store",
    "fail_fetch": "fetch",
    "delay_fetch": "fetch",
    "hang_fetch": "fetch",
    "fail_save": "save",
    "delay_save": "save",
    "hang_save": "save",
    "corrupt_image": "save",
    "fail_load": "load",
    "delay_load": "load",
    "hang_load": "load",
    "device": "forward",
    "row": "forward",
}
"""Which commands `Fault.nth` counts for each kind."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the `nth` (from 0) command of its sort; None: the first one that `pid` is in
    (only for "row"), else every one."""

    kind: Kind
    nth: int | None = None
    pages: tuple[int, ...] | None = None
    """Indices into the command's pages; None: all of them."""
    pid: int | None = None
    delay_s: float = 10.0


def struck(faults: Iterable[Fault], kind: str, pages: int) -> set[int]:
    """Of so many pages of a command, the indices of those that faults of a kind strike."""
    found: set[int] = set()
    for fault in faults:
        if fault.kind.startswith(kind):
            found.update(i for i in fault.pages or range(pages) if i < pages)
    return found


@dataclass(slots=True)
class FaultPlan:
    """Faults by rate (chance per command; per row for "row") and by name. Used by one device."""

    seed: int = 0
    rates: dict[Kind, float] = field(default_factory=dict)
    named: tuple[Fault, ...] = ()
    delay_s: float = 10.0
    """Longest extra time of a copy delayed by rate."""
    _random: random.Random = field(init=False)
    _seen: dict[Command, int] = field(init=False)
    _spent: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._seen = dict.fromkeys(COUNTED.values(), 0)
        self._spent = set()

    def take_copy_faults(self, command: Copy, pages: int) -> list[Fault]:
        """The faults of the next copy in that direction."""
        nth = self._count(command)
        faults = [f for f in self.named if COUNTED[f.kind] == command and f.nth in (nth, None)]
        for kind, rate in self.rates.items():
            if COUNTED[kind] == command and self._random.random() < rate:
                some = tuple(i for i in range(pages) if self._random.random() < 0.5)
                late = self._random.random() * self.delay_s
                faults.append(Fault(kind, nth, some or None, delay_s=late))
        return faults

    def take_forward_faults(self, pids: list[int]) -> tuple[bool, set[int]]:
        """(whether the next forward fails as a whole, the pids of rows that fail alone)."""
        nth = self._count("forward")
        whole = self._random.random() < self.rates.get("device", 0.0)
        rate = self.rates.get("row", 0.0)
        rows = {pid for pid in pids if rate > 0 and self._random.random() < rate}
        for i, fault in enumerate(self.named):
            if fault.kind == "device" and fault.nth in (nth, None):
                whole = True
            elif fault.kind == "row" and self._row_due(i, fault, nth, pids):
                rows.update(pids if fault.pid is None else [fault.pid])
        return whole, rows

    def _row_due(self, index: int, fault: Fault, nth: int, pids: list[int]) -> bool:
        if fault.nth is not None:
            return fault.nth == nth
        if index in self._spent or (fault.pid is not None and fault.pid not in pids):
            return False
        self._spent.add(index)
        return True

    def _count(self, command: Command) -> int:
        nth = self._seen[command]
        self._seen[command] = nth + 1
        return nth
