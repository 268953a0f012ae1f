"""What moving a page costs: seconds on each lane, measured at boot and corrected by every copy."""

from tokenix.swap.transfers import Lane

SMOOTHING = 0.2
"""Weight of the newest copy in the moving average."""

DEADLINE_FACTOR = 20.0
DEADLINE_FLOOR_S = 2.0
"""A copy is given up after max(floor, factor * its expected time), queue included."""


class Link:
    """Rates of the lanes between the tiers, in seconds per page."""

    def __init__(self, in_s_per_page: float, out_s_per_page: float) -> None:
        self._s_per_page = dict.fromkeys(Lane, 0.0)
        self._s_per_page[Lane.IN] = in_s_per_page
        self._s_per_page[Lane.OUT] = out_s_per_page

    def s_per_page(self, lane: Lane) -> float:
        return self._s_per_page[lane]

    def measured(self, lane: Lane, s_per_page: float) -> None:
        """The lane was measured anew (the swap file was opened)."""
        self._s_per_page[lane] = s_per_page

    def note(self, lane: Lane, pages: int, took_s: float, queued_pages: int) -> None:
        """A copy of `pages` pages finished `took_s` after its submission, behind `queued_pages`
        pages that had been submitted earlier on the same lane."""
        sample = took_s / max(1, pages + queued_pages)
        self._s_per_page[lane] += SMOOTHING * (sample - self._s_per_page[lane])

    def deadline_s(self, lane: Lane, pages: int, queued_pages: int) -> float:
        """Seconds after which a copy submitted now counts as failed."""
        expected = (pages + queued_pages) * self.s_per_page(lane)
        return max(DEADLINE_FLOOR_S, DEADLINE_FACTOR * expected)
