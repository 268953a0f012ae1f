"""Pages between images and the host tier.

    host slots  --pin, SaveImage-->  image       as many as are there, up to the first that is not
                <--take, LoadImage--             what nobody has yet; the rest is found by content

Images never touch frames: a disk that hangs keeps some host slots, and nothing of the device.
"""

from typing import NamedTuple

from tokenix.drivers.ops import PageLoad, PageSave
from tokenix.kernel.memory import Memory
from tokenix.kernel.process import Process
from tokenix.kernel.tiers import no_donors
from tokenix.mm.ids import Slot
from tokenix.mm.page import Page


class Arriving(NamedTuple):
    """A page on its way from an image."""

    number: int
    page: Page
    slot: Slot
    generation: int


def pin(memory: Memory, process: Process) -> tuple[list[PageSave], int]:
    """The pages of a process that can be saved, and how many tokens' KV is in them."""
    space = process.space
    pages: list[PageSave] = []
    for page in space.pages[: space.pages_for(space.computed)]:
        if page.slot is None:
            break
        memory.copies.host.pin(page.slot)
        pages.append(PageSave(page.slot, page.generation))
    return pages, min(space.computed, len(pages) * space.page_tokens)


def unpin(memory: Memory, slots: list[Slot]) -> None:
    for slot in slots:
        memory.copies.host.unpin(slot)


def take(memory: Memory, process: Process, computed: int) -> list[Arriving]:
    """Slots for the pages up to `computed` tokens that are not found by content."""
    space, host = process.space, memory.copies.host
    space.extend_keys(process.tokens, computed // space.page_tokens)
    known, want = len(memory.index.lookup(space.keys)), space.pages_for(computed)
    memory.make_slots(want - known, no_donors)
    arriving = []
    for number in range(known, want):
        page = Page(process.tenant)
        taken = host.take(page)
        if taken is None:
            break
        arriving.append(Arriving(number, page, Slot(taken[0]), taken[1]))
    return arriving


def loads(arriving: list[Arriving]) -> tuple[PageLoad, ...]:
    return tuple(PageLoad(item.number, item.slot, item.generation) for item in arriving)


def attach(
    memory: Memory, process: Process, computed: int, arriving: list[Arriving], bad: tuple[int, ...]
) -> int:
    """Map what has arrived and what is found by content, up to the first page that is neither.
    Returns how many tokens' KV that is."""
    space, copies = process.space, memory.copies
    good: dict[int, Page] = {}
    for place, item in enumerate(arriving):
        if place in bad:
            copies.host.free(item.slot)
            continue
        copies.host.publish(item.slot)
        item.page.slot, item.page.generation = item.slot, item.generation
        good[item.number] = item.page
    full = computed // space.page_tokens
    pages = memory.index.lookup(space.keys[:full])
    known = len(pages)
    while len(pages) < full and len(pages) in good:
        pages.append(good.pop(len(pages)))
    space.attach(pages)
    for vpn in range(known, len(pages)):
        space.name_page(vpn, process.tokens)
    if len(pages) == full and full in good and computed % space.page_tokens:
        space.attach_tail(good.pop(full), computed)
    for page in good.values():
        copies.free_slot(page)
    return space.computed


def give_back(memory: Memory, arriving: list[Arriving]) -> None:
    """Nobody wants them any more, and the device does not write them any more."""
    for item in arriving:
        memory.copies.host.free(item.slot)
