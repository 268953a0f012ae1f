"""Reclaim: turning cached frames into free ones, least valuable first.

    1. pages that nobody maps, the least worth keeping first (mm/evict.py); those with a copy in a
       lower tier stay findable there
    2. clean pages of paused processes, of the one that is needed again latest, from its tail

It runs when a process needs frames, and ahead of need between two watermarks, so that a page of
growth seldom has to look for one. Nothing is ever lost: the first kind can be computed again by
whoever asks, the second has a valid copy in a lower tier.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.prefix import PrefixIndex
from tokenix.mm.space import AddressSpace


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Free frames: below `low` the reclaim daemon starts, and frees until there are `high`."""

    low: int
    high: int

    def __post_init__(self) -> None:
        assert 0 <= self.low <= self.high, "low is below high"

    def want(self, frames: FrameTable) -> int:
        """Frames that should be free now; 0 while there are enough, or none to be had."""
        if frames.count(FrameState.FREE) >= self.low or not frames.count(FrameState.CACHED):
            return 0
        return self.high


def count_available(frames: FrameTable) -> int:
    """Frames that a request for memory may have at once."""
    return frames.count(FrameState.FREE) + frames.count(FrameState.CACHED)


def reclaim(
    frames: FrameTable, index: PrefixIndex, want: int, latest_first: Iterable[AddressSpace]
) -> bool:
    """Give up cached frames until `want` are free, or will be once the forward in flight has
    retired. Returns whether they are free now.

    `latest_first`: paused address spaces, the one that will be needed last first.
    """
    missing = want - frames.count_coming()
    while missing > 0:
        known = index.idle_frames.peek()
        if known is None:
            break
        page = known.page
        assert page.pfn is not None, "it is listed as resident"
        given_up = frames.state(page.pfn) is not FrameState.CACHED  # a copy that never ended has it
        if not page.clean:
            index.forget(page, evicted=True)
        frames.release(page)
        frames.reclaimed += 1
        missing -= 0 if given_up else 1
    for space in latest_first if missing > 0 else ():
        if space.idle_resident:
            missing -= _reclaim_from(space, frames, missing)
        if missing <= 0:
            break
    return frames.count(FrameState.FREE) >= want


def _reclaim_from(space: AddressSpace, frames: FrameTable, most: int) -> int:
    """Up to `most` of its cached frames, from the tail. Returns how many."""
    taken = 0
    for page in reversed(space.pages):
        if page.pfn is not None and frames.state(page.pfn) is FrameState.CACHED:
            frames.release(page)
            frames.reclaimed += 1
            taken += 1
            if taken == most:
                break
    return taken
