"""Reclaim: turning cached frames into free ones, least valuable first.

    1. pages that nobody maps, by last use (kept only because their content might be asked again)
    2. clean pages of paused processes, of the one that is needed again latest, from its tail

It runs when a process needs frames, and ahead of need between two watermarks, so that a page of
growth seldom has to look for one. Nothing is ever lost: the first kind can be computed again by
whoever asks, the second has a valid copy in the host tier.
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
    """Make at least `want` frames free, if that many are free or cached. Returns whether they are.

    `latest_first`: paused address spaces, the one that will be needed last first.
    """
    while frames.count(FrameState.FREE) < want:
        page = index.peek_idle()
        if page is None:
            break
        index.forget(page)
        assert page.pfn is not None, "idle pages are resident"
        frames.release(page)
    for space in latest_first:
        if frames.count(FrameState.FREE) >= want:
            break
        for page in reversed(space.pages):
            if frames.count(FrameState.FREE) >= want:
                break
            if page.pfn is not None and frames.state(page.pfn) is FrameState.CACHED:
                frames.release(page)
    return frames.count(FrameState.FREE) >= want
