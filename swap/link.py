"""What the link costs: seconds per page in each direction, measured and corrected by every copy."""

from dataclasses import dataclass

from tokenix.swap.transfers import Direction

SMOOTHING = 0.2
"""Weight of the newest copy in the moving average."""

DEADLINE_FACTOR = 20.0
DEADLINE_FLOOR_S = 2.0
"""A copy is given up after max(floor, factor * its expected time), queue included."""


@dataclass(slots=True)
class Link:
    """Rates of the link between the device and the host tier."""

    in_s_per_page: float
    out_s_per_page: float

    def s_per_page(self, direction: Direction) -> float:
        return self.in_s_per_page if direction is Direction.IN else self.out_s_per_page

    def note(self, direction: Direction, pages: int, took_s: float, queued_pages: int) -> None:
        """A copy of `pages` pages finished `took_s` after its submission, behind `queued_pages`
        pages that had been submitted earlier on the same queue."""
        sample = took_s / max(1, pages + queued_pages)
        if direction is Direction.IN:
            self.in_s_per_page += SMOOTHING * (sample - self.in_s_per_page)
        else:
            self.out_s_per_page += SMOOTHING * (sample - self.out_s_per_page)

    def deadline_s(self, direction: Direction, pages: int, queued_pages: int) -> float:
        """Seconds after which a copy submitted now counts as failed."""
        expected = (pages + queued_pages) * self.s_per_page(direction)
        return max(DEADLINE_FLOOR_S, DEADLINE_FACTOR * expected)
