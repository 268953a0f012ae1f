"""The lower tiers, and what copies do to them and to frames.

A page is published in one moment, at the end of its copy, with the generation the kernel gave and a
checksum of what was read. A copy upwards serves a page only if both are right.

    frames  --CopyOut-->  host slots  --Store-->  blocks of the swap file
            <--CopyIn--               <--Fetch--
"""

from dataclasses import dataclass

from tokenix.drivers.ops import (
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
)
from tokenix.drivers.sim.faults import Fault, struck
from tokenix.drivers.sim.fences import Fences
from tokenix.drivers.sim.store import HostPage, Memory, PageImage

Copy = CopyOut | CopyIn | Store | Fetch


class Tier:
    """Places for pages in one kind of memory, by index."""

    def __init__(self, name: str) -> None:
        self.name = name
        """What one place is called."""
        self._pages: dict[int, HostPage] = {}
        self._lost: set[int] = set()
        """Places that lost their page to a planned fault: reading them is no violation."""

    def unpublish(self, place: int) -> None:
        self._pages.pop(place, None)
        self._lost.discard(place)

    def clear(self) -> None:
        self._pages.clear()
        self._lost.clear()

    def publish(self, place: int, generation: int, image: PageImage) -> None:
        self._pages[place] = HostPage(generation, image.checksum(), image)

    def corrupt(self, place: int) -> None:
        """Flip bits of a published page, as a failing memory would."""
        page = self._pages[place]
        old = page.image
        cells = tuple(cell ^ 0x10 for cell in old.cells[:1]) + old.cells[1:]
        page.image = PageImage(old.junk, old.entry ^ 1, cells)

    def lose(self, place: int) -> None:
        """A published page vanishes."""
        del self._pages[place]
        self._lost.add(place)

    def load(self, place: int, generation: int) -> PageImage | str:
        """The page, or why it cannot be served."""
        page = self._pages.get(place)
        if page is None:
            return "lost" if place in self._lost else "unpublished"
        if page.generation != generation:
            return f"of generation {page.generation}, not {generation}"
        if page.image.checksum() != page.checksum:
            return "corrupt"
        return page.image


@dataclass(frozen=True, slots=True)
class Memories:
    """Where pages can be."""

    frames: Memory
    host: Tier
    disk: Tier


def copy_frame(
    command: CopyFrame, memory: Memory, fences: Fences, sound: bool
) -> CopyDone | CopyFailed:
    """Copy a frame on the device."""
    if not sound:
        return CopyFailed(command.ticket, (0,), "frame out of range")
    image = memory.frames[command.src].image()
    if image.junk:
        fences.report(f"CopyFrame {command.ticket}: copies {image.junk} frame {command.src}")
    memory.frames[command.dst].fill(image)
    return CopyDone(command.ticket)


class CopyUnderWay:
    """A copy between two memories. At its start the targets hold nothing; frames are read at
    moments within (`read`), the rest at its end; what could be read is then in place, and
    published."""

    def __init__(
        self, command: Copy, memories: Memories, fences: Fences, faults: list[Fault], sound: bool
    ) -> None:
        self._command = command
        self._memories = memories
        self._fences = fences
        self._faults = faults
        self._sound = sound
        self._read: dict[int, PageImage | str] = {}

    def start(self) -> None:
        memories = self._memories
        for page in self._command.pages if self._sound else ():
            match page:
                case PageOut():
                    memories.host.unpublish(page.slot)
                case PageStore():
                    memories.disk.unpublish(page.block)
                case PageFetch():
                    memories.host.unpublish(page.slot)
                case _:
                    memories.frames.frames[page.pfn].spoil("half copied")

    def read(self, index: int) -> None:
        if not self._sound:
            return
        memories, page = self._memories, self._command.pages[index]
        match page:
            case PageOut():
                image = memories.frames.frames[page.pfn].image()
                if image.junk:
                    self._report(f"copies {image.junk} frame {page.pfn}")
                self._read[index] = image
            case PageFetch():
                self._read[index] = self._load(memories.disk, page.block, page.generation)
            case PageStore():
                self._read[index] = self._load(memories.host, page.slot, page.slot_generation)
            case _:
                self._read[index] = self._load(memories.host, page.slot, page.generation)

    def finish(self) -> CopyDone | CopyFailed:
        command = self._command
        if not self._sound:
            return CopyFailed(command.ticket, tuple(range(len(command.pages))), "out of range")
        failing = self._struck("fail_")
        bad: list[int] = []
        reasons: list[str] = []
        for i in range(len(command.pages)):
            if i not in self._read:
                self.read(i)
            image = self._read[i]
            if isinstance(image, str) or i in failing:
                bad.append(i)
                reasons.append(image if isinstance(image, str) else "planned copy fault")
            else:
                self._place(i, image)
        for i in range(len(command.pages)) if bad else ():
            page = command.pages[i]
            if i in bad and not isinstance(page, PageOut | PageStore | PageFetch):
                self._memories.frames.frames[page.pfn].spoil("badly copied")
        if bad:
            return CopyFailed(command.ticket, tuple(bad), "; ".join(dict.fromkeys(reasons)))
        return CopyDone(command.ticket)

    def frames_of(self, indices: tuple[int, ...]) -> frozenset[int]:
        """Of a load, the frames of some of its pages."""
        pages = (self._command.pages[i] for i in indices)
        return frozenset(page.pfn for page in pages if isinstance(page, PageIn))

    def _place(self, index: int, image: PageImage) -> None:
        memories, page = self._memories, self._command.pages[index]
        match page:
            case PageOut():
                self._publish(memories.host, index, page.slot, page.generation, image)
            case PageStore():
                self._publish(memories.disk, index, page.block, page.generation, image)
            case PageFetch():
                memories.host.publish(page.slot, page.slot_generation, image)
            case _:
                memories.frames.frames[page.pfn].fill(image)

    def _publish(
        self, tier: Tier, index: int, place: int, generation: int, image: PageImage
    ) -> None:
        tier.publish(place, generation, image)
        if index in self._struck("corrupt_"):
            tier.corrupt(place)
        if index in self._struck("lose_"):
            tier.lose(place)

    def _load(self, tier: Tier, place: int, generation: int) -> PageImage | str:
        loaded = tier.load(place, generation)
        if not isinstance(loaded, str):
            return loaded
        reason = f"{tier.name} {place} is {loaded}"
        if loaded not in ("lost", "corrupt"):
            self._report(reason)
        return reason

    def _report(self, what: str) -> None:
        name = type(self._command).__name__
        self._fences.report(f"{name} {self._command.ticket}: {what}")

    def _struck(self, kind: str) -> set[int]:
        """Indices of the pages that faults of a kind strike."""
        return struck(self._faults, kind, len(self._command.pages))


class LayerLoad:
    """A load by layers: when it runs, and what came of it."""

    def __init__(self, copy: CopyUnderWay, begin_s: float, end_s: float) -> None:
        self._copy = copy
        self.begin_s = begin_s
        self.end_s = end_s
        self.bad: frozenset[int] = frozenset()
        """Frames that it failed to bring."""

    def finish(self) -> CopyDone | CopyFailed:
        done = self._copy.finish()
        if isinstance(done, CopyFailed):
            self.bad = self._copy.frames_of(done.bad)
        return done
