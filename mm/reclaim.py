"""Reclaim: turning cached frames into free ones, least valuable first.

    1. pages that nobody maps, by last use (kept only because their content might be asked again)
    2. clean pages of paused processes, of the one that is needed again latest, from its tail

Nothing is ever lost here: the first kind can be computed again by whoever asks, the second has a
valid copy in the host tier.
"""

from collections.abc import Iterable

from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.prefix import PrefixIndex
from tokenix.mm.space import AddressSpace


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
