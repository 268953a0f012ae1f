"""The host tier, and what copies do to it and to frames.

A slot is published in one moment, at the end of its CopyOut, with the generation the kernel gave
and a checksum of what was read. CopyIn serves a page only if both are right.
"""

from tokenix.drivers.ops import CopyDone, CopyFailed, CopyFrame, CopyIn, CopyOut
from tokenix.drivers.sim.faults import Fault, Kind
from tokenix.drivers.sim.fences import Fences
from tokenix.drivers.sim.store import HostPage, Memory, PageImage


class HostTier:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._pages: dict[int, HostPage] = {}
        self._lost: set[int] = set()
        """Slots that lost their page to a planned fault: reading them is no violation."""

    def begin_out(
        self, command: CopyOut, memory: Memory, fences: Fences, faults: list[Fault], sound: bool
    ) -> "OutCopy":
        return OutCopy(self, command, memory, fences, faults, sound)

    def begin_in(
        self, command: CopyIn, memory: Memory, fences: Fences, faults: list[Fault], sound: bool
    ) -> "InCopy":
        return InCopy(self, command, memory, fences, faults, sound)

    def copy_frame(
        self, command: CopyFrame, memory: Memory, fences: Fences, sound: bool
    ) -> CopyDone | CopyFailed:
        """Copy a frame on the device."""
        if not sound:
            return CopyFailed(command.ticket, (0,), "frame out of range")
        image = memory.frames[command.src].image()
        if image.junk:
            fences.report(f"CopyFrame {command.ticket}: copies {image.junk} frame {command.src}")
        memory.frames[command.dst].fill(image)
        return CopyDone(command.ticket)

    def unpublish(self, slot: int) -> None:
        self._pages.pop(slot, None)
        self._lost.discard(slot)

    def publish(self, slot: int, generation: int, image: PageImage) -> None:
        self._pages[slot] = HostPage(generation, image.checksum(), image)

    def corrupt(self, slot: int) -> None:
        """Flip bits of a published page, as a failing memory would."""
        page = self._pages[slot]
        old = page.image
        cells = tuple(cell ^ 0x10 for cell in old.cells[:1]) + old.cells[1:]
        page.image = PageImage(old.junk, old.entry ^ 1, cells)

    def lose(self, slot: int) -> None:
        """A published page vanishes."""
        del self._pages[slot]
        self._lost.add(slot)

    def load(self, slot: int, generation: int) -> PageImage | str:
        """The page, or why it cannot be served."""
        page = self._pages.get(slot)
        if page is None:
            return "lost" if slot in self._lost else "unpublished"
        if page.generation != generation:
            return f"of generation {page.generation}, not {generation}"
        if page.image.checksum() != page.checksum:
            return "corrupt"
        return page.image


class OutCopy:
    """A CopyOut under way: slots unpublished at its start, pages read at moments within."""

    def __init__(
        self,
        host: HostTier,
        command: CopyOut,
        memory: Memory,
        fences: Fences,
        faults: list[Fault],
        sound: bool,
    ) -> None:
        self._host = host
        self._command = command
        self._memory = memory
        self._fences = fences
        self._faults = faults
        self._sound = sound
        self._images: list[PageImage] = []

    def start(self) -> None:
        for page in self._command.pages:
            self._host.unpublish(page.slot)

    def read(self, index: int) -> None:
        if not self._sound:
            return
        pfn = self._command.pages[index].pfn
        image = self._memory.frames[pfn].image()
        if image.junk:
            self._fences.report(f"CopyOut {self._command.ticket}: copies {image.junk} frame {pfn}")
        self._images.append(image)

    def finish(self) -> CopyDone | CopyFailed:
        command = self._command
        if not self._sound:
            return CopyFailed(command.ticket, _all(command), "frame or slot out of range")
        bad = _named(self._faults, "fail_out", len(command.pages))
        lost = _named(self._faults, "lose_slot", len(command.pages))
        corrupt = _named(self._faults, "corrupt_slot", len(command.pages))
        for i, page in enumerate(command.pages):
            if i in bad:
                continue
            self._host.publish(page.slot, page.generation, self._images[i])
            if i in corrupt:
                self._host.corrupt(page.slot)
            if i in lost:
                self._host.lose(page.slot)
        if bad:
            return CopyFailed(command.ticket, tuple(sorted(bad)), "planned copy fault")
        return CopyDone(command.ticket)


class InCopy:
    """A CopyIn under way: its frames are junk from its start to its end."""

    def __init__(
        self,
        host: HostTier,
        command: CopyIn,
        memory: Memory,
        fences: Fences,
        faults: list[Fault],
        sound: bool,
    ) -> None:
        self._host = host
        self._command = command
        self._memory = memory
        self._fences = fences
        self._faults = faults
        self._sound = sound

    def start(self) -> None:
        if self._sound:
            for page in self._command.pages:
                self._memory.frames[page.pfn].spoil("half copied")

    def finish(self) -> CopyDone | CopyFailed:
        command = self._command
        if not self._sound:
            return CopyFailed(command.ticket, _all(command), "frame or slot out of range")
        failing = _named(self._faults, "fail_in", len(command.pages))
        bad: list[int] = []
        reasons: list[str] = []
        for i, page in enumerate(command.pages):
            loaded = self._host.load(page.slot, page.generation)
            if isinstance(loaded, str):
                reasons.append(f"slot {page.slot} is {loaded}")
                if loaded not in ("lost", "corrupt"):
                    self._fences.report(f"CopyIn {command.ticket}: {reasons[-1]}")
            elif i in failing:
                reasons.append("planned copy fault")
            else:
                self._memory.frames[page.pfn].fill(loaded)
                continue
            self._memory.frames[page.pfn].spoil("badly copied")
            bad.append(i)
        if bad:
            return CopyFailed(command.ticket, tuple(bad), "; ".join(dict.fromkeys(reasons)))
        return CopyDone(command.ticket)


def _named(faults: list[Fault], kind: Kind, pages: int) -> set[int]:
    """Indices of the pages that faults of `kind` strike."""
    struck: set[int] = set()
    for fault in faults:
        if fault.kind == kind:
            struck.update(i for i in fault.pages or range(pages) if i < pages)
    return struck


def _all(command: CopyOut | CopyIn) -> tuple[int, ...]:
    return tuple(range(len(command.pages)))
