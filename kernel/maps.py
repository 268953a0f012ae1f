"""Maps of memory for people and programs: where the pages of a process are, what is in each place
of a tier, which prefixes are found most. They change nothing.

A page or a place is a byte, and an answer has as many as a millisecond allows: who wants all asks
again from where it ended.
"""

import errno
from typing import Final

from tokenix.kernel.answers import PageCode, PageMap, PlaceCode, PlaceMap, PrefixNode
from tokenix.kernel.calls import Framemap, Maps, Prefixes, Principal, error
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.process import Process
from tokenix.mm.evict import Known
from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Pfn
from tokenix.mm.page import Page
from tokenix.mm.quota import TIERS
from tokenix.swap.tier import PlaceState, Tier

NAME_DIGITS: Final = 8
"""Of a node's name: enough to tell apart what one answer lists."""

# Looked up for each page, and an enum's names are slow.
_DEVICE, _HOST, _FILE, _SHARED, _MOVING = map(int, PageCode)
_HELD_PLACE, _CACHED_PLACE, _MOVING_PLACE = range(1, 4)
_SHARED_PLACE, _CLEAN, _FOREIGN = (
    int(code) for code in (PlaceCode.SHARED, PlaceCode.CLEAN, PlaceCode.FOREIGN)
)

assert [*FrameState] == [
    PlaceCode.FREE, PlaceCode.HELD, PlaceCode.CACHED, PlaceCode.MOVING,
] == [0, _HELD_PLACE, _CACHED_PLACE, _MOVING_PLACE]  # fmt: skip


# ---- pages of a process ----


def page_map(kernel: Lifecycle, process: Process, request: Maps) -> PageMap:
    """Where the pages of `process` are, from `request.start` on."""
    space, start = process.space, _checked(request.start)
    pages = space.pages[start : start + kernel.params.listed_pages]
    codes = bytes(map(_page_code, pages))
    return PageMap(process.pid, space.page_tokens, space.computed, space.mapped, start, codes)


def _page_code(page: Page) -> int:
    code = _SHARED if page.mapped > 1 else 0
    if page.pfn is not None:
        code |= _DEVICE
    if page.slot is not None:
        code |= _HOST
    if page.block is not None:
        code |= _FILE
    if page.loading or page.leaving or page.storing or page.rising:
        code |= _MOVING
    return code


# ---- places of a tier ----


def place_map(kernel: Lifecycle, who: Principal, request: Framemap) -> PlaceMap:
    """How the places of a tier stand, from `request.start` on."""
    start, copies = _checked(request.start), kernel.memory.copies
    last = start + kernel.params.listed_pages
    tenant = None if who.root else who.tenant
    match request.tier:
        case "frames":
            frames = kernel.memory.frames
            codes = _frame_codes(frames, range(frames.total)[start:last], tenant)
            total = frames.total
        case "host" | "disk":
            tier = copies.host if request.tier == "host" else copies.disk
            codes = _tier_codes(tier, tier.places[start:last], tenant, request.tier == "host")
            total = tier.total
        case other:
            raise error(errno.EINVAL, f"no tier {other!r}; there are {', '.join(TIERS)}")
    return PlaceMap(request.tier, total, start, bytes(codes))


def _frame_codes(frames: FrameTable, places: range, tenant: str | None) -> bytearray:
    codes = bytearray()
    for place in places:
        pfn = Pfn(place)
        page, code = frames.owner(pfn), int(frames.state(pfn))
        if page is not None:
            if tenant is not None and page.tenant != tenant:
                code = _FOREIGN
            else:
                code |= _SHARED_PLACE if page.mapped > 1 else 0
                code |= _CLEAN if page.slot is not None or page.block is not None else 0
        codes.append(code)
    return codes


def _tier_codes(tier: Tier, places: range, tenant: str | None, host: bool) -> bytearray:
    codes = bytearray()
    for place in places:
        page, state = tier.owner(place), tier.state(place)
        if page is None:
            codes.append(_MOVING_PLACE if state else 0)
        elif tenant is not None and page.tenant != tenant:
            codes.append(_FOREIGN)
        else:
            code = _CACHED_PLACE if page.mapped == 0 else _HELD_PLACE
            code = code if state is PlaceState.VALID else _MOVING_PLACE
            code |= _SHARED_PLACE if page.mapped > 1 else 0
            code |= _CLEAN if host and page.block is not None else 0
            codes.append(code)
    return codes


# ---- the tree of prefixes ----


def prefixes(kernel: Lifecycle, who: Principal, request: Prefixes) -> tuple[PrefixNode, ...]:
    """Nodes of the tree of prefixes, those that were found most first.

    system prompt ------- tools ---- a question         a node ends where matches ended:
          57 hits |     12 hits         3 hits          between two ends of matches, all
                  `---- another question                was found equally often
                                9 hits
    """
    if request.limit < 1:
        raise error(errno.EINVAL, f"limit must be at least 1, not {request.limit}")
    ends = [
        page.use
        for page in kernel.memory.index.peek_ends()
        if page.use is not None and (who.root or page.tenant == who.tenant)
    ]
    # What is before a page was found at least as often: a node comes behind the one before it.
    ends.sort(key=lambda known: (-known.uses, known.depth, known.serial))
    listed: dict[Page, str] = {}
    nodes: list[PrefixNode] = []
    left = kernel.params.listed_pages
    for known in ends[: request.limit]:
        if left <= 0:
            break
        node, looked = _node(known, listed, left, kernel.now_s)
        left -= looked
        listed[known.page] = node.name
        nodes.append(node)
    return tuple(nodes)


def _node(
    end: Known[Page], listed: dict[Page, str], most: int, now_s: float
) -> tuple[PrefixNode, int]:
    """The node that ends with a page, and at how many pages it looked: at most `most`."""
    device = host = file = looked = 0
    known: Known[Page] | None = end
    while known is not None and known.page not in listed and looked < most:
        page = known.page
        if page.pfn is not None:
            device += 1
        elif page.slot is not None:
            host += 1
        else:
            file += 1
        looked += 1
        known = known.parent
    before = known if known is not None and known.page in listed else None
    depth = before.depth + 1 if before is not None else 0
    node = PrefixNode(
        name=end.key.hex()[:NAME_DIGITS],
        parent=listed[before.page] if before is not None else "",
        tenant=end.page.tenant,
        depth=depth,
        pages=end.depth + 1 - depth,
        hits=end.uses - 1,
        device=device,
        host=host,
        file=file,
        mapped=end.page.mapped,
        idle_s=0.0 if end.page.mapped else max(0.0, now_s - end.used_s),
    )
    return node, looked


def _checked(start: int) -> int:
    if start < 0:
        raise error(errno.EINVAL, f"start must be at least 0, not {start}")
    return start
